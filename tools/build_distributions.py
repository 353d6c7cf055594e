"""Builds the sdist and the wheel of each distribution, checks them, and adds a bill of materials and checksums.

Builds are reproducible: they depend only on the sources and the locked tools. Each wheel is built from the sdist, which
proves that the sdist is complete.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = ("client", "server", "spark_connector")
CHECKSUMS = "SHA256SUMS"
MATERIALS = "millrace-server.cdx.json"


def build(folder: Path, *, is_checked: bool = True) -> None:
    """Builds the packages into a folder, which is emptied first.

    Args:
        folder: The folder.
        is_checked: False skips the checks, which take longer than the build, for a repeated build of the same bytes.

    Raises:
        subprocess.CalledProcessError: A distribution could not be built, or a check has failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in DISTRIBUTIONS:
        _run("uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, name)
    (folder / ".gitignore").unlink(missing_ok=True)  # uv's
    packages = sorted(folder.iterdir())
    if is_checked:
        _run("twine", "check", "--strict", *packages)
        _run("check-wheel-contents", *(path for path in packages if path.suffix == ".whl"))
    _list_materials(folder / MATERIALS, is_checked=is_checked)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / CHECKSUMS).write_text("".join(lines))


def _list_materials(path: Path, *, is_checked: bool) -> None:
    """Lists what the server needs at run time, with the locked versions and hashes, in CycloneDX's format."""
    lock = ROOT / "requirements" / "server.txt"
    check = "--validate" if is_checked else "--no-validate"
    _run("cyclonedx-py", "requirements", lock, "--output-reproducible", check, "--output-file", path)


def _run(program: str, *arguments: str | Path) -> None:
    # The programs are installed beside the interpreter that runs this.
    subprocess.run([Path(sys.executable).with_name(program), *arguments], cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    folder = parser.parse_args().folder.absolute()
    build(folder)
    print((folder / CHECKSUMS).read_text(), end="")


if __name__ == "__main__":
    main()
