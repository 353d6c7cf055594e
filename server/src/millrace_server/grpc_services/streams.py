"""The two bidirectional streams: AppendStream and Consume."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

from millrace.v1 import channel_service_pb2 as pb
from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Commit
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.transaction import Transaction
from millrace_server.errors import BadArgumentError, DrainingError, MillraceError
from millrace_server.grpc_services.messages import (
    consume_response,
    form_of,
    nonempty_events_of,
    parse,
    parse_apart,
    stamp_of,
)
from millrace_server.grpc_services.rpc import MessageStream
from millrace_server.grpc_services.status import refusal, status_of

UNDER_WAY_MAX = 64
"""Appends of one stream that are not answered yet; at this number the server stops reading."""

UNDER_WAY_BYTES_MAX = 16 << 20
"""Bytes of their requests; a single larger request is admitted."""


class AppendStreamCall:
    """One AppendStream.

    Each append begins when its request arrives, after the earlier ones, and is answered after the earlier ones. So
    several appends share an fsync, and the events of a stream are stored in order.
    """

    def __init__(self, registry: ChannelRegistry, stream: MessageStream) -> None:
        self._registry = registry
        self._stream = stream
        self._under_way: asyncio.Queue[asyncio.Task[pb.AppendStreamResponse] | None] = asyncio.Queue(UNDER_WAY_MAX)
        self._bytes = 0
        self._has_room = asyncio.Event()

    async def run(self) -> None:
        answering = asyncio.ensure_future(self._answer())
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait({answering, reading}, return_when=asyncio.FIRST_EXCEPTION)
            for task in (reading, answering):
                if task.done():
                    task.result()
        finally:
            answering.cancel()
            reading.cancel()
            while not self._under_way.empty():
                if append := self._under_way.get_nowait():
                    append.cancel()

    async def _read(self) -> None:
        while (raw := await self._stream.read()) is not None:
            await self._wait_for_room(len(raw))
            self._bytes += len(raw)
            # Tasks start in the order of their creation, and an append takes its place before its first await.
            await self._under_way.put(asyncio.create_task(self._append(raw)))
        await self._under_way.put(None)

    async def _wait_for_room(self, byte_count: int) -> None:
        while self._bytes and self._bytes + byte_count > UNDER_WAY_BYTES_MAX:
            self._has_room.clear()
            await self._has_room.wait()

    async def _answer(self) -> None:
        while (append := await self._under_way.get()) is not None:
            try:
                answer = await append
            finally:
                append.cancel()
            await self._stream.write(answer)

    async def _append(self, raw: bytes) -> pb.AppendStreamResponse:
        request = None
        try:
            with self._stream.admit(raw):
                request, columns = parse_apart(pb.AppendStreamRequest, raw)
                transactions = self._registry.get(request.channel).transactions
                receipt = await transactions.append(nonempty_events_of(request, columns), stamp_of(request))
        except Exception as error:  # noqa: BLE001 - answers one request and does not end the stream
            return pb.AppendStreamResponse(error=status_of(refusal(error, request)))
        finally:
            self._bytes -= len(raw)
            self._has_room.set()
        return pb.AppendStreamResponse(
            first_sequence=receipt.first_sequence,
            last_sequence=receipt.last_sequence,
            deduplicated=receipt.is_deduplicated,
        )


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
        self._deliveries: dict[int, Transaction] = {}
        self._delivered_count = 0
        self._settled = asyncio.Event()
        self._settling: set[Commit] = set()
        self._unsettled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        start = await self._read_start()
        channel = self._registry.get(start.channel)
        if start.prefetch > PREFETCH_MAX:
            raise BadArgumentError(f"start.prefetch: is {start.prefetch}; at most {PREFETCH_MAX} are allowed")
        delivering = asyncio.ensure_future(self._deliver(channel, start))
        listening = asyncio.ensure_future(self._listen(channel))
        try:
            await asyncio.wait({delivering, listening, self._unsettled}, return_when=asyncio.FIRST_COMPLETED)
            await self._finish_draining(delivering, listening)
            for end in (self._unsettled, delivering, listening):
                if end.done():
                    end.result()
        finally:
            for end in (self._unsettled, delivering, listening):
                end.cancel()
            for delivery in self._deliveries.values():
                channel.deliveries.nack(delivery)

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
        if raw is not None:
            with self._stream.admit(raw):
                request = parse(pb.ConsumeRequest, raw)
                if request.HasField("start"):
                    return request.start
        raise BadArgumentError("start: is missing; the first message of a Consume stream must be start")

    async def _deliver(self, channel: Channel, start: pb.ConsumeRequest.Start) -> None:
        form = form_of(columns=start.columns)
        limits = TakeLimits(events_max=start.max_events, body_bytes_max=start.max_bytes, form=form)
        prefetch = start.prefetch or PREFETCH_DEFAULT
        while True:
            await self._wait_until_below(prefetch)
            delivery = await channel.deliveries.deliver(limits)
            self._delivered_count += 1
            self._deliveries[self._delivered_count] = delivery
            await self._stream.write(consume_response(self._delivered_count, delivery.takes, form))

    async def _listen(self, channel: Channel) -> None:
        while await self._settle_next(channel):
            self._settled.set()

    async def _settle_next(self, channel: Channel) -> bool:
        """Handles the next message; returns False at the end of the stream."""
        raw = await self._stream.read()
        if raw is None:
            # A caller that half-closes and waits for the end learns from it that its acks are stored.
            for commit in tuple(self._settling):
                # `_on_settled` ends the stream with the error.
                with suppress(MillraceError):
                    await commit
            return False
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
                    raise BadArgumentError(f"message: is {other}; after start come only ack and nack")
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
