"""Reads on a thread, one portion ahead of its use."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from millrace_server.agent.worker_thread import WorkThread

PortionT = TypeVar("PortionT")


class ReadAhead(Generic[PortionT]):
    """Has the next portion read while the one before it is used.

    Args:
        read: The next portion, None at the end.
        thread: Where it is called.
    """

    def __init__(self, read: Callable[[], PortionT | None], thread: WorkThread) -> None:
        self._read = read
        self._thread = thread
        self._reading = self._begin()

    def _begin(self) -> "asyncio.Future[PortionT | None]":
        return self._thread.do(self._read)

    async def next(self) -> PortionT | None:
        """The next portion, None at the end; raises what reading it has raised. May be cancelled and called again."""
        # Shielded, since a thread goes on whatever happens to those who wait for it.
        portion = await asyncio.shield(self._reading)
        if portion is not None:
            self._reading = self._begin()
        return portion

    async def close(self) -> None:
        """Waits until nothing is being read any more; what was read and not used is forgotten."""
        await asyncio.wait({self._reading})
