"""Copies the libraries of the console and of the documentation from their npm packages.

The `manifest.json` of a folder names them, and receives their hashes. `make lock` runs it. Versions stay as they are in
the manifest unless `--upgrade` is given. Needs npm; an installation of Millrace does not, since the copies are
committed.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

ROOT = Path(__file__).resolve().parent.parent
CONSOLE = ROOT / "server/src/millrace_server/console/page/vendor"
DOCUMENTATION = ROOT / "tools/site/vendor"


class Library(TypedDict):
    """An entry of the manifest."""

    package: str
    version: str
    licence: str
    files: dict[str, str]
    """The names in this folder, by the files of the package."""
    sha256: dict[str, str]
    """By name in this folder, including the text of the licence."""


def libraries(folder: Path) -> list[Library]:
    """The manifest of a folder as it is committed."""
    entries: list[Library] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return entries


def vendor(library: Library, target_folder: Path, *, upgrade: bool) -> None:
    """Copies the files of a library and its licence into a folder, and updates its entry."""
    if upgrade:
        library["version"] = _npm("view", library["package"], "version")
    with TemporaryDirectory() as folder:
        name = _npm("pack", f"{library['package']}@{library['version']}", "--silent", cwd=folder)
        with tarfile.open(Path(folder, name)) as packed:
            packed.extractall(folder, filter="data")
        package = Path(folder, "package")
        library["licence"] = json.loads((package / "package.json").read_text(encoding="utf-8"))["license"]
        copies = library["files"] | {"LICENSE": f"{library['package']}.LICENSE"}
        for source, target in copies.items():
            shutil.copyfile(package / source, target_folder / target)
    library["sha256"] = {target: sha256_of(target_folder / target) for target in copies.values()}


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _npm(*arguments: str, cwd: str | Path = ROOT) -> str:
    if shutil.which("npm") is None:
        sys.exit("these libraries come from npm packages: install npm, then run `make lock` again")
    return subprocess.run(["npm", *arguments], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = parser.parse_args().upgrade
    for folder in (CONSOLE, DOCUMENTATION):
        entries = libraries(folder)
        for library in entries:
            vendor(library, folder, upgrade=upgrade)
        (folder / "manifest.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
