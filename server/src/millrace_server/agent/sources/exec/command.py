"""Reading a pipe from the event loop."""

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

from millrace_server.agent.rate_limited_log import RateLimit
from millrace_server.agent.supervision import ComponentError


class PipeReader:
    """The end of a pipe that is read; closed once all has been read.

    No transport of the event loop's: uvloop's keeps a pipe open behind its end, and when it closes it, closes its
    number twice, which may be another thread's file by then.

    Args:
        pipe: Belongs to the reader from now on; unbuffered.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe

    async def read(self, bytes_max: int) -> bytes:
        """The next bytes, as soon as there are any; none at the end. Nothing is lost where this is cancelled."""
        if self._pipe.closed:
            return b""
        # Waits even where there is something: a flood must not keep the loop from all else.
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


LINES_AT_ONCE = 20
"""So many lines are told as they come."""

LINE_SECONDS = 1.0
"""Beyond these, one more is told after so long."""

LINE_BYTES_MAX = 1_000
"""The rest of a longer line is left out."""

_READ_BYTES = 1 << 16


class ComplaintLog:
    """Logs lines, but never a flood of them: what is too much is counted, and the count is told with the next line.

    Args:
        log: Where to.
        clock: Seconds on a clock that only goes forward.
    """

    def __init__(self, log: structlog.stdlib.BoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._allowance = RateLimit(LINES_AT_ONCE, LINE_SECONDS, clock)
        self._begun_line = b""
        self._untold_count = 0

    async def follow(self, errors: PipeReader) -> None:
        """Logs what comes until there will be no more; reads it even where it is too much, so that nobody waits."""
        while data := await errors.read(_READ_BYTES):
            self.add(data)
        self.end()

    def add(self, data: bytes) -> None:
        """Takes the next bytes."""
        *lines, self._begun_line = (self._begun_line + data).split(b"\n")
        for line in lines:
            self._tell(line)
        # One byte more than is told, so that it is known to be too long.
        self._begun_line = self._begun_line[: LINE_BYTES_MAX + 1]

    def end(self) -> None:
        """There will be no more: tells a last line without its end, and what was left out."""
        if self._begun_line:
            self._tell(self._begun_line)
            self._begun_line = b""
        if self._untold_count:
            self._log.warning("the command said more", lines_not_told=self._untold_count)
            self._untold_count = 0

    def _tell(self, line: bytes) -> None:
        if not line.strip():
            return
        if not self._allowance.try_acquire():
            self._untold_count += 1
            return
        text = line[:LINE_BYTES_MAX].decode(errors="replace").rstrip("\r")
        untold = {"lines_not_told": self._untold_count} if self._untold_count else {}
        self._untold_count = 0
        self._log.warning("the command says", line=f"{text}..." if len(line) > LINE_BYTES_MAX else text, **untold)


OUTPUT_BYTES_MAX = 1 << 18
"""Output that its pipe holds, where the system grants that much; beyond it the command waits."""

_GUARD = Path(__file__).with_name("guard.py")


class Job(NamedTuple):
    """What to run."""

    command: Sequence[str]
    """The program and its arguments."""
    environment: Mapping[str, str]
    """Variables beside the daemon's own."""
    directory: str | None
    """Its working directory; None for the daemon's."""
    grace_seconds: float
    """How long processes may take to end after SIGTERM, before SIGKILL."""


class RunningCommand:
    """One run of a command, with all its descendants; all of them end when this process does.

    Attributes:
        pid: The command's; 0 where it could not be started.
    """

    def __init__(
        self,
        guard: "subprocess.Popen[bytes]",
        link: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        output: PipeReader,
        complaining: Coroutine[None, None, None],
    ) -> None:
        self._guard = guard
        self._answers, self._requests = link
        self._output = output
        self._complaining = asyncio.create_task(complaining)
        self._ending: asyncio.Task[int | None] | None = None
        self.pid = 0

    @classmethod
    async def start(cls, job: Job, complaints: ComplaintLog) -> "RunningCommand":
        """Starts a command.

        Args:
            job: What to run.
            complaints: Gets its standard error.

        Raises:
            ComponentError: It cannot be started; says why.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                guard = _start_guard(theirs)
        except BaseException:
            ours.close()
            raise
        # A few turns of the loop; it goes to its end even where the caller is cancelled, so there is one to abandon.
        linking = asyncio.create_task(cls._link(guard, ours, complaints))
        try:
            running = await asyncio.shield(linking)
            await running.hand_over(job)
        except BaseException:
            await (await linking).abandon()
            raise
        return running

    @classmethod
    async def _link(
        cls, guard: "subprocess.Popen[bytes]", link: socket.socket, complaints: ComplaintLog
    ) -> "RunningCommand":
        assert guard.stdout is not None
        assert guard.stderr is not None
        with suppress(OSError):
            fcntl.fcntl(guard.stdout, fcntl.F_SETPIPE_SZ, OUTPUT_BYTES_MAX)
        output, errors = PipeReader(guard.stdout), PipeReader(guard.stderr)
        return cls(guard, await asyncio.open_connection(sock=link), output, complaints.follow(errors))

    async def hand_over(self, job: Job) -> None:
        """Has the guard start the command; once."""
        self._requests.write(json.dumps(job._asdict()).encode() + b"\n")
        answer = await self._next_answer()
        if "pid" not in answer:
            raise ComponentError(f"the command cannot be started: {answer.get('error', 'its guard was killed')}")
        self.pid = answer["pid"]
        # From now on: where the guard is killed, what the command has started may write on and on until it is ended.
        self._ending = asyncio.create_task(self._end())

    async def read(self) -> bytes:
        """The next bytes of its standard output; none at the end. Nothing is lost where this is cancelled."""
        return await self._output.read(OUTPUT_BYTES_MAX)

    def terminate(self) -> None:
        """Has the command and its descendants get SIGTERM, and SIGKILL after the grace time."""
        # The guard may have gone already.
        if not self._requests.is_closing():
            with suppress(OSError):
                self._requests.write_eof()

    async def wait(self) -> int | None:
        """Waits until the command and its descendants have ended; the output must be read to its end before.

        Returns:
            The exit code, negative for a signal; None where nobody can tell.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        # Whoever waits may be cancelled, and wait once more.
        return await asyncio.shield(self._ending)

    async def _end(self) -> int | None:
        answer = await self._next_answer()
        if not answer and self.pid:
            # The guard was killed, and the kernel has killed the command. What that has started is in its group.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        await self._complaining
        await asyncio.to_thread(self._guard.wait)
        self._requests.close()
        with suppress(OSError):
            await self._requests.wait_closed()
        return answer.get("exit_code")

    async def abandon(self) -> None:
        """Ends the command, and returns once it has ended; what it still writes is lost."""
        self.terminate()
        while await self.read():
            pass
        await self.wait()

    async def _next_answer(self) -> dict[str, Any]:
        """What the guard says next; nothing where it has gone."""
        try:
            line = await self._answers.readline()
        except OSError:
            line = b""
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer


def _start_guard(link: socket.socket) -> "subprocess.Popen[bytes]":
    # Not by the event loop: uvloop's forks for it, which has gRPC's fork handlers run in a process of many threads.
    # Isolated and without site-packages: it starts in a moment, and nothing of the user's environment changes it.
    return subprocess.Popen(  # noqa: S603 - the guard is our own program
        [sys.executable, "-I", "-S", str(_GUARD), str(link.fileno())],
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(link.fileno(),),
        # Ctrl-C and what else is sent to the daemon's group goes to the daemon, which then ends its commands in order.
        start_new_session=True,
    )
