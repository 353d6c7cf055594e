"""Libraries of the console and of the documentation, which are copies of files from npm packages."""

import json
from pathlib import Path

import pytest

from tools.vendor_scripts import CONSOLE, DOCUMENTATION, libraries, sha256_of

FOLDERS = (CONSOLE, DOCUMENTATION)


@pytest.mark.parametrize("folder", FOLDERS, ids=["console", "documentation"])
def test_files_of_a_library_are_those_of_its_package(folder: Path) -> None:
    """Each file, the licence too, has the hash that the manifest took from the package of that version."""
    for library in libraries(folder):
        assert set(library["sha256"]) == {*library["files"].values(), f"{library['package']}.LICENSE"}
        assert {name: sha256_of(folder / name) for name in library["sha256"]} == library["sha256"]


@pytest.mark.parametrize("folder", FOLDERS, ids=["console", "documentation"])
def test_files_beside_the_manifest_all_stand_in_it(folder: Path) -> None:
    """Nothing is vendored without a package, a version, a licence and a hash."""
    known = {name for library in libraries(folder) for name in library["sha256"]}
    assert {path.name for path in folder.iterdir()} == known | {"manifest.json"}
    assert all(library["version"] and library["licence"] in {"MIT", "Apache-2.0"} for library in libraries(folder))


@pytest.mark.parametrize("folder", FOLDERS, ids=["console", "documentation"])
def test_manifest_as_written_is_sorted_as_the_tool_writes_it(folder: Path) -> None:
    """`make lock` changes only what is new."""
    assert (folder / "manifest.json").read_text() == json.dumps(libraries(folder), indent=2) + "\n"
