"""The two bidirectional streams: AppendStream and Consume."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from millrace.tracing import TRACING
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.access.permissions import Permission
from millrace_server.access.quotas import UNBOUNDED
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.deliveries import Consumer
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transaction import Transaction
from millrace_server.errors import BadArgumentError, DrainingError, MillraceError
from millrace_server.grpc_services.call import current_call
from millrace_server.grpc_services.messages import (
    consume_response,
    encode_append_response,
    form_of,
    nonempty_events_of,
    parse,
    parse_apart,
    stamp_of,
)
from millrace_server.grpc_services.rpc import MessageStream, ending_with_caller
from millrace_server.grpc_services.status import code_of, refusal, status_of
from millrace_server.grpc_services.traced_calls import append_span, end_span, note_commit, sampled_trace_id
from millrace_server.histograms import Histogram

if TYPE_CHECKING:
    from opentelemetry.trace import Span

UNDER_WAY_MAX = 64
"""Appends of one stream that have no response yet; at this number the server stops reading."""

UNDER_WAY_BYTES_MAX = 16 << 20
"""Bytes of their requests; a single larger request is admitted."""

_APPEND = (Permission.APPEND,)


class _Append:
    """One request of an AppendStream, from its arrival until it gets a response."""

    __slots__ = (
        "_call",
        "_is_counted",
        "_span",
        "_started_at",
        "batches",
        "byte_count",
        "channel",
        "is_abandoned",
        "request",
        "response",
        "stamp",
    )

    channel: Channel
    batches: Sequence[StoredColumns]
    stamp: Stamp | None

    def __init__(self, call: "AppendStreamCall", byte_count: int) -> None:
        self._call = call
        self._is_counted = False
        self._span: Span | None = None
        self._started_at = monotonic()
        self.byte_count = byte_count
        self.request: pb.AppendStreamRequest | None = None
        self.response: bytes | None = None
        self.is_abandoned = False

    def parse(self, raw: bytes) -> None:
        call = self._call
        call.stream.count(self.byte_count)
        self._is_counted = True
        request, columns = parse_apart(pb.AppendStreamRequest, raw)
        self.request, name, caller = request, request.channel, call.caller
        caller.require(_APPEND, name)
        self.channel = call.registry.accepting(name)
        self.batches = nonempty_events_of(request, columns)
        self.stamp = stamp_of(request, caller.identity)
        if (spans := TRACING.spans) is not None:
            self._span = append_span(spans, self.channel.name, self.batches)

    def check(self) -> None:
        """Raises ForbiddenError unless a role of now allows it."""
        assert self.request is not None, "it is parsed"
        self._call.caller.require(_APPEND, self.request.channel)

    def abandon(self) -> None:
        self.is_abandoned = True
        self.release()
        if self._span is not None:
            end_span(self._span, asyncio.CancelledError())
            self._span = None

    def release(self) -> None:
        if self._is_counted:
            self._call.stream.release(self.byte_count)
            self._is_counted = False

    # As `QueuedAppend`.

    def begin(self) -> Commit | None:
        return self._call.begin(self)

    def end(self, receipt: Receipt) -> None:
        self.response = encode_append_response(receipt)
        if self._span is not None:
            note_commit(self._span, self.channel.name, receipt)
        self._end(self._call.succeeded, None)

    def refuse(self, error: Exception) -> None:
        refused = refusal(error, self.request)
        self._call.registry.count_refusal(refused, ())
        self._call.caller.note_refusal(refused, self.request)
        self.response = pb.AppendStreamResponse(error=status_of(refused)).SerializeToString()
        self._end(self._call.durations.of(code_of(refused).name), refused)

    def _end(self, durations: Histogram, error: MillraceError | None) -> None:
        trace_id = None
        if self._span is not None:
            trace_id = sampled_trace_id(self._span)
            end_span(self._span, error)
            self._span = None
        durations.observe_traced(monotonic() - self._started_at, trace_id)
        self._call.on_end(self)


class AppendStreamCall:
    """One AppendStream.

    Each append begins after the earlier ones, and gets its response after theirs. So several share an fsync,
    and the events of a stream are stored in order.
    """

    def __init__(self, registry: ChannelRegistry, stream: MessageStream) -> None:
        self.registry = registry
        self.stream = stream
        self.durations = registry.histograms.stream_appends
        self.succeeded = self.durations.of("OK")
        self.caller = current_call()
        self._in_flight: deque[_Append] = deque()
        # Appends that wait for space. While there are any, each later one is a task too: tasks start in the order of
        # their creation, and an append takes its place before its first await.
        self._late: set[asyncio.Task[Receipt]] = set()
        self._bytes = 0
        self._has_space = asyncio.Event()
        self._has_response = asyncio.Event()
        self._is_half_closed = False

    async def run(self) -> None:
        responding = asyncio.ensure_future(self._respond())
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait({responding, reading}, return_when=asyncio.FIRST_EXCEPTION)
            for task in (reading, responding):
                if task.done():
                    task.result()
        finally:
            responding.cancel()
            reading.cancel()
            for storing in self._late:
                storing.cancel()
            for append in self._in_flight:
                append.abandon()

    async def _read(self) -> None:
        while isinstance(raw := await self.stream.read(), bytes):
            while not self._is_space_for(len(raw)):
                self._has_space.clear()
                await self._has_space.wait()
            self._receive(raw, None if self.caller.quota is UNBOUNDED else await self._refusal(len(raw)))
        self._is_half_closed = True
        self._has_response.set()

    def _is_space_for(self, byte_count: int) -> bool:
        if len(self._in_flight) >= UNDER_WAY_MAX:
            return False
        return not self._bytes or self._bytes + byte_count <= UNDER_WAY_BYTES_MAX

    async def _refusal(self, byte_count: int) -> MillraceError | None:
        """Waits for the turn that the caller's quota gives to a request; returns why it is refused, if it is."""
        try:
            await self.caller.receive(byte_count)
        except MillraceError as error:
            return error
        return None

    def _receive(self, raw: bytes, refusal: MillraceError | None) -> None:
        append = _Append(self, len(raw))
        self._in_flight.append(append)
        self._bytes += append.byte_count
        if refusal is not None:
            append.refuse(refusal)
            return
        try:
            append.parse(raw)
        except Exception as error:  # noqa: BLE001 - fails one request and does not end the stream
            append.refuse(error)
        else:
            append.channel.append_queue.add(append, may_wait=not self._late)

    async def _respond(self) -> None:
        in_flight = self._in_flight
        with ending_with_caller():
            while in_flight or not self._is_half_closed:
                while in_flight and (response := in_flight[0].response) is not None:
                    await self.stream.write(response)
                    self._bytes -= in_flight.popleft().byte_count
                    self._has_space.set()
                self._has_response.clear()
                if in_flight or not self._is_half_closed:
                    await self._has_response.wait()

    def begin(self, append: _Append) -> Commit | None:
        """Begins an append on its own; returns None where it was refused, or waits for space."""
        appends = append.channel.appends
        store: Callable[..., Coroutine[Any, Any, Receipt]] = appends.append
        if not self._late:
            try:
                commit = appends.begin_append(append.batches, append.stamp)
            except Exception as error:  # noqa: BLE001 - fails one request and does not end the stream
                append.refuse(error)
                return None
            if commit is not None:
                return commit
            store = appends.append_later
        storing = asyncio.create_task(store(append.batches, append.stamp, append.check))
        self._late.add(storing)
        storing.add_done_callback(partial(self._on_late_end, append))
        return None

    def _on_late_end(self, append: _Append, storing: asyncio.Task[Receipt]) -> None:
        self._late.discard(storing)
        try:
            receipt = storing.result()
        except asyncio.CancelledError:
            # The caller has left.
            return
        except Exception as error:  # noqa: BLE001 - fails one request and does not end the stream
            append.refuse(error)
        else:
            append.end(receipt)

    def on_end(self, append: _Append) -> None:
        """Notes the response of an append, which is sent behind those of the earlier ones."""
        append.release()
        if append is self._in_flight[0]:
            self._has_response.set()


PREFETCH_DEFAULT = 8
PREFETCH_MAX = 1_000


class ConsumeCall:
    """One Consume stream.

    One task delivers events, another reads acks and nacks. When either ends, unsettled deliveries return to the queue
    at once. A delivery whose ack could not be stored returns too, and the stream ends with that error.
    """

    def __init__(self, registry: ChannelRegistry, stream: MessageStream) -> None:
        self._registry = registry
        self._stream = stream
        self._caller = current_call()
        self._deliveries: dict[int, Transaction] = {}
        self._delivered_count = 0
        self._settled = asyncio.Event()
        self._settling: set[Commit] = set()
        self._unsettled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        start = await self._read_start()
        self._caller.require_throughout((Permission.TAKE,), start.channel)
        channel = self._registry.get(start.channel)
        if start.prefetch > PREFETCH_MAX:
            raise BadArgumentError(f"start.prefetch: is {start.prefetch}; at most {PREFETCH_MAX} are allowed")
        consumer = channel.deliveries.attach(self._caller.origin)
        delivering = asyncio.ensure_future(self._deliver(channel, start, consumer))
        listening = asyncio.ensure_future(self._listen(channel))
        try:
            await asyncio.wait({delivering, listening, self._unsettled}, return_when=asyncio.FIRST_COMPLETED)
            await self._finish_draining(delivering, listening)
            for end in (self._unsettled, delivering, listening):
                if end.done():
                    end.result()
        except MillraceError as error:
            error.metadata.setdefault("channel", channel.name)
            raise
        finally:
            for end in (self._unsettled, delivering, listening):
                end.cancel()
            for delivery in self._deliveries.values():
                channel.deliveries.nack(delivery)
            channel.deliveries.detach(consumer)

    async def _finish_draining(self, delivering: "asyncio.Future[None]", listening: "asyncio.Future[None]") -> None:
        """While the server drains, accepts acks for earlier deliveries; nothing new is delivered."""
        if delivering.done() and isinstance(delivering.exception(), DrainingError):
            settling = asyncio.ensure_future(self._wait_until_below(1))
            await asyncio.wait({settling, listening}, return_when=asyncio.FIRST_COMPLETED)
            settling.cancel()

    async def _wait_until_below(self, count: int) -> None:
        while len(self._deliveries) >= count:
            self._settled.clear()
            await self._settled.wait()

    async def _read_start(self) -> pb.ConsumeRequest.Start:
        raw = await self._stream.read()
        if isinstance(raw, bytes):
            with self._stream.admit(raw):
                request = parse(pb.ConsumeRequest, raw)
                if request.HasField("start"):
                    return request.start
        raise BadArgumentError("start: is missing; the first message of a Consume stream must be start")

    async def _deliver(self, channel: Channel, start: pb.ConsumeRequest.Start, consumer: Consumer) -> None:
        form = form_of(columns=start.columns)
        limits = TakeLimits(events_max=start.max_events, body_bytes_max=start.max_bytes, form=form)
        prefetch = start.prefetch or PREFETCH_DEFAULT
        while True:
            await self._wait_until_below(prefetch)
            delivery = await channel.deliveries.deliver(limits, consumer)
            self._delivered_count += 1
            self._deliveries[self._delivered_count] = delivery
            with ending_with_caller():
                await self._stream.write(consume_response(self._delivered_count, delivery.takes, form))

    async def _listen(self, channel: Channel) -> None:
        while await self._settle_next(channel):
            self._settled.set()

    async def _settle_next(self, channel: Channel) -> bool:
        """Handles the next message; returns False at the end of the stream."""
        raw = await self._stream.read()
        if not isinstance(raw, bytes):
            # A caller that half-closes and waits for the end learns from it that its acks are stored.
            for commit in tuple(self._settling):
                # `_on_settled` ends the stream with the error.
                with suppress(MillraceError):
                    await commit
            return False
        await self._caller.receive(len(raw))
        with self._stream.admit(raw):
            request = parse(pb.ConsumeRequest, raw)
            # Deliveries of a deleted channel cannot be settled any more, and the caller must know.
            channel.refuse_if_closed()
            match request.WhichOneof("message"):
                case "ack":
                    for delivery in self._popped("ack", request.ack.delivery_ids):
                        self._follow(channel.deliveries.settle(delivery))
                case "nack":
                    for delivery in self._popped("nack", request.nack.delivery_ids):
                        channel.deliveries.nack(delivery)
                case other:
                    raise BadArgumentError(f"message: is {other}; after start, only ack and nack are allowed")
        return True

    def _follow(self, commit: Commit) -> None:
        self._settling.add(commit)
        commit.add_done_callback(self._on_settled)

    def _on_settled(self, commit: Commit) -> None:
        self._settling.discard(commit)
        if commit.error is not None and not self._unsettled.done():
            self._unsettled.set_exception(commit.error)

    def _popped(self, field: str, delivery_ids: Sequence[int]) -> Iterator[Transaction]:
        """Removes and yields the deliveries, one at a time, so that an error leaves the later ones unsettled."""
        for delivery_id in delivery_ids:
            if not 0 < delivery_id <= self._delivered_count:
                raise BadArgumentError(
                    f"{field}.delivery_ids: holds {delivery_id}; this stream has delivered {self._delivered_count}"
                )
        for delivery_id in delivery_ids:
            # Skips a delivery that was settled before: acks are safe to repeat.
            if delivery := self._deliveries.pop(delivery_id, None):
                yield delivery
