"""The connection over which lone appends go."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from millrace_server.replication.connection import Connection
from millrace_server.replication.engine_access import EngineAccess
from millrace_server.wal.disk import Piece

_AGAIN_SECONDS = 0.25


class LoneConnection(Connection):
    """Is on the event loop of those who append, so that an append that waits for no other waits for no thread either.

    Two changes of threads take a twentieth of the time of an append of half a megabyte. All else goes over the engine's
    first connection, also the questions about a message that got no response here: leases are renewed on the event
    loop of that one, while this one may be busy.
    """

    def __init__(self, servers: Sequence[str], access: EngineAccess) -> None:
        """Begins to connect, on the running event loop."""
        super().__init__(access)
        self._loop = asyncio.get_running_loop()
        self._opening = self._loop.create_task(self.open(servers, lambda: None))
        self._is_silent = False

    def send(
        self, subject: str, headers: Mapping[str, str], pieces: Sequence[Piece], seconds: float
    ) -> "asyncio.Future[bytes]":
        """Sends a message; see `Connection.send`.

        Raises ConnectionError also while its server, which did not respond in time, may hang: otherwise each append
        would wait as long for it, though the first connection may be to another one.
        """
        if self._is_silent:
            raise ConnectionError("the engine's server did not respond")
        return super().send(subject, headers, pieces, seconds)

    def _give_up(self, reply: str) -> None:
        self._is_silent = True
        super()._give_up(reply)

    async def _process_pong(self) -> None:
        """Notes that the server responds, as it is asked to every few seconds and when a connection has been made."""
        self._is_silent = False
        await super()._process_pong()

    def close_from_thread(self) -> None:
        """Closes the connection from another thread; blocks, but not for an engine that does not respond."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()

    async def _end(self) -> None:
        await cancel(self._opening)
        await self.close()


async def cancel(task: "asyncio.Future[Any]") -> None:
    """Cancels a task unless it is done, and waits until it is."""
    while not task.done():
        # More than once: `asyncio.wait_for`, which nats-py uses, may swallow a cancellation.
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_SECONDS)
