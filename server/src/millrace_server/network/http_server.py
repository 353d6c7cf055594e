"""An HTTP server in an existing event loop, without uvicorn's signal handlers and log."""

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from millrace_server.network.accepting import Acceptor, ConnectionSlot, ConnectionSlots
from millrace_server.network.http_requests import HEAD_BYTES_MAX

_CERTIFICATE = "certificate"
_FIXED_HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_OWN_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Defaults, which a response may override, such as a page with scripts."""

SECURITY_HEADERS = _FIXED_HEADERS | _OWN_HEADERS
"""The security headers of responses."""

_DATE_SECONDS = 1.0

# Bad requests are answered with errors; warnings would let clients fill the log.
_log = logging.getLogger("uvicorn.error.embedded")
_log.setLevel(logging.ERROR)


class HttpLimits(NamedTuple):
    """Limits on the clients of an HTTP server."""

    connections_max: int
    """An additional connection closes the one that has been idle longest. While this many requests are in progress,
    additional ones get 503, on up to as many additional connections."""
    address_max: int | None = None
    """The same for each address: an additional connection closes an idle one of its address, or is closed if none is
    idle."""
    idle_seconds_max: float = 15.0
    """A connection is closed if a complete request head takes longer than this to arrive, or if its client does not
    read a response for this long."""
    closing_seconds_max: int = 1
    """Grace period of requests in progress when the server stops."""


class EmbeddedHttp:
    """A web application on a socket."""

    def __init__(self, app: ASGIApp, limits: HttpLimits, tls: ssl.SSLContext | None = None) -> None:
        self._server = _UvicornServer(_UvicornConfig(app, limits, tls))
        self._serving: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        """Serves on a bound socket and takes ownership of it."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        started = asyncio.create_task(self._server.has_started.wait())
        await asyncio.wait((self._serving, started), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            await self._serving

    async def wait_ended(self) -> None:
        """Returns after the server has stopped; raises the error if it failed."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def stop(self) -> None:
        """Closes the port and all connections, after the requests in progress."""
        self._server.request_stop()
        if self._serving is not None:
            await self._serving


class _UvicornConfig(uvicorn.Config):
    def __init__(self, app: ASGIApp, limits: HttpLimits, tls: ssl.SSLContext | None) -> None:
        self.limits = limits
        self.tls = tls
        super().__init__(
            _WithOwnHeaders(app),
            http=_UvicornProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # uvicorn's limit includes the connection of the request.
            limit_concurrency=limits.connections_max + 1,
            headers=list(_FIXED_HEADERS.items()),
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            # The protocol below closes idle connections; this timeout, in whole seconds, never expires earlier.
            timeout_keep_alive=math.ceil(limits.idle_seconds_max),
            timeout_graceful_shutdown=limits.closing_seconds_max,
        )


class _WithOwnHeaders:
    """Adds the default headers that a response lacks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for key, value in _OWN_HEADERS.items():
                    headers.setdefault(key, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _UvicornServer(uvicorn.Server):
    config: _UvicornConfig

    def __init__(self, config: _UvicornConfig) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()
        self._stop_requested = asyncio.Event()

    def request_stop(self) -> None:
        self.should_exit = True
        self._stop_requested.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        limits = self.config.limits
        slots = ConnectionSlots(limits.connections_max, limits.address_max, spare_count=limits.connections_max)
        # uvicorn's own listener does not count connections during their TLS handshake.
        self.servers = [
            Acceptor(bound, slots, self._make_protocol, self.config.tls)  # type: ignore[misc] # it has the methods that uvicorn calls
            for bound in sockets or ()
        ]
        self.started = True
        self.has_started.set()

    def _make_protocol(self, slot: ConnectionSlot) -> "_UvicornProtocol":
        return _UvicornProtocol(slot, config=self.config, server_state=self.server_state, app_state={})

    async def main_loop(self) -> None:
        # uvicorn's own loop wakes up ten times a second. A tick with counter 0 updates the Date header.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_DATE_SECONDS):
                    await self._stop_requested.wait()


def certificate_of(scope: Scope) -> bytes | None:
    """Returns the certificate of a request's client, in DER; None without a valid one."""
    certificate: bytes | None = scope["state"].get(_CERTIFICATE)
    return certificate


class _UvicornProtocol(H11Protocol):
    """A connection that is closed if no request arrives in time, or if a new connection needs its slot."""

    config: _UvicornConfig
    _idle: asyncio.TimerHandle
    _unread: asyncio.TimerHandle | None = None

    def __init__(self, slot: ConnectionSlot, **parts: Any) -> None:
        super().__init__(**parts)
        self._slot = slot

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.logger = _log
        tls = transport.get_extra_info("ssl_object")
        self.app_state = {_CERTIFICATE: None if tls is None else tls.getpeercert(binary_form=True)}
        self._slot.abort = self._abort
        self._await_request()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle and not self.cycle.response_complete:  # type: ignore[truthy-bool] # None before the first request
            self._end_wait()

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        self._slot.release()
        self._end_unread()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.config.limits.idle_seconds_max, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_unread()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is None or not self.cycle.response_started:  # type: ignore[redundant-expr] # as above
            headers = SECURITY_HEADERS | {"Content-Type": "text/plain", "Connection": "close"}
            lines = ["HTTP/1.1 400 Bad Request", *(f"{key}: {value}" for key, value in headers.items()), "", msg]
            self.transport.write("\r\n".join(lines).encode())
        self.transport.close()

    def _abort(self) -> None:
        self._end_wait()
        self.connections.discard(self)
        self.transport.abort()

    def _await_request(self) -> None:
        self._slot.mark_idle()
        self._idle = self.loop.call_later(self.config.limits.idle_seconds_max, self._end_idle)

    def _end_idle(self) -> None:
        # A graceful close would wait for a client that does not read.
        if self.transport.get_write_buffer_size():
            self._abort()
        else:
            self.shutdown()

    def _end_wait(self) -> None:
        self._idle.cancel()
        self._slot.mark_busy()

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
