"""A running command, as the daemon sees it."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from millrace_server.agent.sources.exec.complaints import ComplaintLog
from millrace_server.agent.sources.exec.pipes import PipeReader
from millrace_server.agent.supervision import ComponentError

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
