"""`make setup`: when it builds, and what it installs."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from tests.unit.repository.checkout import ROOT
from tools import set_up


@pytest.fixture
def environment(tmp_path: Path) -> set_up.Environment:
    """An environment that looks as if it had just been built."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "setup.stamp").write_text(set_up.fingerprint())
    return set_up.Environment(tmp_path)


def test_is_up_to_date_after_building_holds(environment: set_up.Environment) -> None:
    """A second `make setup` has nothing to do."""
    assert environment.is_up_to_date()


def test_is_up_to_date_without_an_interpreter_does_not_hold(environment: set_up.Environment, tmp_path: Path) -> None:
    """An environment without an interpreter is built again, whatever its stamp is."""
    (tmp_path / "bin" / "python").unlink()
    assert not environment.is_up_to_date()


@pytest.mark.parametrize("changed", ["requirements/dev.txt", "requirements/build.txt", "server/pyproject.toml"])
def test_fingerprint_of_changed_inputs_differs(changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another lock, or another distribution's metadata, needs a new build."""
    for name in (
        "requirements/dev.txt",
        "requirements/build.txt",
        *(f"{d}/pyproject.toml" for d in set_up.DISTRIBUTIONS),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(set_up, "ROOT", tmp_path)
    monkeypatch.setattr(set_up, "LOCK", tmp_path / "requirements" / "dev.txt")
    monkeypatch.setattr(set_up, "BUILD_LOCK", tmp_path / "requirements" / "build.txt")
    before = set_up.fingerprint()
    with (tmp_path / changed).open("a") as file:
        file.write("# changed\n")
    assert set_up.fingerprint() != before


def test_build_leaves_one_copy_of_pyspark() -> None:
    """Spark's Python processes would import the other one, which is never compiled."""
    package = Path(*importlib.import_module("pyspark").__path__)
    assert (package / "python").exists()
    assert not list(package.rglob("*.zip"))


def test_build_in_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    """An empty VENV names the checkout, which an environment would replace."""
    (tmp_path / "README.md").write_text("precious")
    with pytest.raises(set_up.SetupFailedError, match="holds other files"):
        set_up.Environment(tmp_path).build()
    assert (tmp_path / "README.md").read_text() == "precious"


def test_build_after_one_that_failed_begins_with_an_empty_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package whose installation was killed looks installed, and would be missing for ever."""
    made = []

    def create(folder: Path, **_: object) -> None:
        made.append(folder)
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "pyvenv.cfg").touch()
        (folder / "bin" / "pip").write_text(f"#!{folder}/bin/python")
        if not (folder / "bin" / "python").exists():
            (folder / "bin" / "python").symlink_to(sys.executable)

    def fail(*_: object) -> None:
        raise set_up.SetupFailedError("no network")

    folder = tmp_path / "environment"
    monkeypatch.setattr("tools.set_up.venv.create", create)
    monkeypatch.setattr(set_up.Environment, "_run", fail)
    for _ in range(2):
        with pytest.raises(set_up.SetupFailedError, match="no network"):
            set_up.Environment(folder).build()
    assert made == [folder, folder]
    monkeypatch.setattr(set_up.Environment, "_run", lambda *_: None)
    set_up.Environment(folder).build()
    assert set_up.Environment(folder).is_up_to_date()
    (folder / "setup.stamp").write_text("of other requirements")
    set_up.Environment(folder).build()
    assert made == [folder, folder, folder]
