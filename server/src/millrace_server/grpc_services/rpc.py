"""How a method becomes an RPC: parsing, limits, errors and answers, the same way for all."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from typing import NamedTuple, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import Message
from grpc import aio

from millrace_server.errors import InternalError, MillraceError
from millrace_server.grpc_services.inflight import InflightBytes
from millrace_server.grpc_services.requests import Columns, EventsRequestT, RequestT, parse, parse_apart
from millrace_server.grpc_services.status import code_of, status_of

_log = structlog.get_logger(__name__)

Answer = Message | bytes
Context = aio.ServicerContext[bytes, bytes]
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"

_NAMES = {"channel": "channel", "name": "channel", "txn_id": "txn_id"}
_METADATA_LENGTH_MAX = 256


class Rpcs:
    """Makes RPC handlers.

    gRPC hands requests over as bytes and takes answers as bytes: so bytes that are no protobuf get a proper refusal,
    the size of a request is known, and stored events go out as they are.
    """

    def __init__(self, inflight: InflightBytes) -> None:
        self._inflight = inflight

    def unary(self, kind: type[RequestT], serve: Callable[[RequestT], Awaitable[Answer]]) -> Handler:
        """One request, one answer."""

        async def handle(raw: bytes, context: Context) -> bytes:
            request = None
            try:
                with self._inflight.admit(len(raw), context.peer()):
                    request = parse(kind, raw)
                    return _encoded(await serve(request))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
                status = _status_for(error, request)
            del raw, request
            return await _abort(context, status)

        return grpc.unary_unary_rpc_method_handler(handle)

    def unary_with_events(
        self, kind: type[EventsRequestT], serve: Callable[[EventsRequestT, Columns | None], Awaitable[Answer]]
    ) -> Handler:
        """One request whose columns stay as they came, one answer."""

        async def handle(raw: bytes, context: Context) -> bytes:
            request = columns = None
            try:
                with self._inflight.admit(len(raw), context.peer()):
                    request, columns = parse_apart(kind, raw)
                    return _encoded(await serve(request, columns))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
                status = _status_for(error, request)
            del raw, request, columns
            return await _abort(context, status)

        return grpc.unary_unary_rpc_method_handler(handle)

    def server_stream(self, kind: type[RequestT], serve: Callable[[RequestT], AsyncGenerator[Answer]]) -> Handler:
        """One request, many answers."""

        async def handle(raw: bytes, context: Context) -> None:
            request = None
            try:
                with self._inflight.admit(len(raw), context.peer()):
                    request = parse(kind, raw)
                # Until it hears of the server, gRPC's client may begin a stream anew, and waits for ever where the
                # connection breaks before the first answer.
                await context.send_initial_metadata(())
                async with aclosing(serve(request)) as answers:
                    async for answer in answers:
                        await _send(context, answer)
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
                _refuse(context, error, request)

        return grpc.unary_stream_rpc_method_handler(handle)

    def stream(self, serve: Callable[["MessageStream"], Awaitable[None]]) -> Handler:
        """Messages both ways."""

        async def handle(_requests: AsyncIterator[bytes], context: Context) -> None:
            try:
                # Once, and before anything may cut an answer short: gRPC would send it again with the refusal, fail at
                # that, and leave the caller without either.
                await context.send_initial_metadata(())
                await serve(MessageStream(context, self._inflight))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
                _refuse(context, error, None)

        return grpc.stream_stream_rpc_method_handler(handle)


class MessageStream:
    """A stream of messages both ways."""

    def __init__(self, context: Context, inflight: InflightBytes) -> None:
        self._context = context
        self._inflight = inflight
        self._peer = context.peer()

    async def read(self) -> bytes | None:
        """The next message as it came; None once the caller has no more."""
        raw: object = await self._context.read()
        return raw if isinstance(raw, bytes) else None

    def admit(self, raw: bytes) -> AbstractContextManager[None]:
        """Counts a message as in work inside."""
        return self._inflight.admit(len(raw), self._peer)

    async def write(self, answer: Answer) -> None:
        """Sends a message; waits while the caller is slow to take them."""
        await _send(self._context, answer)


def refusal(error: Exception, request: Message | None) -> MillraceError:
    """The error as the caller is told it, with the names that the request was about."""
    if not isinstance(error, MillraceError):
        _log.error("internal error", request=type(request).__name__, exc_info=error)
        error = InternalError("internal error; the server's log tells more")
    for field, key in _NAMES.items():
        if request is not None and field in request.DESCRIPTOR.fields_by_name:
            error.metadata.setdefault(key, getattr(request, field))
    # Whatever a caller sends as a name, the refusal that quotes it must stay within what gRPC carries beside an answer.
    error.metadata = {key: value[:_METADATA_LENGTH_MAX] for key, value in error.metadata.items() if value}
    return error


class _Status(NamedTuple):
    """How a call ends: what its caller is told."""

    code: grpc.StatusCode
    sentence: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def _status_for(error: Exception, request: Message | None) -> _Status:
    refused = refusal(error, request)
    return _Status(
        code_of(refused), str(refused), (("grpc-status-details-bin", status_of(refused).SerializeToString()),)
    )


async def _abort(context: Context, status: _Status) -> NoReturn:
    """Ends a call that is answered with nothing but a status, which alone gRPC's clients take for one to be repeated.

    gRPC keeps the exception that this raises, and with it the frames that it passes, until Python next looks for
    garbage: so they must not hold what was requested, nor the error.
    """
    await context.abort(*status)


def _refuse(context: Context, error: Exception, request: Message | None) -> None:
    """Ends a stream with the error. Nobody repeats it unasked, since its answer has begun."""
    status = _status_for(error, request)
    context.set_trailing_metadata(status.trailing_metadata)
    context.set_details(status.sentence)
    context.set_code(status.code)


async def _send(context: Context, answer: Answer) -> None:
    try:
        await context.write(_encoded(answer))
    except aio.InternalError as error:
        # The caller left while this was being written, and gRPC has not got round to cancelling the call.
        raise asyncio.CancelledError from error


def _encoded(answer: Answer) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()
