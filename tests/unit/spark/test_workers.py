"""The zip for nodes without the package, and errors of tasks without their modules."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace_spark import MillraceSparkError
from millrace_spark.landing.program import app
from millrace_spark.workers import PACKAGES, _check, pack, require_modules


def test_pack_gives_a_zip_that_imports_without_an_installation(tmp_path: Path) -> None:
    """A Python without the packages imports everything for reading and writing from the zip."""
    program = (
        "import sys; sys.path += sys.argv[1:]\n"
        "import millrace_spark.reading.tasks, millrace_spark.reading.stream, millrace_spark.writing.sink\n"
        "import millrace_client, pyspark_millrace\n"
        "for name in ('millrace_spark', 'millrace_client', 'millrace.columns', 'pyspark_millrace'):\n"
        "    assert sys.modules[name].__file__.startswith(sys.argv[1]), sys.modules[name].__file__\n"
    )
    archive = pack(tmp_path / "millrace.zip")
    # Without the module `site`, editable installations are not found.
    installed = [place for place in sys.path if place.endswith("site-packages")]
    subprocess.run([sys.executable, "-S", "-c", program, archive, *installed], cwd=tmp_path, check=True, timeout=60)


def test_pack_of_the_same_code_writes_the_same_bytes(tmp_path: Path) -> None:
    """The zip changes only with the code."""
    first, second = pack(tmp_path / "first.zip"), pack(str(tmp_path / "second.zip"))
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
    assert all(name.endswith(".py") for name in names)


def test_pack_where_nothing_can_be_written_says_so(tmp_path: Path) -> None:
    """The error names the file and says what to do."""
    with pytest.raises(MillraceSparkError, match="No such file or directory; name a file that can be written"):
        pack(tmp_path / "no-such-folder" / "millrace.zip")


def test_pack_on_the_command_line_writes_the_same(tmp_path: Path) -> None:
    """`millrace-spark pack` prints how to use the zip, or why it cannot be written."""
    done = CliRunner().invoke(app, ["pack", str(tmp_path / "millrace.zip")])
    assert done.exit_code == 0
    assert "use it with spark-submit --py-files" in done.output
    assert (tmp_path / "millrace.zip").read_bytes() == pack(tmp_path / "other.zip").read_bytes()
    refused = CliRunner().invoke(app, ["pack", str(tmp_path / "no-such-folder" / "millrace.zip")])
    assert refused.exit_code == 1
    assert "name a file that can be written" in refused.output


def test_require_modules_where_all_are_there_is_content() -> None:
    """No error is raised if all modules exist."""
    require_modules()


@pytest.mark.parametrize("module", ["grpc", "google"])
def test_require_modules_without_one_says_where_and_what_to_do(module: str) -> None:
    """The error names the Python and the machine."""
    program = (
        "import sys, importlib.abc\n"
        "class Hider(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hider())\n"
        f"sys.modules.pop({module!r}, None)\n"
        "from millrace_spark.workers import require_modules\n"
        "require_modules()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, encoding="utf-8", timeout=60
    )
    sentence = done.stderr.splitlines()[-1]
    missing = {"grpc": "grpcio", "google": "protobuf"}[module]
    assert f"the Python of this task, {sys.executable} on " in sentence
    assert f"has no {missing}; install it on every node" in sentence


def fake_python(folder: Path, response: str) -> str:
    """Writes a program that prints the result of the probe."""
    program = folder / "python-of-workers"
    program.write_text(f"#!/bin/sh\n{response}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("response", "what"),
    [
        ("echo 3.8 True", "which is Python 3.8, while this is "),
        (f"echo {sys.version_info[0]}.{sys.version_info[1]} False", "which has no millrace_spark; set"),
        ("exit 1", "which cannot be run"),
    ],
)
def test_check_of_a_python_that_cannot_work_says_why(tmp_path: Path, response: str, what: str) -> None:
    """The error names the variable to set and its value."""
    with pytest.raises(MillraceSparkError) as refused:
        _check(fake_python(tmp_path, response))
    assert what in str(refused.value)
    assert f"set the environment variable PYSPARK_PYTHON to {sys.executable} before" in str(refused.value)


def test_check_of_a_python_that_is_not_there_says_so() -> None:
    """A machine may have no python3."""
    with pytest.raises(MillraceSparkError, match="workers run 'no-such-python', which cannot be run"):
        _check("no-such-python")


def test_check_of_a_python_that_works_is_silent(tmp_path: Path) -> None:
    """This Python passes, and so does another of the same version with this package."""
    _check(sys.executable)
    _check(fake_python(tmp_path, f"echo {sys.version_info[0]}.{sys.version_info[1]} True"))
