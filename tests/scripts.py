"""Shell commands of the documentation, run as a reader would."""

import os
import subprocess
import sys
from pathlib import Path

_SECONDS_MAX = 100.0


def run_script(script: str, folder: Path, **environment: str) -> str:
    """Runs commands in a folder, with the project's programs on the path; returns their output.

    Args:
        script: The commands; the first one that fails ends them, and the test.
        folder: The working directory, in which contexts of `millrace` are kept, too.
        environment: Variables in addition to this process's.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
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
