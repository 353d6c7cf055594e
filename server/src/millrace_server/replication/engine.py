"""The connection to the engine: NATS on an event loop of its own, which any thread may use."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import nats
import nats.errors
import structlog
from nats.js.client import JetStreamContext

from millrace_server.replication.connection import Connection

_log = structlog.stdlib.get_logger(__name__)

VERSION_MIN = (2, 12)
"""Older servers ignore features that they do not know, rather than refuse them."""

CALL_SECONDS = 3.0
"""How long one request waits for its answer."""

_CONNECT_SECONDS = 10
_PING_SECONDS = 3
_RECONNECT_SECONDS = 0.25
_FOREVER = -1

ResultT = TypeVar("ResultT")


class EngineError(OSError):
    """Raised when the engine cannot be reached or used; the message is for the operator."""


class Engine:
    """A connection to NATS, which is made again whenever it is lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop = loop
        self._thread = thread
        self.nats = Connection()
        self.jetstream: JetStreamContext
        self._connection_lost: asyncio.Event

    @classmethod
    async def connected(cls, servers: Sequence[str], **options: Any) -> Self:
        """Connects to one of the servers, and later to any of them.

        Args:
            servers: URLs.
            options: Further options of `nats.connect`, such as credentials and TLS.

        Raises:
            EngineError: None can be reached within 10 seconds, or its version is too old.
        """
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="engine", daemon=True)
        thread.start()
        engine = cls(loop, thread)
        try:
            await asyncio.wrap_future(engine.call(engine._connect(servers, options)))
        except BaseException:
            await asyncio.to_thread(engine.close)
            raise
        return engine

    async def _connect(self, servers: Sequence[str], options: dict[str, Any]) -> None:
        self._connection_lost = asyncio.Event()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self.nats.connect(
                    list(servers),
                    name="millrace",
                    error_cb=_note,
                    disconnected_cb=self._note_loss,
                    max_reconnect_attempts=_FOREVER,
                    reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type] # any number is accepted
                    # A server that stands still is left after two of them.
                    ping_interval=_PING_SECONDS,
                    **options,
                )
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise EngineError(
                f"none of {', '.join(servers)} can be reached: {str(error) or type(error).__name__}"
            ) from error
        version = self.nats.connected_server_version
        if (version.major, version.minor) < VERSION_MIN:
            raise EngineError(f"{servers[0]}: is nats-server {version}; at least 2.12 is needed")
        await self.nats.expect_answers()
        self.jetstream = self.nats.jetstream(timeout=CALL_SECONDS)

    async def _note_loss(self) -> None:
        # Those that wait for an answer on this connection get none.
        self.nats.fail_waiting()
        self._connection_lost.set()
        self._connection_lost = asyncio.Event()

    async def request(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Awaits a request of the connection; raises ConnectionError as soon as the connection is lost."""
        answering = asyncio.ensure_future(coroutine)
        losing = asyncio.ensure_future(self._connection_lost.wait())
        try:
            await asyncio.wait({answering, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ConnectionError("the connection to the engine was lost")
            return answering.result()
        finally:
            answering.cancel()
            losing.cancel()

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the engine takes, with its headers."""
        return self.nats.max_payload

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> "Future[ResultT]":
        """Runs a coroutine on the connection's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Closes the connection; blocks."""
        self.call(self.nats.close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _note(error: Exception) -> None:
    _log.debug("the connection to the engine has a problem", error=str(error))
