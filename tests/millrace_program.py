"""The command `millrace` as a process, without and with a terminal."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from millrace_client import ChannelInfo, Client
from tests.fork_server import ForkedProgram

END_SECONDS_MAX = 60.0
_PRESS_AGAIN_SECONDS = 5.0
ROWS = 24
COLUMNS = 100


def run_millrace(
    server: str, *arguments: str | Path, typed: bytes = b"", output: IO[bytes] | int = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command that ends by itself, with these bytes as its standard input."""
    pipe = subprocess.PIPE
    with ForkedProgram("millrace", arguments, stdin=pipe, stdout=output, stderr=pipe, env=_environment(server)) as ran:
        written, errors = ran.communicate(typed, END_SECONDS_MAX)
    return subprocess.CompletedProcess(arguments, ran.wait(), written, errors)


@contextmanager
def started_millrace(server: str, *arguments: str | Path) -> Iterator[ForkedProgram]:
    """Runs a command concurrently with the test, with a pipe at each end; ends it with the block."""
    pipe = subprocess.PIPE
    process = ForkedProgram("millrace", arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment(server))
    with process:
        try:
            yield process
        finally:
            process.kill()


def stream_of(stream: IO[bytes] | None) -> IO[bytes]:
    """A pipe of a process that has it."""
    assert stream is not None
    return stream


def wait_for(client: Client, channel: str, condition: Callable[[ChannelInfo], bool]) -> ChannelInfo:
    """Watches a channel until it has the expected state."""
    for channels in client.admin.watch_channels([channel], 0.1):
        if channels and condition(channels[0]):
            return channels[0]
    raise AssertionError(f"the watch on {channel} ended")


class Terminal:
    """A command on a terminal of its own, and its output."""

    def __init__(self, server: str, *arguments: str | Path, kind: str = "xterm") -> None:
        self._person, program = pty.openpty()
        fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = ForkedProgram(
            "millrace",
            arguments,
            stdin=program,
            stdout=program,
            stderr=program,
            env={**_environment(server), "TERM": kind},
        )
        os.close(program)
        self._written = b""
        self._news = threading.Condition()
        self._is_closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def type(self, keys: str) -> None:
        """Presses keys."""
        os.write(self._person, keys.encode())

    def interrupt_until_it_ends(self) -> None:
        """Presses Ctrl-C, and again if it had no effect.

        Python checks for signals before it waits for keys, not at the same time: a signal between the
        two is handled only at the next check.
        """
        deadline = time.monotonic() + END_SECONDS_MAX
        while self.process.poll() is None and time.monotonic() < deadline:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_PRESS_AGAIN_SECONDS)

    def wait_for(self, text: str) -> str:
        """Waits until the text is in the output; returns the output."""
        with self._news:
            found = self._news.wait_for(lambda: text.encode() in self._written or self._is_closed, END_SECONDS_MAX)
            written = self._written.decode(errors="backslashreplace")
        assert found, f"never wrote {text!r}, but {written!r}"
        assert text in written, f"ended without {text!r}, but with {written!r}"
        return written

    def wait(self) -> tuple[int, str]:
        """Waits for the end; returns the exit code and the output."""
        exit_code = self.process.wait(END_SECONDS_MAX)
        self._reader.join(END_SECONDS_MAX)
        return exit_code, self._written.decode(errors="backslashreplace")

    def close(self) -> None:
        """Kills the command if it still runs."""
        self.process.kill()
        self.wait()
        os.close(self._person)

    def _read(self) -> None:
        while chunk := self._read_chunk():
            with self._news:
                self._written += chunk
                self._news.notify_all()
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    def _read_chunk(self) -> bytes:
        try:
            return os.read(self._person, 65536)
        except OSError:
            # EIO: the last process on the terminal has ended.
            return b""


@contextmanager
def millrace_on_terminal(server: str, *arguments: str | Path, kind: str = "xterm") -> Iterator[Terminal]:
    """Runs a command on a terminal of this kind concurrently with the test; ends it with the block."""
    terminal = Terminal(server, *arguments, kind=kind)
    try:
        yield terminal
    finally:
        terminal.close()


def _environment(server: str) -> Mapping[str, str]:
    unwanted = {"FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES"}
    return {**{name: value for name, value in os.environ.items() if name not in unwanted}, "MILLRACE_SERVER": server}
