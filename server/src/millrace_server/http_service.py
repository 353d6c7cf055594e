"""Health, metrics and channels over HTTP, for probes, Prometheus and people with curl.

Nothing here changes anything, and nothing tells what events hold.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector, exposition
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from millrace_server.channel_metrics import ChannelCollector, describe_channels
from millrace_server.channels.hosted import ChannelState
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.version import VERSION

CONNECTIONS_MAX = 256
"""Beyond it, requests are answered with 503."""

CONNECTION_SECONDS_MAX = 60.0
"""A connection is closed after this long, so that nobody keeps one by sending a header letter by letter."""

_HEADER_BYTES_MAX = 16 * 1024
_CLOSING_SECONDS_MAX = 1


class HttpService:
    """The HTTP side of a server, in the event loop that runs it."""

    def __init__(self, registry: ChannelRegistry) -> None:
        self._registry = registry
        self._collectors = CollectorRegistry()
        self._collectors.register(ChannelCollector(registry))
        self._collectors.register(_ServerCollector(registry))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._collectors)
        self._server = _EmbeddedServer(self.app())
        self._serving: asyncio.Task[None] | None = None
        self._is_draining = False

    def app(self) -> Starlette:
        """The pages."""
        return Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/metrics", self._metrics),
                Route("/channels", self._channels),
            ]
        )

    async def start(self, bound: socket.socket) -> None:
        """Serves on a bound socket, which belongs to the service from now on."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        started = asyncio.create_task(self._server.has_started.wait())
        await asyncio.wait((self._serving, started), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            await self._serving

    def drain(self) -> None:
        """Tells those who probe to go elsewhere, while everything is still answered."""
        self._is_draining = True

    async def stop(self) -> None:
        """Closes the port and all connections."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving

    async def _healthz(self, _request: Request) -> Response:
        if self._is_draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        troubled = {one.name: one.state.value for one in self._registry.hosted() if one.state is not ChannelState.OPEN}
        return JSONResponse({"status": "serving"} | ({"channels": troubled} if troubled else {}))

    async def _metrics(self, request: Request) -> Response:
        encode: Callable[[Collector], bytes]
        # The library's own choice of a format stumbles over versions that are none.
        if "application/openmetrics-text" in request.headers.get("accept", ""):
            encode, content_type = openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST
        else:
            encode, content_type = exposition.generate_latest, exposition.CONTENT_TYPE_PLAIN_0_0_4
        # Channels may be read on this loop only; making text of a thousand channels may take its time elsewhere.
        metrics = _Collected(list(self._collectors.collect()))
        return Response(await asyncio.to_thread(encode, metrics), media_type=content_type)

    async def _channels(self, _request: Request) -> Response:
        return JSONResponse(describe_channels(self._registry.hosted()))


class _ServerCollector(Collector):
    def __init__(self, registry: ChannelRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "millrace_open_transactions",
            "Open transactions of all channels.",
            value=self._registry.transactions.limit.open_count,
        )
        yield InfoMetricFamily("millrace_server", "Which release serves.", value={"version": VERSION})


class _Collected(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


class _EmbeddedServer(uvicorn.Server):
    """A uvicorn that is a guest: signals and logging belong to its host."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_ShortLivedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS_MAX,
                h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
                timeout_graceful_shutdown=_CLOSING_SECONDS_MAX,
            )
        )
        self.has_started = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()


class _ShortLivedProtocol(H11Protocol):
    """A connection that ends by itself, after the answer that is under way, if any."""

    _end: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._end = self.loop.call_later(CONNECTION_SECONDS_MAX, self.shutdown)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        super().connection_lost(exc)
