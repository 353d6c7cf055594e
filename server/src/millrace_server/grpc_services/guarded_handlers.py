"""The handlers of a service behind a guard, which know who calls before gRPC reads what is sent."""

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
from grpc import aio

from millrace_server.grpc_services.guard import SHOWN, Guard, Shown

_AUTHORIZATION = "authorization"

_STRANGER_SECONDS = 1.0
"""How long gRPC may collect a request of somebody unknown. It comes with the headers of its call."""


class GuardedHandlers(grpc.GenericRpcHandler):
    """The handlers of a service.

    gRPC decodes the metadata of a call for this, and would do so again for the handler: that costs as much as all that
    the guard does. Of requests of callers whom the guard does not know it keeps nothing: it reads a request before it
    calls the handler, up to `message_bytes_max` of each of thousands of calls, unless the handler is one of streams.
    """

    def __init__(
        self, guard: Guard, service: str, handlers: Mapping[str, Any], *, reads_from_strangers: bool = False
    ) -> None:
        """`reads_from_strangers` says that the handlers answer some requests of everybody, which come at once."""
        self._guard = guard
        self._handlers = {f"/{service}/{name}": handler for name, handler in handlers.items()}
        seconds = _STRANGER_SECONDS if reads_from_strangers else None
        self._for_strangers = {name: _for_strangers(handler, seconds) for name, handler in self._handlers.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        if (handler := self._handlers.get(method)) is None:
            return None
        shown: Shown = ()
        for key, value in handler_call_details.invocation_metadata or ():
            if key == _AUTHORIZATION:
                shown = (*shown, value)
        # The handler runs in the same task.
        SHOWN.set(shown)
        return handler if self._guard.knows(shown) else self._for_strangers[method]


def _for_strangers(handler: Any, seconds: float | None) -> Any:
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
