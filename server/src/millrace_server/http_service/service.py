"""Health, metrics, channels and components over HTTP, for probes, Prometheus and curl.

All of this is read-only, without the content of events. The console, which also changes things, is a separate package.
"""

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector, exposition
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from millrace_server.access.audit import Audit
from millrace_server.access.control import AccessControl, credentials_of
from millrace_server.access.permissions import Permission
from millrace_server.agent.components import Component
from millrace_server.channels.registry import ChannelRegistry, TimeSlices
from millrace_server.configuration.settings import ServerSettings
from millrace_server.console.calls import peer_of
from millrace_server.console.routes import CHANGING_PATHS, Console
from millrace_server.errors import ForbiddenError, UnauthenticatedError
from millrace_server.grpc_services.guard import Authorizations
from millrace_server.http_service.channel_metrics import ChannelSamples, describe_channel
from millrace_server.http_service.component_metrics import ComponentCollector, describe_components
from millrace_server.http_service.gzip_stream import gzipped
from millrace_server.http_service.loop_lag import LoopLag
from millrace_server.http_service.server_metrics import HistogramCollector, ServerCollector
from millrace_server.network.accepting import ConnectionLimits
from millrace_server.network.http_requests import Refusal, RequestCheck, accepts_gzip
from millrace_server.network.http_server import EmbeddedHttp, HttpLimits, certificate_of
from millrace_server.network.tls import TlsFiles

_EOF = b"# EOF\n"  # The end of all metrics in the format of OpenMetrics.

_GZIP_CHANNELS_MIN = 40
"""The metrics of fewer channels take less than 64 KiB, which is not worth compressing."""

_HEALTHZ = "/healthz"
_METHODS = {"GET", "HEAD"}
_HIDES_DETAIL = "hides_detail"
"""A key in the state of a request."""


class HttpService:
    """The HTTP service of a server, in the server's event loop."""

    def __init__(  # noqa: PLR0913 - the parts of the server that it serves
        self,
        registry: ChannelRegistry,
        components: Iterable[Component] = (),
        tls: TlsFiles | None = None,
        access: AccessControl | None = None,
        settings: ServerSettings | None = None,
        *,
        console: Console | None = None,
    ) -> None:
        settings = settings or ServerSettings()
        self._check = RequestCheck(settings.http_listen, settings.own_http_hosts, "server.http_hosts")
        self._registry = registry
        self._components = components
        self._tls = tls
        self._access = access
        self._console = console
        self._collectors = CollectorRegistry()
        self._server_metrics = ServerCollector(registry, access)
        for own in (ComponentCollector(components), HistogramCollector(registry.histograms), self._server_metrics):
            self._collectors.register(own)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._collectors)
        limits = ConnectionLimits.of_http(settings.connections_max, settings.connections_per_address_max)
        self._server = EmbeddedHttp(self.app(), HttpLimits(*limits), None if tls is None else tls.http_context())
        self._loop_lag: LoopLag | None = None

    def app(self) -> ASGIApp:
        shielded = [
            Route("/metrics", self._metrics),
            Route("/channels", self._channels),
            Route("/components", self._list_components),
        ]
        certified = [Middleware(_CertifiedClients)] if self._tls and self._tls.requires_client_certificate else []
        shown_by = _headers_of if self._console is None else self._console.authorizations_of
        permitted = [Middleware(_PermittedClients, access=self._access, shown_by=shown_by)] if self._access else []
        console = [] if self._console is None else self._console.routes()
        guarded = [*console, Mount("/", routes=shielded, middleware=permitted)]
        routes = [Route(_HEALTHZ, self._healthz), Mount("/", routes=guarded, middleware=certified)]
        hides_detail = bool(certified or permitted)
        changing = () if self._console is None else CHANGING_PATHS
        starlette = Starlette(routes=routes, exception_handlers={404: _refuse_path})
        return _CheckedRequests(starlette, self._check, changing, hides_detail=hides_detail)

    async def start(self, bound: socket.socket) -> None:
        """Serves on a bound socket and takes ownership of it."""
        if self._console is not None:
            self._console.start()
        await self._server.start(bound)
        self._loop_lag = LoopLag(self._registry.histograms.loop_lags.of())

    def drain(self) -> None:
        """Fails health probes from now on, while all requests are still served."""
        self._server_metrics.is_draining = True

    async def stop(self) -> None:
        if self._console is not None:
            self._console.stop()
        if self._loop_lag is not None:
            self._loop_lag.stop()
        await self._server.stop()

    async def _healthz(self, request: Request) -> Response:
        if self._server_metrics.is_draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        if getattr(request.state, _HIDES_DETAIL):
            return JSONResponse({"status": "serving"})
        # A failed channel or component does not fail the probe: restarting the server would not repair it.
        channels = {one.name: one.state.value for one in self._registry.handles() if one.is_troubled}
        parts = {f"{one.kind.key}s/{one.name}": one.state.value for one in self._components if not one.state.is_healthy}
        troubled = {"channels": channels, "components": parts}
        return JSONResponse({"status": "serving"} | {what: those for what, those in troubled.items() if those})

    async def _metrics(self, request: Request) -> Response:
        encode: Callable[[Collector], bytes]
        # The library's own selection of a format fails on malformed versions.
        if "application/openmetrics-text" in request.headers.get("accept", ""):
            encode, content_type = openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST
        else:
            encode, content_type = exposition.generate_latest, exposition.CONTENT_TYPE_PLAIN_0_0_4
        samples = ChannelSamples()
        async for handle in self._registry.visit():
            samples.add(handle)
        others = list(self._collectors.collect())

        async def parts() -> AsyncIterator[bytes]:
            # On this loop, one piece at a time: a thread would hold the interpreter's lock for longer.
            slices = TimeSlices()
            for family, pieces in samples.families():
                yield encode(_Collected([family])).removesuffix(_EOF)
                for piece in pieces:
                    yield piece.encode()
                    await slices.pause_if_over()
            yield encode(_Collected(others))

        if len(self._registry) < _GZIP_CHANNELS_MIN or not accepts_gzip(request):
            return _PlainStream(parts(), media_type=content_type)
        return _PlainStream(gzipped(parts()), headers={"Content-Encoding": "gzip"}, media_type=content_type)

    async def _channels(self, _request: Request) -> Response:
        described = [json.dumps(describe_channel(handle))[1:-1] async for handle in self._registry.visit()]
        return Response(f"{{{', '.join(described)}}}", media_type="application/json")

    async def _list_components(self, _request: Request) -> Response:
        return JSONResponse(describe_components(self._components))


class _PlainStream(StreamingResponse):
    """Sends the pieces without watching for a disconnect, which would import anyio and block the event loop."""

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await self.stream_response(send)


class _CheckedRequests:
    """Refuses requests with a foreign Host or Origin. `/healthz` accepts any Host, but then shows no details.

    Only paths that begin with one of `changing` accept other methods than GET and HEAD.
    """

    def __init__(self, app: ASGIApp, check: RequestCheck, changing: tuple[str, ...], *, hides_detail: bool) -> None:
        self._app = app
        self._check = check
        self._changing = changing
        self._hides_detail = hides_detail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._check.refusal(scope)
        scope["state"][_HIDES_DETAIL] = self._hides_detail or refusal is not None
        if scope["path"] == _HEALTHZ:
            refusal = self._check.refusal(scope, is_open=True)
        app = self._app if refusal is None else refusal.response()
        if scope["method"] not in _METHODS and not scope["path"].startswith(self._changing):
            app = _METHOD_REFUSAL.response({"Allow": ", ".join(sorted(_METHODS))})
        await app(scope, receive, send)


class _CertifiedClients:
    """Refuses the requests of clients without a certificate. With an invalid one, the handshake fails."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app if certificate_of(scope) else _CERTIFICATE_REFUSAL.response()
        await app(scope, receive, send)


async def _refuse_path(request: Request, _error: Exception) -> Response:
    return Refusal(404, "NOT_FOUND", f"there is nothing to {request.method} at {request.url.path[:128]!a}").response()


_METHOD_REFUSAL = Refusal(405, "METHOD_NOT_ALLOWED", "only GET and HEAD are allowed here")
_CERTIFICATE_REFUSAL = Refusal(401, UnauthenticatedError.reason, "this server requires a client certificate")


class _PermittedClients:
    """Requires `describe:*`, since all paths show all channels."""

    def __init__(
        self, app: ASGIApp, access: AccessControl, shown_by: Callable[[HTTPConnection], Authorizations]
    ) -> None:
        self._app = app
        self._access = access
        self._shown_by = shown_by
        self._audit = Audit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, identity = HTTPConnection(scope), None
        try:
            identity = self._access.identify(credentials_of(self._shown_by(request), certificate_of(scope)))
            if not self._access.rights_of(identity).may_everywhere(Permission.DESCRIBE):
                raise ForbiddenError(f"no role of {identity.name!a} allows describe:*")  # noqa: TRY301 - audited below
        except (UnauthenticatedError, ForbiddenError) as error:
            self._audit.note(identity, peer_of(request), f"HTTP {scope['path']}", error, administers=False)
            status, headers = (403, {}) if identity else (401, {"WWW-Authenticate": "Bearer"})
            refusal = Refusal(status, error.reason, str(error), error.retry_delay_seconds)
            await refusal.response(headers)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _headers_of(request: HTTPConnection) -> Authorizations:
    return tuple(request.headers.getlist("authorization"))


class _Collected(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics
