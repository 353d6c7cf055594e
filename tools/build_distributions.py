"""Builds the sdist and the wheel of each distribution, checks them, and adds a bill of materials and checksums.

What it builds depends on the sources and the locked tools alone: building twice gives the same bytes. Each wheel is
built from the sdist, which proves that the sdist is complete.
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


def build(folder: Path) -> None:
    """Fills the folder, which is emptied first.

    Raises:
        subprocess.CalledProcessError: A distribution could not be built, or a check found a fault.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in DISTRIBUTIONS:
        _run("uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, name)
    (folder / ".gitignore").unlink(missing_ok=True)  # uv's
    packages = sorted(folder.iterdir())
    _run("twine", "check", "--strict", *packages)
    _run("check-wheel-contents", *(path for path in packages if path.suffix == ".whl"))
    _list_materials(folder / MATERIALS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / CHECKSUMS).write_text("".join(lines))


def _list_materials(path: Path) -> None:
    """Lists what the server needs at run time, with the locked versions and hashes, in CycloneDX's format."""
    lock = ROOT / "requirements" / "server.txt"
    _run("cyclonedx-py", "requirements", lock, "--output-reproducible", "--output-file", path)


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
