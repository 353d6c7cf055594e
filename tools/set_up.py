"""Builds the virtual environment that the other targets of the Makefile use: the three distributions and all tools.

It installs exactly the locked requirements, checked by their hashes, and the distributions in editable mode. If nothing
has changed since the last time, it does nothing. It needs only an interpreter with `venv`, which becomes that of the
environment.
"""

import argparse
import hashlib
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = ("client", "server", "spark_connector")
BUILD_LOCK = ROOT / "requirements" / "build.txt"
LOCK = ROOT / "requirements" / "dev.txt"

_UNFINISHED = "unfinished"
"""The stamp of an environment that is being built."""

_OF_ENVIRONMENT = {"bin", "include", "lib", "lib64"}
"""The contents that an unfinished virtual environment may have."""


class SetupFailedError(Exception):
    """Raised when a step fails; the message is for the user."""


class Environment:
    """A virtual environment, with a log of the commands that built it and a fingerprint of its inputs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python = folder / "bin" / "python"
        self._stamp = folder / "setup.stamp"
        self.log = folder / "setup.log"

    def is_up_to_date(self) -> bool:
        """Whether building again would change nothing."""
        return self._python.exists() and self._stamp.exists() and self._stamp.read_text() == fingerprint()

    def build(self) -> None:
        """Builds the environment from the locked requirements.

        Raises:
            SetupFailedError: A step failed; the next run begins with an empty environment.
        """
        self._refuse_unless_replaceable()
        if not self._is_usable():
            self._create()
        # A package whose installation was killed looks installed, so an unfinished environment is never built upon.
        self._stamp.write_text(_UNFINISHED)
        self.log.write_text("")
        print("  uv, which installs the rest", flush=True)
        pip = (str(self._python), "-m", "pip", "--disable-pip-version-check", "--quiet")
        self._run(*pip, "install", "--require-hashes", "--requirement", str(BUILD_LOCK))
        print("  packages; building PySpark's takes longest", flush=True)
        # Without build isolation, the hashes of build tools are checked too. No compiler is needed: everything is a
        # wheel except PySpark, which has no compiled parts.
        wheels = ("--no-build-isolation", "--only-binary=:all:", "--no-binary=pyspark")
        self._uv("sync", *wheels, "--require-hashes", str(BUILD_LOCK), str(LOCK))
        # Spark's Python processes prefer this second copy of PySpark, and each would compile it: that takes 0.8 s.
        for copy in self._folder.glob("lib/*/site-packages/pyspark/python/lib/*.zip"):
            copy.unlink()
        print("  Millrace's distributions", flush=True)
        editable = [argument for name in DISTRIBUTIONS for argument in ("--editable", str(ROOT / name))]
        self._uv("install", "--no-build-isolation", "--no-deps", *editable)
        self._uv("check")
        self._stamp.write_text(fingerprint())

    def _refuse_unless_replaceable(self) -> None:
        """Refuses a folder with other contents, such as the checkout itself, which an empty VENV would refer to."""
        found = {path.name for path in self._folder.iterdir()} if self._folder.exists() else set()
        if "pyvenv.cfg" not in found and not found <= _OF_ENVIRONMENT:
            raise SetupFailedError(f"{self._folder} holds other files, which a virtual environment would replace")

    def _is_usable(self) -> bool:
        """Whether this interpreter created the environment at this path, which its scripts contain."""
        if self._stamp.exists() and self._stamp.read_text() == _UNFINISHED:
            return False
        pip = self._folder / "bin" / "pip"
        if not self._python.exists() or not pip.exists() or str(self._folder) not in pip.read_text():
            return False
        command = [str(self._python), "-c", "import sys; print(sys.version, end='')"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout == sys.version

    def _create(self) -> None:
        print("  an empty environment", flush=True)
        try:
            venv.create(self._folder, clear=True, with_pip=True, symlinks=True)
        except (ImportError, subprocess.CalledProcessError) as error:
            raise SetupFailedError(
                f"{sys.executable} cannot make virtual environments with pip in them ({error}); "
                "on Debian and Ubuntu, the package python3-venv is missing"
            ) from error

    def _uv(self, command: str, *arguments: str) -> None:
        uv = str(self._folder / "bin" / "uv")
        self._run(uv, "pip", command, "--no-config", "--python", str(self._python), *arguments)

    def _run(self, *command: str) -> None:
        """Runs a command, shows each step that it reports, and logs all of its output."""
        with (
            self.log.open("a") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process,
        ):
            print("$", *command, file=log)
            assert process.stdout is not None
            output = []
            for line in process.stdout:
                output.append(line)
                log.write(line)
                if line.split(maxsplit=1)[:1] in (["Downloading"], ["Building"], ["Prepared"], ["Installed"]):
                    print(f"    {line.strip()}", flush=True)
            if process.wait() != 0:
                name = " ".join([Path(command[0]).name, *command[1:3]])
                raise SetupFailedError(f"`{name}` failed; {self.log} has its whole output\n{''.join(output[-20:])}")


def fingerprint() -> str:
    """A hash that changes when the environment must be built again."""
    inputs = [Path(__file__), BUILD_LOCK, LOCK, *(ROOT / name / "pyproject.toml" for name in DISTRIBUTIONS)]
    digest = hashlib.sha256(f"{sys.version} {ROOT}".encode())
    for path in inputs:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the virtual environment")
    folder = parser.parse_args().folder.absolute()
    environment = Environment(folder)
    if environment.is_up_to_date():
        return
    started = time.monotonic()
    print(f"Setting up {folder} with Python {sys.version.split()[0]}; this takes about a minute.", flush=True)
    try:
        environment.build()
    except (SetupFailedError, OSError) as error:
        sys.exit(f"Set-up failed: {error}")
    print(f"Set up in {time.monotonic() - started:.0f} s. The log is {environment.log}")


if __name__ == "__main__":
    main()
