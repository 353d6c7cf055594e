"""The connection to the engine: NATS on its own event loop, which any thread may use."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import uvloop
from nats.js.client import JetStreamContext

from millrace_server.replication.connection import Connection
from millrace_server.replication.engine_access import EngineAccess
from millrace_server.replication.engine_settings import EngineSettings
from millrace_server.replication.lone_connection import LoneConnection, cancel
from millrace_server.replication.sync_check import warn_of_missing_syncs

VERSION_MIN = (2, 12)
"""Older servers ignore features that they do not know, rather than refuse them."""

MESSAGE_BYTES_MIN = 64 << 10
"""Larger groups of records are several messages, but each of these is synced by a quorum."""

CALL_SECONDS = 3.0
"""How long one request waits for its response."""

_CONNECT_SECONDS = 10.0

ResultT = TypeVar("ResultT")

Done = Callable[[asyncio.Future[ResultT]], object]
"""Called with a future that is done."""


class EngineError(OSError):
    """Raised when the engine cannot be reached or used; the message is for the operator, and has no secret."""


class Engine:
    """A connection to NATS, which is made again whenever it is lost.

    Attributes:
        lone: Another one, for lone appends; None without `connect_lone`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, servers: Sequence[str], access: EngineAccess
    ) -> None:
        self._loop = loop
        self._thread = thread
        self._servers = servers
        self._access = access
        self.nats = Connection(access)
        self.lone: LoneConnection | None = None
        self.jetstream: JetStreamContext
        self._connection_lost: asyncio.Event

    @classmethod
    async def connected(cls, servers: Sequence[str], access: EngineAccess | None = None) -> Self:
        """Connects to one of the servers, and later to any of them.

        Args:
            servers: URLs.
            access: TLS, and who this server is.

        Raises:
            EngineError: None can be reached within 10 seconds, or one of them refuses this server, is too old, or takes
                small messages only.
        """
        # It sends a message's pieces as they are, where asyncio's own loop joins them.
        loop = uvloop.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="engine", daemon=True)
        thread.start()
        engine = cls(loop, thread, servers, access or EngineAccess())
        try:
            await asyncio.wrap_future(engine.call(engine._connect()))
        except BaseException:
            await asyncio.to_thread(engine.close)
            raise
        return engine

    @classmethod
    async def of(cls, settings: EngineSettings) -> Self:
        """Connects as the settings say, and warns if the engine does not sync; raises what `connected` raises."""
        engine = await cls.connected(settings.servers, settings)
        try:
            await warn_of_missing_syncs(settings.monitoring_urls)
        except BaseException:
            await asyncio.to_thread(engine.close)
            raise
        return engine

    def connect_lone(self) -> None:
        """Begins to connect once more, on the running event loop, on which the channels then must be."""
        self.lone = LoneConnection(self._servers, self._access)

    async def _connect(self) -> None:
        self._connection_lost = asyncio.Event()
        connecting = asyncio.ensure_future(self.nats.open(self._servers, self._note_loss))
        await asyncio.wait({connecting}, timeout=_CONNECT_SECONDS)
        await cancel(connecting)
        failure = TimeoutError() if connecting.cancelled() else connecting.exception()
        if failure is not None:
            why = self.nats.last_error or failure
            raise EngineError(f"none of {', '.join(self._servers)} can be used: {str(why) or type(why).__name__}")
        self._check_limits()
        self.jetstream = self.nats.jetstream(timeout=CALL_SECONDS)

    def _check_limits(self) -> None:
        url = self.nats.connected_url
        assert url is not None, "it is connected"
        found = self.nats.connected_server_version
        version = (found.major, found.minor, found.patch)
        if version < VERSION_MIN:
            shown, wanted = (".".join(map(str, each)) for each in (version, VERSION_MIN))
            raise EngineError(f"{url.netloc}: is nats-server {shown}; at least {wanted} is needed")
        if self.message_bytes_max < MESSAGE_BYTES_MIN:
            raise EngineError(
                f"{url.netloc}: accepts {self.message_bytes_max} bytes in a message (max_payload); at least "
                f"{MESSAGE_BYTES_MIN} are needed"
            )

    def _note_loss(self) -> None:
        self._connection_lost.set()
        self._connection_lost = asyncio.Event()

    async def request(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Awaits a request of the connection; raises ConnectionError as soon as the connection is lost."""
        responding = asyncio.ensure_future(coroutine)
        losing = asyncio.ensure_future(self._connection_lost.wait())
        try:
            await asyncio.wait({responding, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not responding.done():
                raise ConnectionError("the connection to the engine was lost")
            return responding.result()
        finally:
            responding.cancel()
            losing.cancel()

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the engine takes, with its headers."""
        return self.nats.max_payload

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> "Future[ResultT]":
        """Runs a coroutine on the connection's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def start(self, coroutine: Coroutine[Any, Any, ResultT], done: Done[ResultT]) -> None:
        """Runs a coroutine on the connection's event loop and calls back there, in half the time that `call` takes."""
        self._loop.call_soon_threadsafe(self._start, coroutine, done)

    def _start(self, coroutine: Coroutine[Any, Any, ResultT], done: Done[ResultT]) -> None:
        self._loop.create_task(coroutine).add_done_callback(done)

    def call_soon(self, act: Callable[[], object]) -> None:
        """Calls something on the connection's event loop."""
        self._loop.call_soon_threadsafe(act)

    def close(self) -> None:
        """Closes the connections; blocks, but not for an engine that does not respond.

        The event loop of a lone one must continue in the meantime.
        """
        if self.lone is not None:
            self.lone.close_from_thread()
        self.call(self._end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        await self.nats.close()
        # A connection that broke in the meantime leaves some behind.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
