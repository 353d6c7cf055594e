"""A real server process for tests."""

import io
import json
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fork_server import ForkedProgram, run_program

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0


class MillracedError(Exception):
    """Raised when a server did not reach the state that a test waits for; contains its log."""


class Millraced:
    """One running server.

    Attributes:
        grpc: The address of gRPC, `host:port`.
        http: The address of HTTP, `host:port`.
        arguments: The arguments of `serve`.
        process: The process; its standard error is already being read.
        data_dir: The data directory.
        log: The log so far, as parsed entries.
        other_output: Lines of its standard error that are no log entries; a correct server writes none.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        data_dir: Path,
        stdin: int = subprocess.DEVNULL,
        python: str | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.log: list[dict[str, Any]] = []
        self.other_output: list[str] = []
        self._news = threading.Condition()
        self._is_closed = False
        self.arguments = tuple(arguments)
        self.process = _start(self.arguments, stdin, python, cwd)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            serving = self.wait_for("serving", START_SECONDS_MAX)
        except MillracedError:
            self.kill()
            raise
        self.grpc: str = serving["grpc"]
        self.http: str = serving["http"]

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The errors logged so far, without those of a disk or an engine that a busy machine keeps from responding."""
        return [entry for entry in self.log if entry["level"] == "error" and entry.get("state") != "stalled"]

    def wait_for(self, event: str, timeout_seconds: float = STOP_SECONDS_MAX, *, count: int = 1) -> dict[str, Any]:
        """Waits for so many log entries with this event, and returns the last of them."""
        give_up = time.monotonic() + timeout_seconds
        with self._news:
            while len(found := [entry for entry in self.log if entry["event"] == event]) < count:
                if self._is_closed or not self._news.wait(give_up - time.monotonic()):
                    raise MillracedError(f"never logged {event!r}, but {self.log} and {self.other_output}")
            return found[count - 1]

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Waits until the process has ended and its log is read; returns its exit code."""
        code = self.process.wait(STOP_SECONDS_MAX)
        self._reader.join(STOP_SECONDS_MAX)
        return code

    def stop(self) -> int:
        """Stops the server gracefully; returns its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kills the process if it still runs."""
        self.process.kill()
        self.wait()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with io.TextIOWrapper(self.process.stderr, encoding="utf-8") as lines:
            for line in lines:
                with self._news:
                    self._sort_in(line)
                    self._news.notify_all()
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    def _sort_in(self, line: str) -> None:
        try:
            self.log.append(json.loads(line))
        except ValueError:
            self.other_output.append(line)


def _start(
    arguments: Sequence[str], stdin: int, python: str | None, cwd: Path | None
) -> ForkedProgram | subprocess.Popen[bytes]:
    """Starts `serve` with an interpreter, or from the fork server by default."""
    if python is None:
        return ForkedProgram("millraced", ("serve", *arguments), stdin=stdin, stderr=subprocess.PIPE, cwd=cwd)
    command = [python, "-m", "millrace_server", "serve", *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=cwd)


def run_millraced(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command that ends by itself."""
    return run_program("millraced", arguments, cwd=cwd, timeout=START_SECONDS_MAX)
