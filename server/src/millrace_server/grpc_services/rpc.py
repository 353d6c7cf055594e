"""RPC handlers: parsing, limits on bytes in flight, errors and responses, the same for all methods."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from time import monotonic
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import structlog
from google.protobuf.message import Message
from grpc import aio

from millrace.tracing import TRACING, current_trace_id
from millrace_server.access.audit import Audit
from millrace_server.access.quotas import UNBOUNDED
from millrace_server.errors import MillraceError, OverloadedError
from millrace_server.grpc_services.call import AuditedCall, Call
from millrace_server.grpc_services.guard import Guard
from millrace_server.grpc_services.messages import Columns, EventsRequestT, RequestT, parse, parse_apart
from millrace_server.grpc_services.rules import RULES
from millrace_server.grpc_services.status import EndStatus, end_status, refusal
from millrace_server.grpc_services.traced_calls import TracedCall
from millrace_server.histograms import Histograms

_log = structlog.get_logger(__name__)

Response = Message | bytes
Context = aio.ServicerContext[bytes, bytes]
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
_ReceivedT = TypeVar("_ReceivedT")
_ResponseT = TypeVar("_ResponseT")
_Handle = Callable[[_ReceivedT, Context], Coroutine[Any, Any, _ResponseT]]


class InflightBytes:
    """Bounds the memory of requests in progress, in total and for each connection.

    A single request is always admitted: the message limit bounds it.
    """

    def __init__(self, total_max: int, connection_max: int) -> None:
        self._total_max = total_max
        self._connection_max = connection_max
        self._total = 0
        self._by_connection: dict[str, int] = {}

    def admit(self, byte_count: int, peer: str) -> "Admission":
        """Counts a request of a connection until the returned context ends; refuses one that exceeds a limit."""
        self.count(byte_count, peer)
        return Admission(self, byte_count, peer)

    def count(self, byte_count: int, peer: str) -> None:
        """Does the same until `release`."""
        held = self._by_connection.get(peer, 0)
        if held and held + byte_count > self._connection_max:
            raise _overloaded("this connection", held, self._connection_max)
        if self._total and self._total + byte_count > self._total_max:
            raise _overloaded("the server", self._total, self._total_max)
        self._total += byte_count
        self._by_connection[peer] = held + byte_count

    def release(self, byte_count: int, peer: str) -> None:
        self._total -= byte_count
        remaining = self._by_connection.pop(peer, 0) - byte_count
        if remaining > 0:
            self._by_connection[peer] = remaining


class Admission:
    """A context manager that counts a request as in progress."""

    __slots__ = ("_byte_count", "_inflight", "_peer")

    def __init__(self, inflight: InflightBytes, byte_count: int, peer: str) -> None:
        self._inflight = inflight
        self._byte_count = byte_count
        self._peer = peer

    def __enter__(self) -> None:
        # `InflightBytes.admit` has counted it.
        return

    def __exit__(self, *_: object) -> None:
        self._inflight.release(self._byte_count, self._peer)


def _overloaded(whose: str, held: int, maximum: int) -> OverloadedError:
    return OverloadedError(
        f"requests of {whose} that are in progress hold {held} bytes of at most {maximum}; send less at a time",
        retry_delay_seconds=_RETRY_DELAY_SECONDS,
    )


def _method_of(kind: type[Message]) -> str:
    """Returns the name of the RPC with this request."""
    return kind.DESCRIPTOR.name.removesuffix("Request")


class Rpcs:
    """Creates RPC handlers.

    Requests and responses pass gRPC as bytes. So malformed protobuf gets a Millrace error, the size of a request is
    known, and stored events are sent without being encoded again.
    """

    def __init__(
        self,
        inflight: InflightBytes,
        count_refusal: Callable[[MillraceError, Sequence[str]], None] = lambda _error, _txn_ids: None,
        guard: Guard | None = None,
        histograms: Histograms | None = None,
    ) -> None:
        self._durations = (histograms or Histograms()).rpcs
        self._inflight = inflight
        self._count_refusal = count_refusal
        self._guard = guard

    def _end(self, error: Exception, request: Message | None) -> EndStatus:
        refused = refusal(error, request)
        self._count_refusal(refused, getattr(request, "txn_ids", None) or [getattr(request, "txn_id", "")])
        return end_status(refused, request)

    def _entrance(self, kind: type[Message]) -> Callable[[Context], Call]:
        """Returns what admits the calls of an RPC, which has the name of its request."""
        name = _method_of(kind)
        if self._guard is not None:
            return partial(self._guard.enter, RULES[name], name)
        if name in RULES and RULES[name].administers:
            audit = Audit()
            return lambda context: AuditedCall(audit, name, context.peer())
        return lambda context: Call(context.peer())

    def _traced_entrance(self, kind: type[Message]) -> Callable[[Context], Call | TracedCall]:
        """Returns the same, with a span of each call if tracing is on."""
        enter, spans, name = self._entrance(kind), TRACING.spans, _method_of(kind)
        # A span is exported when it ends, which for a watch may be days away.
        if spans is None or name.startswith("Watch"):
            return enter
        [service] = kind.DESCRIPTOR.file.services_by_name.values()
        method = f"{service.full_name}/{name}"
        return lambda context: TracedCall(spans, method, enter(context), context)

    def _timed(self, kind: type[Message], handle: _Handle[_ReceivedT, _ResponseT]) -> _Handle[_ReceivedT, _ResponseT]:
        """Returns a handler that also counts the duration of each call, by the code that the call ends with."""
        durations, method = self._durations, _method_of(kind)
        succeeded = durations.of(method, "OK")

        async def timed(received: _ReceivedT, context: Context) -> _ResponseT:
            started = monotonic()
            responding = handle(received, context)
            # See `_abort`.
            del received
            code: grpc.StatusCode | None = grpc.StatusCode.CANCELLED
            try:
                response = await responding
            except Exception:
                code = context.code()
                raise
            else:
                # A stream that fails returns nonetheless.
                code = context.code()
                return response
            finally:
                histogram = succeeded if code is None else durations.of(method, code.name)
                histogram.observe_traced(monotonic() - started, current_trace_id())

        return timed

    def unary(self, kind: type[RequestT], serve: Callable[[RequestT], Awaitable[Response]]) -> Handler:
        """Handles one request with one response."""
        return self._unary(kind, lambda kind, raw: (parse(kind, raw),), serve)

    def unary_with_events(
        self, kind: type[EventsRequestT], serve: Callable[[EventsRequestT, Columns | None], Awaitable[Response]]
    ) -> Handler:
        """Handles one request, whose columns stay encoded, with one response."""
        return self._unary(kind, parse_apart, serve)

    def _unary(
        self,
        kind: type[RequestT],
        parsed_from: Callable[[type[RequestT], bytes], tuple[Any, ...]],
        serve: Callable[..., Awaitable[Response]],
    ) -> Handler:
        """Handles one request with one response; `parsed_from` returns the arguments of `serve`, the request first."""
        enter, inflight = self._traced_entrance(kind), self._inflight
        durations, method = self._durations, _method_of(kind)
        succeeded = durations.of(method, "OK")

        # A small call is so short that each function call in it is noticeable. So this function does inline what
        # `_timed` and `InflightBytes.admit` do for streams.
        async def handle(raw: bytes, context: Context) -> bytes:
            started = monotonic()
            parsed: tuple[Any, ...] = (None,)
            histogram = None
            try:
                with enter(context) as call:
                    # Not before: an unauthenticated call has no request.
                    byte_count = len(raw)
                    inflight.count(byte_count, call.peer)
                    try:
                        call.admit(byte_count)
                        parsed = parsed_from(kind, raw)
                        call.check(parsed[0])
                        encoded = _encoded(await serve(*parsed))
                        if (responses := call.quota.responses) is not None:
                            responses.count(len(encoded))
                    finally:
                        inflight.release(byte_count, call.peer)
            except Exception as error:  # noqa: BLE001 - every failure becomes a status
                status = self._end(error, parsed[0])
                histogram = durations.of(method, status.code.name)
            else:
                histogram = succeeded
                return encoded
            finally:
                if histogram is None:
                    histogram = durations.of(method, grpc.StatusCode.CANCELLED.name)
                histogram.observe_traced(monotonic() - started, current_trace_id())
            del raw, parsed
            return await _abort(context, status)

        return grpc.unary_unary_rpc_method_handler(handle)

    def server_stream(self, kind: type[RequestT], serve: Callable[[RequestT], AsyncGenerator[Response]]) -> Handler:
        """Handles one request with a stream of responses."""
        enter = self._traced_entrance(kind)

        async def handle(raw: bytes, context: Context) -> None:
            request = None
            try:
                with enter(context) as call:
                    with self._inflight.admit(len(raw), call.peer):
                        await call.receive(len(raw))
                        request = parse(kind, raw)
                    # Until it receives metadata, a gRPC client may restart the stream, and waits forever if the
                    # connection breaks before the first response.
                    await context.send_initial_metadata(())
                    call.check(request)
                    async with aclosing(serve(request)) as responses:
                        with ending_with_caller():
                            async for response in responses:
                                await _send(context, response, call)
            except Exception as error:  # noqa: BLE001 - every failure becomes a status
                _fail_stream(context, self._end(error, request))

        return grpc.unary_stream_rpc_method_handler(self._timed(kind, handle))

    def stream(self, kind: type[Message], serve: Callable[["MessageStream"], Awaitable[None]]) -> Handler:
        """Handles a bidirectional stream, whose messages `serve` parses and checks."""
        enter = self._entrance(kind)

        async def handle(_requests: AsyncIterator[bytes], context: Context) -> None:
            try:
                with enter(context) as call:
                    # Sent first: if a response is cut short, gRPC would send the metadata again with the error, fail,
                    # and leave the caller without either.
                    await context.send_initial_metadata(())
                    await serve(MessageStream(context, self._inflight, call))
            except Exception as error:  # noqa: BLE001 - every failure becomes a status
                _fail_stream(context, self._end(error, None))

        return grpc.stream_stream_rpc_method_handler(self._timed(kind, handle))


class MessageStream:
    """A bidirectional stream of messages."""

    # Not methods: one more call for each of many small messages takes time that they have not.
    read: Callable[[], Awaitable[object]]
    """Returns the next message, encoded; no bytes after the last one."""
    count: Callable[[int], None]
    """Counts this many bytes of a message as in progress until `release`; refuses what exceeds a limit."""
    release: Callable[[int], None]

    def __init__(self, context: Context, inflight: InflightBytes, call: Call) -> None:
        self.read = context.read
        self.count = partial(inflight.count, peer=call.peer)
        self.release = partial(inflight.release, peer=call.peer)
        self._context = context
        self._inflight = inflight
        self._call = call

    def admit(self, raw: bytes) -> Admission:
        """Returns a context in which a message counts as in progress."""
        return self._inflight.admit(len(raw), self._call.peer)

    def write(self, response: bytes) -> Awaitable[None]:
        """Sends a response; see `ending_with_caller`."""
        if self._call.quota is UNBOUNDED:
            return self._context.write(response)
        return _send(self._context, response, self._call)


async def _abort(context: Context, status: EndStatus) -> NoReturn:
    """Ends a call with a status and no response, the only form that gRPC clients retry.

    gRPC keeps the exception that this raises, and the frames of its traceback, until the next garbage collection: so
    those frames must hold neither the request nor the error.
    """
    await context.abort(*status)


def _fail_stream(context: Context, status: EndStatus) -> None:
    """Ends a stream with an error. gRPC does not retry it, since the response has begun."""
    context.set_trailing_metadata(status.trailing_metadata)
    context.set_details(status.sentence)
    context.set_code(status.code)


async def _send(context: Context, response: Response, call: Call) -> None:
    encoded = _encoded(response)
    if call.quota is not UNBOUNDED:
        await call.send(len(encoded))
    await context.write(encoded)


@contextmanager
def ending_with_caller() -> Iterator[None]:
    """Cancels writes to a stream when its caller disconnects, since gRPC has not cancelled the call yet."""
    try:
        yield
    except aio.InternalError as error:
        raise asyncio.CancelledError from error


def _encoded(response: Response) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


_RETRY_DELAY_SECONDS = 0.5
