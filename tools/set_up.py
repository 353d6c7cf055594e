"""Builds the virtual environment that the other targets of the Makefile use: the three distributions and all tools.

It installs exactly the locked requirements, checked by their hashes, and the distributions themselves as editable, so
that what is edited is what runs. When nothing changed since the last time it does nothing. It needs an interpreter
with `venv` and nothing else; run it with the one that the environment shall have.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = ("client", "server", "spark_connector")
BUILD_LOCK = ROOT / "requirements" / "build.txt"
LOCK = ROOT / "requirements" / "dev.txt"

_LOCKED_NAME = re.compile(r"^([a-z0-9-]+)==", re.MULTILINE)
_NAME_SEPARATORS = re.compile(r"[-_.]+")
_OWN_NAME = re.compile(r'^name = "([a-z0-9-]+)"', re.MULTILINE)


class SetupFailedError(Exception):
    """Raised where a step fails; its message is for the user."""


class Progress:
    """Shows how far a build is: one line that changes on a terminal, one line for each phase elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()

    def phase(self, text: str) -> None:
        print(f"\r\033[K  {text}" if self._is_terminal else f"  {text}", end=self._end(), flush=True)

    def detail(self, text: str) -> None:
        if self._is_terminal:
            self.phase(text)

    def done(self, text: str) -> None:
        print(f"\r\033[K{text}" if self._is_terminal else text, flush=True)

    def _end(self) -> str:
        return "" if self._is_terminal else "\n"


class Environment:
    """A virtual environment, with a log of the pip runs that built it and a stamp that tells what it was built from."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder = folder
        self._progress = progress
        self._python = folder / "bin" / "python"
        self._stamp = folder / "setup.stamp"
        self.log = folder / "setup.log"

    def is_up_to_date(self) -> bool:
        """Tells whether building again would change nothing."""
        return self._python.exists() and self._stamp.exists() and self._stamp.read_text() == fingerprint()

    def build(self) -> None:
        """Makes the environment what the locked requirements say.

        Raises:
            SetupFailedError: A step failed; the next run takes up from there.
        """
        self._stamp.unlink(missing_ok=True)
        if not self._is_usable():
            self._create()
        # Hashes are checked of what builds a distribution too, so nothing is built in an environment of its own.
        self._install("pip and setuptools", "--require-hashes", "--requirement", str(BUILD_LOCK))
        # No compiler is needed: everything is a wheel but PySpark, which has no compiled parts.
        wheels = ("--no-build-isolation", "--only-binary=:all:", "--no-binary=pyspark")
        self._install("packages", *wheels, "--require-hashes", "--requirement", str(LOCK))
        editable = [argument for name in DISTRIBUTIONS for argument in ("--editable", str(ROOT / name))]
        self._install("Millrace's distributions", "--no-build-isolation", "--no-deps", *editable)
        self._remove_what_is_not_locked()
        self._run_pip("check")
        self._stamp.write_text(fingerprint())

    def _is_usable(self) -> bool:
        """Tells whether an environment of this interpreter was made right here; its scripts hold its path."""
        pip = self._folder / "bin" / "pip"
        if not self._python.exists() or not pip.exists() or str(self._folder) not in pip.read_text():
            return False
        command = [str(self._python), "-c", "import sys; print(sys.version, end='')"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout == sys.version

    def _create(self) -> None:
        self._progress.phase("an empty environment")
        try:
            venv.create(self._folder, clear=True, with_pip=True, symlinks=True)
        except (ImportError, subprocess.CalledProcessError) as error:
            raise SetupFailedError(
                f"{sys.executable} cannot make virtual environments with pip in them ({error}); "
                "on Debian and Ubuntu, the package python3-venv is missing"
            ) from error

    def _install(self, what: str, *arguments: str) -> None:
        self._progress.phase(what)
        for line in self._pip("install", *arguments):
            first_word, _, rest = line.strip().partition(" ")
            if first_word in {"Collecting", "Downloading", "Building", "Installing"}:
                self._progress.detail(f"{what}: {first_word.lower()} {rest[:48]}")

    def _remove_what_is_not_locked(self) -> None:
        listed = json.loads(self._run_pip("list", "--format=json"))
        extra = {_NAME_SEPARATORS.sub("-", entry["name"]).lower() for entry in listed} - locked_names()
        if extra:
            self._progress.phase("removing what is not locked: " + ", ".join(sorted(extra)))
            self._run_pip("uninstall", "--yes", *sorted(extra))

    def _run_pip(self, *arguments: str) -> str:
        return "\n".join(self._pip(*arguments))

    def _pip(self, *arguments: str) -> Iterator[str]:
        """Runs pip and yields the lines that it prints."""
        command = [str(self._python), "-m", "pip", "--log", str(self.log), "--disable-pip-version-check", *arguments]
        with (
            tempfile.TemporaryFile("w+") as complaints,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, cwd=ROOT) as pip,
        ):
            assert pip.stdout is not None
            for line in pip.stdout:
                yield line.rstrip()
            if pip.wait() != 0:
                complaints.seek(0)
                raise SetupFailedError(f"`pip {arguments[0]}` failed; {self.log} tells more\n{complaints.read()}")


def fingerprint() -> str:
    """Changes where an environment has to be built again."""
    inputs = [BUILD_LOCK, LOCK, *(ROOT / name / "pyproject.toml" for name in DISTRIBUTIONS)]
    digest = hashlib.sha256(f"{sys.version} {ROOT}".encode())
    for path in inputs:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def locked_names() -> set[str]:
    """Names of all distributions that belong into the environment."""
    locked = BUILD_LOCK.read_text() + LOCK.read_text()
    own = [_OWN_NAME.search((ROOT / name / "pyproject.toml").read_text()) for name in DISTRIBUTIONS]
    return {*_LOCKED_NAME.findall(locked), *(match[1] for match in own if match)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the virtual environment")
    folder = parser.parse_args().folder.absolute()
    progress = Progress()
    environment = Environment(folder, progress)
    if environment.is_up_to_date():
        return
    started = time.monotonic()
    print(f"Setting up {folder} with Python {sys.version.split()[0]}; this takes a minute, the first time some more.")
    try:
        environment.build()
    except SetupFailedError as error:
        progress.done("")
        sys.exit(f"Set-up failed: {error}")
    progress.done(f"Set up in {time.monotonic() - started:.0f} s. The log is {environment.log}")


if __name__ == "__main__":
    main()
