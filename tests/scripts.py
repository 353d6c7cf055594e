"""Shell commands of the documentation, run as a reader would."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.fork_server import fork_server

_SECONDS_MAX = 100.0


@cache
def _stand_ins() -> str:
    """A folder with programs that stand for forked ones; it goes with this process."""
    server = fork_server()
    folder = server.folder / "bin"
    folder.mkdir()
    for program in ("millrace", "millraced"):
        path = folder / program
        path.write_text(f'#!/bin/sh\nexec {server.stand_in(program)} "$@"\n')
        path.chmod(0o755)
    return str(folder)


def run_script(script: str, folder: Path, **environment: str) -> str:
    """Runs commands in a folder, with the project's programs on the path; returns their output.

    Args:
        script: The commands; the first one that fails ends them, and the test.
        folder: The working directory, in which contexts of `millrace` are kept, too.
        environment: Variables in addition to this process's.
    """
    path = os.pathsep.join((_stand_ins(), str(Path(sys.executable).parent), os.environ["PATH"]))
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        check=False,
        cwd=folder,
        encoding="utf-8",
        env={**os.environ, "PATH": path, "XDG_CONFIG_HOME": str(folder / "config"), **environment},
        stdin=subprocess.DEVNULL,
        timeout=_SECONDS_MAX,
    )
    assert ran.returncode == 0, (script, ran.stdout, ran.stderr)
    return ran.stdout
