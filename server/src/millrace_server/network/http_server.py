"""An HTTP server as a guest of the event loop that runs everything else: signals and the log belong to its host."""

import asyncio
import logging
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEADER_BYTES_MAX = 16 * 1024
_DATE_SECONDS = 1.0

# Bad requests and too many of them are told to those who send them; as warnings they would be a way to fill the log.
_log = logging.getLogger("uvicorn.error.embedded")
_log.setLevel(logging.ERROR)


class HttpLimits(NamedTuple):
    """What bounds those who connect."""

    connections_max: int
    """Beyond it requests are answered with 503, and beyond twice as many connections are closed at once."""
    idle_seconds_max: float = 60.0
    """A connection is closed that has sent no whole request head for this long, be it letter by letter."""
    closing_seconds_max: int = 1
    """When the server stops, requests that are being answered may take this long."""


class EmbeddedHttp:
    """A web application on a socket.

    Args:
        app: What answers.
        limits: What bounds those who ask.
    """

    def __init__(self, app: Starlette, limits: HttpLimits) -> None:
        self._server = _GuestServer(_GuestConfig(app, limits))
        self._serving: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        """Serves on a bound socket, which belongs to the server from now on."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        started = asyncio.create_task(self._server.has_started.wait())
        await asyncio.wait((self._serving, started), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            await self._serving

    async def wait_ended(self) -> None:
        """Returns when it serves no more; raises why, where it was not told to stop."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def stop(self) -> None:
        """Closes the port and all connections, those last whose requests are being answered."""
        self._server.tell_to_stop()
        if self._serving is not None:
            await self._serving


class _GuestConfig(uvicorn.Config):
    def __init__(self, app: Starlette, limits: HttpLimits) -> None:
        self.limits = limits
        super().__init__(
            app,
            http=_GuestProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.connections_max,
            h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
            # A connection's own clock runs between requests, too; this one, in whole seconds, is never earlier.
            timeout_keep_alive=math.ceil(limits.idle_seconds_max),
            timeout_graceful_shutdown=limits.closing_seconds_max,
        )


class _GuestServer(uvicorn.Server):
    def __init__(self, config: _GuestConfig) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()
        self._is_to_stop = asyncio.Event()

    def tell_to_stop(self) -> None:
        self.should_exit = True
        self._is_to_stop.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()

    async def main_loop(self) -> None:
        # uvicorn's own looks ten times a second whether it is to stop. At count 0 a tick renews the answers' date.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_DATE_SECONDS):
                    await self._is_to_stop.wait()


class _GuestProtocol(H11Protocol):
    """A connection that is closed when it sends no request for too long."""

    config: _GuestConfig
    _idle: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.logger = _log
        self._await_request()
        if len(self.connections) > 2 * self.config.limits.connections_max:
            transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle and not self.cycle.response_complete:  # type: ignore[truthy-bool] # None before the first request
            self._idle.cancel()

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.cancel()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._idle = self.loop.call_later(self.config.limits.idle_seconds_max, self.shutdown)
