"""A running command, its output and its standard error."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import structlog

from millrace_server.agent.supervision import ComponentError
from millrace_server.token_bucket import TokenBucket


class PipeReader:
    """Reads from a pipe, and closes it at the end of the data.

    It does not use a transport of the event loop: uvloop keeps a pipe open after its end, and later closes the file
    descriptor twice, although it may belong to another file by then.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe

    async def read(self, bytes_max: int) -> bytes:
        """Returns the next bytes as soon as there are any; nothing at the end. Cancelling it loses nothing."""
        if self._pipe.closed:
            return b""
        # Waits even if data is available, so that a flood of data does not block the event loop.
        await self._wait_readable()
        while (data := self._pipe.read(bytes_max)) is None:
            await self._wait_readable()
        if not data:
            self._pipe.close()
        return data

    async def _wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._pipe, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._pipe)


LINES_BURST = 20
"""How many lines are logged without a limit."""

SECONDS_PER_LINE = 1.0
"""Beyond the burst, one line is logged per this time."""

LINE_BYTES_MAX = 1_000
"""Longer lines are truncated."""

_READ_BYTES = 1 << 16


class StderrLog:
    """Logs lines at a limited rate; suppressed lines are counted, and the count is logged with the next line."""

    def __init__(self, log: structlog.stdlib.BoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._allowance = TokenBucket(1 / SECONDS_PER_LINE, LINES_BURST, clock)
        self._partial_line = b""
        self._suppressed_count = 0

    async def follow(self, errors: PipeReader) -> None:
        """Logs lines until the end. Suppressed lines are read too, so that the command never blocks."""
        while data := await errors.read(_READ_BYTES):
            self.add(data)
        self.end()

    def add(self, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._log_line(line)
        # Keeps one more byte than is logged, to recognize that the line is too long.
        self._partial_line = self._partial_line[: LINE_BYTES_MAX + 1]

    def end(self) -> None:
        """Logs an unfinished last line and the number of suppressed lines."""
        if self._partial_line:
            self._log_line(self._partial_line)
            self._partial_line = b""
        if self._suppressed_count:
            self._log.warning("lines of the command were suppressed", lines_suppressed=self._suppressed_count)
            self._suppressed_count = 0

    def _log_line(self, line: bytes) -> None:
        if not line.strip():
            return
        if not self._allowance.try_take():
            self._suppressed_count += 1
            return
        text = line[:LINE_BYTES_MAX].decode(errors="replace").rstrip("\r")
        suppressed = {"lines_suppressed": self._suppressed_count} if self._suppressed_count else {}
        self._suppressed_count = 0
        self._log.warning(
            "the command wrote to standard error",
            line=f"{text}..." if len(line) > LINE_BYTES_MAX else text,
            **suppressed,
        )


OUTPUT_BYTES_MAX = 1 << 18
"""The size of the output pipe, if the system permits it; a command that fills it blocks."""

_GUARD = Path(__file__).with_name("guard.py")


class Job(NamedTuple):
    """A command to run."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """Variables in addition to the daemon's."""
    directory: str | None
    grace_seconds: float
    """The time between SIGTERM and SIGKILL."""


class RunningCommand:
    """A run of a command with all its descendants, which end at the latest when this process does."""

    def __init__(
        self,
        guard: "subprocess.Popen[bytes]",
        link: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        output: PipeReader,
        stderr_logging: Coroutine[None, None, None],
    ) -> None:
        self._guard = guard
        self._responses, self._requests = link
        self._output = output
        self._stderr_logging = asyncio.create_task(stderr_logging)
        self._end_task: asyncio.Task[int | None] | None = None
        self.pid = 0

    @classmethod
    async def start(cls, job: Job, stderr_log: StderrLog) -> "RunningCommand":
        """Starts a command; its standard error goes to the log. Raises ComponentError if it cannot be started."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                guard = _start_guard(theirs)
        except BaseException:
            ours.close()
            raise
        # This takes a few iterations of the event loop. It is completed even if the caller is cancelled, so that the
        # command can be stopped.
        linking = asyncio.create_task(cls._link(guard, ours, stderr_log))
        try:
            command = await asyncio.shield(linking)
            await command.send_job(job)
        except BaseException:
            await (await linking).stop()
            raise
        return command

    @classmethod
    async def _link(
        cls, guard: "subprocess.Popen[bytes]", link: socket.socket, stderr_log: StderrLog
    ) -> "RunningCommand":
        assert guard.stdout is not None
        assert guard.stderr is not None
        with suppress(OSError):
            fcntl.fcntl(guard.stdout, fcntl.F_SETPIPE_SZ, OUTPUT_BYTES_MAX)
        output, errors = PipeReader(guard.stdout), PipeReader(guard.stderr)
        return cls(guard, await asyncio.open_connection(sock=link), output, stderr_log.follow(errors))

    async def send_job(self, job: Job) -> None:
        """Makes the guard start the command; called once."""
        self._requests.write(json.dumps(job._asdict()).encode() + b"\n")
        response = await self._next_response()
        if "pid" not in response:
            raise ComponentError(f"the command cannot be started: {response.get('error', 'its guard was killed')}")
        self.pid = response["pid"]
        # Starts now: if the guard is killed, the command's descendants may keep writing until this task kills them.
        self._end_task = asyncio.create_task(self._end())

    async def read(self) -> bytes:
        """Returns the next bytes of the standard output; nothing at the end. Cancelling it loses nothing."""
        return await self._output.read(OUTPUT_BYTES_MAX)

    def terminate(self) -> None:
        """Sends SIGTERM to the command and its descendants, and SIGKILL after the grace period."""
        # The guard may have exited already.
        if not self._requests.is_closing():
            with suppress(OSError):
                self._requests.write_eof()

    async def wait(self) -> int | None:
        """Waits until the command and its descendants have ended. The output must be read to its end first.

        Returns:
            The exit code, negative for a signal; None if it is unknown.
        """
        if self._end_task is None:
            self._end_task = asyncio.create_task(self._end())
        # The caller may be cancelled and wait again.
        return await asyncio.shield(self._end_task)

    async def _end(self) -> int | None:
        response = await self._next_response()
        if not response and self.pid:
            # The guard was killed, so the kernel has killed the command. The processes that the command started are in
            # its process group.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        await self._stderr_logging
        await asyncio.to_thread(self._guard.wait)
        self._requests.close()
        with suppress(OSError):
            await self._requests.wait_closed()
        return response.get("exit_code")

    async def stop(self) -> None:
        """Ends the command, discards its remaining output, and returns once it has ended."""
        self.terminate()
        while await self.read():
            pass
        await self.wait()

    async def _next_response(self) -> dict[str, Any]:
        """Returns the next message of the guard; empty if it has exited."""
        try:
            line = await self._responses.readline()
        except OSError:
            line = b""
        response: dict[str, Any] = json.loads(line) if line else {}
        return response


def _start_guard(link: socket.socket) -> "subprocess.Popen[bytes]":
    # Not with asyncio: uvloop forks by itself, which runs gRPC's fork handlers in a process with many threads. Isolated
    # and without site-packages, the guard starts fast and independently of the user's environment.
    return subprocess.Popen(  # noqa: S603 - the guard is our own program
        [sys.executable, "-I", "-S", str(_GUARD), str(link.fileno())],
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(link.fileno(),),
        # Signals to the daemon's process group, such as that of Ctrl-C, are meant for the daemon, which then stops its
        # commands gracefully.
        start_new_session=True,
    )
