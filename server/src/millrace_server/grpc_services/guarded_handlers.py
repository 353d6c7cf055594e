"""The handlers of a service behind a guard, which authenticate a call before gRPC reads its request."""

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
from grpc import aio

from millrace_server.grpc_services.guard import AUTHORIZATIONS, Authorizations, Guard

_AUTHORIZATION = "authorization"

_UNAUTHENTICATED_SECONDS = 1.0
"""How long the request of an unauthenticated call may take to arrive."""


class GuardedHandlers(grpc.GenericRpcHandler):
    """The handlers of a service.

    Decoding the metadata of a call costs as much as the whole guard, so that happens here only, and not again in the
    handler. Requests of unauthenticated calls are not buffered: gRPC reads the request of a unary handler before it
    calls the handler, up to `message_bytes_max` for each of thousands of calls, but not that of a streaming handler.
    """

    def __init__(
        self, guard: Guard, service: str, handlers: Mapping[str, Any], *, reads_unauthenticated: bool = False
    ) -> None:
        """`reads_unauthenticated`: the handlers answer some unauthenticated requests, which must arrive promptly."""
        self._guard = guard
        self._handlers = {f"/{service}/{name}": handler for name, handler in handlers.items()}
        seconds = _UNAUTHENTICATED_SECONDS if reads_unauthenticated else None
        self._for_unauthenticated = {
            name: _for_unauthenticated(handler, seconds) for name, handler in self._handlers.items()
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


def _for_unauthenticated(handler: Any, seconds: float | None) -> Any:
    """Returns a handler that reads a request within some seconds, or none at all, and then calls the given one."""
    if handler.request_streaming:
        return handler
    serve = handler.unary_unary or handler.unary_stream

    async def handle(_requests: object, context: Any) -> Any:
        request = None
        if seconds is not None:
            try:
                async with asyncio.timeout(seconds):
                    request = await context.read()
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not arrive in time")
            if request is aio.EOF:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no request")
        return await serve(request, context)

    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(handle, handler.request_deserializer, handler.response_serializer)
