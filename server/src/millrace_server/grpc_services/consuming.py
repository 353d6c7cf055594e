"""Consume: deliveries down a stream, acks and nacks up."""

import asyncio
from collections.abc import Iterator, Sequence

from millrace.v1 import channel_service_pb2 as pb
from millrace_server.channels.channel import Channel, TakeLimits
from millrace_server.channels.contents import Receipt
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.transactions import Transaction
from millrace_server.errors import BadArgumentError, DrainingError
from millrace_server.grpc_services import answers
from millrace_server.grpc_services.requests import form_of, parse
from millrace_server.grpc_services.rpc import MessageStream

PREFETCH_DEFAULT = 8
PREFETCH_MAX = 1_000


class Consuming:
    """One Consume stream.

    Two tasks work on it: one lends events and sends them, while the other reads acks and nacks. When either ends, for
    whatever reason, what was lent and not acknowledged returns at once. So does what was acknowledged and could not be
    removed, and then the stream ends with the reason.
    """

    def __init__(self, registry: ChannelRegistry, stream: MessageStream) -> None:
        self._registry = registry
        self._stream = stream
        self._lent: dict[int, Transaction] = {}
        self._delivered_count = 0
        self._settled = asyncio.Event()
        self._settling: set[asyncio.Future[Receipt]] = set()
        self._unsettled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serves the stream to its end."""
        start = await self._read_start()
        channel = self._registry.get(start.channel)
        if start.prefetch > PREFETCH_MAX:
            raise BadArgumentError(f"start.prefetch: is {start.prefetch}; at most {PREFETCH_MAX} are allowed")
        delivering = asyncio.ensure_future(self._deliver(channel, start))
        listening = asyncio.ensure_future(self._listen(channel))
        try:
            await asyncio.wait({delivering, listening, self._unsettled}, return_when=asyncio.FIRST_COMPLETED)
            await self._let_settle(delivering, listening)
            for end in (self._unsettled, delivering, listening):
                if end.done():
                    end.result()
        finally:
            for end in (self._unsettled, delivering, listening):
                end.cancel()
            for delivery in self._lent.values():
                channel.nack(delivery)

    async def _let_settle(self, delivering: "asyncio.Future[None]", listening: "asyncio.Future[None]") -> None:
        """While the server drains nothing new is delivered, but what is out may still be acknowledged."""
        if delivering.done() and isinstance(delivering.exception(), DrainingError):
            settling = asyncio.ensure_future(self._wait_until_below(1))
            await asyncio.wait({settling, listening}, return_when=asyncio.FIRST_COMPLETED)
            settling.cancel()

    async def _wait_until_below(self, count: int) -> None:
        """Waits until fewer deliveries than `count` are out."""
        while len(self._lent) >= count:
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
            delivery = await channel.deliver(limits)
            self._delivered_count += 1
            self._lent[self._delivered_count] = delivery
            await self._stream.write(answers.delivery(self._delivered_count, delivery.takes, form))

    async def _listen(self, channel: Channel) -> None:
        while await self._settle_next(channel):
            self._settled.set()

    async def _settle_next(self, channel: Channel) -> bool:
        """Does what the stream's next message says, of which nothing is kept; False at the end."""
        raw = await self._stream.read()
        if raw is None:
            # Whoever closed its half and waits for the end is to know that its acks are done.
            if self._settling:
                await asyncio.wait(self._settling)
            return False
        with self._stream.admit(raw):
            request = parse(pb.ConsumeRequest, raw)
            # What was delivered of a channel that is deleted cannot be settled any more, and that must be said.
            channel.contents.refuse_if_closed()
            match request.WhichOneof("message"):
                case "ack":
                    for delivery in self._recalled("ack", request.ack.delivery_ids):
                        self._follow(channel.settle(delivery))
                case "nack":
                    for delivery in self._recalled("nack", request.nack.delivery_ids):
                        channel.nack(delivery)
                case other:
                    raise BadArgumentError(f"message: is {other}; after start come only ack and nack")
        return True

    def _follow(self, settling: "asyncio.Future[Receipt] | None") -> None:
        if settling is not None:
            self._settling.add(settling)
            settling.add_done_callback(self._has_settled)

    def _has_settled(self, settling: "asyncio.Future[Receipt]") -> None:
        self._settling.discard(settling)
        error = settling.exception()
        if error is not None and not self._unsettled.done():
            self._unsettled.set_exception(error)

    def _recalled(self, field: str, delivery_ids: Sequence[int]) -> Iterator[Transaction]:
        """The deliveries of these deliveries. Each is out no more once its turn has come: what fails stops at it."""
        for delivery_id in delivery_ids:
            if not 0 < delivery_id <= self._delivered_count:
                raise BadArgumentError(
                    f"{field}.delivery_ids: holds {delivery_id}; this stream has delivered {self._delivered_count}"
                )
        for delivery_id in delivery_ids:
            # A delivery that was acknowledged before is passed over: acks are safe to repeat.
            if delivery := self._lent.pop(delivery_id, None):
                yield delivery
