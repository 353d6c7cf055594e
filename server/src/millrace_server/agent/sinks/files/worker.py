"""Work on files, which may take long, or never end."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from millrace_server.agent.supervision import ComponentError
from millrace_server.agent.work_thread import WorkThread

ResultT = TypeVar("ResultT")


class FileWorker:
    """Does one job after the other on a thread of its own, and waits for none too long.

    Args:
        name: The thread's name.
        stall_seconds: A job that takes longer is not waited for.
        stalled: Says what does not answer, for the component's state.
    """

    def __init__(self, name: str, stall_seconds: float, stalled: str) -> None:
        self._stall_seconds = stall_seconds
        self._stalled = stalled
        self._thread = WorkThread(name)

    async def do(self, job: Callable[[], ResultT]) -> ResultT:
        """Does a job; returns what it returns, or raises what it raises.

        Raises:
            ComponentError: It takes too long. It goes on nevertheless, and what was asked for next waits for its end.
        """
        done = self._thread.do(job)
        await asyncio.wait({done}, timeout=self._stall_seconds)
        if not done.done():
            raise ComponentError(self._stalled)
        return done.result()

    async def close(self, last: Callable[[], None], timeout_seconds: float) -> None:
        """Does a last job, after that which it is at; waits for it, but not too long."""
        done = self._thread.do(last)
        self._thread.end()
        await asyncio.wait({done}, timeout=timeout_seconds)
