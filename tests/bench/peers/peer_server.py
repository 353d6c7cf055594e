"""The server of another product on loopback, with its data in a temporary directory, for the time of a measurement."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

_START_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.05
_END_SECONDS_MAX = 20.0


class MissingPeerError(Exception):
    """Raised if a product cannot be measured here; the message says what is missing."""


def check_installed(program: str, library: str, package: str) -> str:
    """Returns the path of a server's program.

    Raises:
        MissingPeerError: The program or the client's library is missing.
    """
    path = shutil.which(program)
    if path is None:
        raise MissingPeerError(f"the program {program} is not installed")
    if importlib.util.find_spec(library) is None:
        raise MissingPeerError(f"the Python package {package} is not installed")
    return path


def start_peer(
    running: ExitStack,
    command: Sequence[str | Path],
    port: int,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Starts a server and waits until it listens; returns its process id.

    Args:
        running: Ends the server.
        command: The command to run.
        port: The port on which it will listen.
        log: The file for its output.
        environment: Variables in addition to this process's.

    Raises:
        MissingPeerError: It does not start.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command)],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running.callback(_end, process)
    give_up = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < give_up and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process.pid
        time.sleep(_LOOK_SECONDS)
    last_lines = log.read_text(errors="replace").strip().splitlines()[-3:]
    raise MissingPeerError(f"{Path(command[0]).name} does not start: {' / '.join(last_lines)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    # The whole process group: some servers are scripts that start others.
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_END_SECONDS_MAX)
