"""The handlers of a service behind a guard, which authenticate a call before gRPC reads its request."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from grpc import aio

from millrace_server.agent.components import Components
from millrace_server.errors import MillraceError
from millrace_server.grpc_services.guard import AUTHORIZATIONS, Authorizations, Guard, Rule
from millrace_server.grpc_services.rules import health_rule
from millrace_server.grpc_services.status import end_status

_AUTHORIZATION = "authorization"

_UNAUTHENTICATED_SECONDS = 1.0
"""How long the request of an unauthenticated call may take to arrive."""

_OPEN_STREAMS_MAX = 1_000
"""Maximum number of unauthenticated Health watches."""


class GuardedHandlers(grpc.GenericRpcHandler):
    """The handlers of a service.

    Decoding the metadata of a call costs as much as the whole guard, so that happens here only, and not again in the
    handler. Requests of unauthenticated calls are not buffered: gRPC reads the request of a unary handler before it
    calls the handler, up to `message_bytes_max` for each of thousands of calls, but not that of a streaming handler.
    """

    def __init__(
        self, guard: Guard, service: str, handlers: Mapping[str, Any], *, reads_unauthenticated: bool = False
    ) -> None:
        """`reads_unauthenticated`: the handlers serve some unauthenticated requests, which must arrive promptly."""
        self._guard = guard
        self._handlers = {f"/{service}/{name}": handler for name, handler in handlers.items()}
        seconds = _UNAUTHENTICATED_SECONDS if reads_unauthenticated else None
        self._for_unauthenticated = {
            name: _for_unauthenticated(guard, handler, seconds) for name, handler in self._handlers.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        if (handler := self._handlers.get(method)) is None:
            return None
        authorizations: Authorizations = ()
        for key, value in handler_call_details.invocation_metadata or ():
            if key == _AUTHORIZATION:
                authorizations = (*authorizations, value)
        # The handler runs in the same task.
        AUTHORIZATIONS.set(authorizations)
        return handler if self._guard.is_authenticated(authorizations) else self._for_unauthenticated[method]


def _for_unauthenticated(guard: Guard, handler: Any, seconds: float | None) -> Any:
    """Returns a handler that reads a request within some seconds, or none at all, and then calls the given one.

    If the caller is authenticated by keys that the issuer has published just now, it reads the request like any other.
    """
    if handler.request_streaming:
        return handler
    serve = handler.unary_unary or handler.unary_stream

    async def handle(_requests: object, context: Any) -> Any:
        request = None
        is_authenticated = await guard.is_authenticated_soon(AUTHORIZATIONS.get())
        if is_authenticated or seconds is not None:
            try:
                async with asyncio.timeout(None if is_authenticated else seconds):
                    request = await context.read()
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not arrive in time")
            if request is aio.EOF:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no request")
        return await serve(request, context)

    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(handle, handler.request_deserializer, handler.response_serializer)


class GuardedServer:
    """Registers the services of gRPC's own packages behind a guard with one rule."""

    reads_unauthenticated = False

    def __init__(self, server: aio.Server, guard: Guard, rule: Rule) -> None:
        self._server = server
        self._guard = guard
        self._enter = partial(guard.enter, rule)
        self._open_streams_count = 0

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """Does nothing: the generated code gives the same handlers to `add_registered_method_handlers`."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        guarded = {name: self._guarded(f"{service}/{name}", handler) for name, handler in handlers.items()}
        guarded_handlers = GuardedHandlers(
            self._guard, service, guarded, reads_unauthenticated=self.reads_unauthenticated
        )
        self._server.add_generic_rpc_handlers((guarded_handlers,))

    def is_open(self, _request: Any) -> bool:
        """Whether this request needs no authentication."""
        return False

    def _guarded(self, name: str, handler: Any) -> Any:
        async def handle(request: Any, context: Any) -> Any:
            serve = handler.unary_unary or handler.unary_stream
            if self.is_open(request):
                return await self._serve_unauthenticated(handler, request, context)
            try:
                with self._enter(name, context) as call:
                    call.check(request)
                    return await serve(request, context)
            except MillraceError as error:
                status = end_status(error, None)
            await context.abort(*status)
            return None

        async def stream(requests: Any, context: Any) -> AsyncGenerator[Any]:
            try:
                with self._enter(name, context) as call:
                    call.check(None)
                    async for response in handler.stream_stream(requests, context):
                        yield response
            except MillraceError as error:
                status = end_status(error, None)
            else:
                return
            await context.abort(*status)

        if handler.stream_stream:
            return handler._replace(stream_stream=stream)
        shape = "unary_unary" if handler.unary_unary else "unary_stream"
        return handler._replace(**{shape: handle})

    async def _serve_unauthenticated(self, handler: Any, request: Any, context: Any) -> Any:
        if handler.unary_unary:
            return await handler.unary_unary(request, context)
        if self._open_streams_count >= _OPEN_STREAMS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watches without a token; try again later")
        self._open_streams_count += 1
        try:
            return await handler.unary_stream(request, context)
        finally:
            self._open_streams_count -= 1


class GuardedHealth(GuardedServer):
    """The server's health needs no authentication; that of its parts needs `describe`."""

    reads_unauthenticated = True

    def __init__(self, server: aio.Server, guard: Guard, components: Components) -> None:
        def channels_of(kind: str, name: str) -> Sequence[str]:
            return next((one.channels for one in components if (f"{one.kind.key}s", one.name) == (kind, name)), ())

        super().__init__(server, guard, health_rule(channels_of))

    def is_open(self, request: Any) -> bool:
        return not request.service
