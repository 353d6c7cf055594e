"""Locks the requirements: each `requirements/*.in` becomes a `.txt` with versions and hashes, but without URLs.

A lock is valid for all supported versions of Python and all platforms, which uv resolves together. Locked versions stay
the same unless `--upgrade` is given.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = "3.11"
OWN_DISTRIBUTIONS = ("millrace-client", "millrace-server", "millrace-spark")
LOCKS = ("dev", "build", "server")
"""In this order: the others take their versions from dev.txt."""


def lock(name: str, *, upgrade: bool) -> None:
    """Writes `requirements/<name>.txt`."""
    # Paths are relative to the root, so that the files do not depend on the machine.
    command = [
        *("uv", "pip", "compile", f"requirements/{name}.in", "--output-file", f"requirements/{name}.txt", "--quiet"),
        *("--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"),
        *("--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock"),
        *(f"--no-emit-package={distribution}" for distribution in OWN_DISTRIBUTIONS),
    ]
    if name != "dev":
        command.append("--constraint=requirements/dev.txt")
    if upgrade:
        command.append("--upgrade")
    # uv is installed beside the interpreter that runs this.
    executable = Path(sys.executable).with_name("uv")
    subprocess.run(command, executable=executable, cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    upgrade = parser.parse_args().upgrade
    for name in LOCKS:
        lock(name, upgrade=upgrade)


if __name__ == "__main__":
    main()
