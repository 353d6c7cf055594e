"""Channel readers, through which a sink takes deliveries from a channel and settles, nacks or rejects them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from millrace.tracing import TRACING
from millrace_server.agent.components import Component, ComponentState
from millrace_server.agent.dead_letters import UNSTORABLE_ERRORS, DeadLetterWriter, as_dead_letters
from millrace_server.agent.events import EventTable
from millrace_server.agent.rate_limited_log import RateLimitedLog
from millrace_server.agent.spans import delivery_span, end_delivery_span
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.activity import Origin
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel import Channel
from millrace_server.channels.deliveries import Consumer
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transaction import Transaction, TxnState
from millrace_server.errors import MillraceError

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class EventsRejectedError(Exception):
    """Raised by a sink that can never accept some events of a delivery; the message is the reason.

    For a temporary condition, such as a server that cannot be reached, raise ComponentError instead, which does not
    count as a rejection.
    """


class ReaderLimits(NamedTuple):
    """Limits of a reader's deliveries."""

    batch_events_max: int
    """Events of one delivery."""
    deliveries_max: int
    """How often an event that the sink rejects is delivered."""
    dead_letter_channel: str | None
    """Where it is stored after that; None: it is delivered again indefinitely."""


class UnsettledLimits(NamedTuple):
    """How much a sink may leave unsettled: half of the channel's limits, so that producers still find space."""

    event_count: int
    body_bytes: int
    delivery_count: int


class Delivery:
    """Events that were taken from a channel and remain part of it until they are settled or nacked.

    Attributes:
        channel_id: Identifies this incarnation of the channel; with a sequence, it identifies an event forever.
        is_dead_letter: Whether it is stored in the dead-letter channel; it then does not count as delivered.
        span: Its span, while tracing is on.
    """

    def __init__(self, channel: Channel, delivery: Transaction, on_end: "Callable[[Delivery, bool], None]") -> None:
        self._channel = channel
        self._delivery = delivery
        self._on_end = on_end
        self.batches: Sequence[StoredBatch] = tuple(delivery.takes)
        self.channel_id = channel.channel_id
        self.count = delivery.take_count
        self.body_bytes = sum(batch.window.body_bytes for batch in self.batches)
        self.is_dead_letter = False
        self.span: Span | None = None

    @property
    def first_sequence(self) -> int:
        return self.batches[0].first_sequence

    @property
    def is_open(self) -> bool:
        """Whether it is still open in the channel: an operator may have ended it."""
        return self._delivery.state is TxnState.OPEN

    @property
    def delivered_counts(self) -> tuple[int, int]:
        """The number of events, and the bytes of their bodies, that count as delivered once this is settled."""
        return (0, 0) if self.is_dead_letter else (self.count, self.body_bytes)

    @property
    def oldest_open_sequence(self) -> int:
        """The oldest sequence in the channel; no earlier event will be delivered again."""
        return self._channel.oldest_sequence

    async def settle(self) -> None:
        """Removes the events from the channel, durably once this returns; after an error they are back in it."""
        try:
            commit = self._channel.deliveries.settle(self._delivery)
        except MillraceError:
            self._on_end(self, False)
            raise
        # A callback of the commit: if this call is cancelled, the events are removed nevertheless.
        commit.add_done_callback(lambda ended: self._on_end(self, ended.error is None))
        await commit

    def join(self, following: "Delivery") -> None:
        """Merges a later delivery of the same channel into this one; they are settled or nacked together.

        For sinks that keep deliveries open: thousands of small ones would be thousands of open transactions.
        """
        self._channel.deliveries.join(self._delivery, following._delivery)  # noqa: SLF001 - another of this class
        self.batches = (*self.batches, *following.batches)
        self.count += following.count
        self.body_bytes += following.body_bytes
        if following.span is not None:
            # The span of this delivery covers both.
            following.span.end()
            following.span = None
        self._on_end(following, False)

    def nack(self) -> None:
        """Returns the events to their place in the channel. Does nothing after a settle or nack."""
        self._channel.deliveries.nack(self._delivery)
        self._on_end(self, False)


class ChannelReader:
    """Delivers the events of one channel to a sink.

    After a rejection, deliveries are halved until the rejected events are found; these are stored in the dead-letter
    channel one by one, and the others are delivered.
    """

    def __init__(
        self, registry: ChannelRegistry, channel_name: str, limits: ReaderLimits, component: Component
    ) -> None:
        self._registry = registry
        self.channel_name = channel_name
        self._limits = limits
        self.component = component
        self._consumer: Consumer | None = None
        """Its entry in the channel's list of consumers while the sink runs."""
        self._events_max = limits.batch_events_max
        self._rejection_counts: dict[int, int] = {}
        self._unsettled: set[Delivery] = set()
        self._is_closing = False
        log = RateLimitedLog(component.log)
        self._dead_letters = DeadLetterWriter(registry, limits.dead_letter_channel, component, log)
        self.flush_requested = asyncio.Event()
        """Set once a sink that keeps deliveries open must settle them as soon as there is nothing more to take."""

    @property
    def unsettled_count(self) -> int:
        return sum(delivery.is_open for delivery in self._unsettled)

    async def wait_open(self) -> None:
        """Waits until the channel is open. Raises MillraceError if it could not be opened."""
        handle = self._registry.find(self.channel_name)
        await handle.opened.wait()
        handle.refuse_unless_open()

    def unsettled_limits(self) -> UnsettledLimits:
        """Returns how much a sink may leave unsettled now. Raises MillraceError if the channel is not open."""
        config = self._registry.get(self.channel_name).config
        halves = (config.capacity, config.body_bytes_max, config.open_transactions_max)
        return UnsettledLimits(*(max(whole // 2, 1) for whole in halves))

    @property
    def channel_id(self) -> str:
        """Identifies this incarnation of the channel. Raises MillraceError if it is not open."""
        return self._registry.get(self.channel_name).channel_id

    @property
    def is_space_awaited(self) -> bool:
        channel = self._channel_if_open()
        return channel is not None and channel.has_waiting_commits

    def _channel_if_open(self) -> Channel | None:
        return self._registry.find(self.channel_name).channel_if_open if self.channel_name in self._registry else None

    def request_flush(self) -> None:
        self.flush_requested.set()

    def close(self) -> None:
        """Ends deliveries; a waiting `take` returns None."""
        self._is_closing = True
        self.request_flush()
        if (channel := self._channel_if_open()) is not None:
            channel.wake_takers()

    def nack_all(self) -> None:
        for delivery in list(self._unsettled):
            delivery.nack()
        if self._consumer is not None and (channel := self._channel_if_open()) is not None:
            channel.deliveries.detach(self._consumer)
        self._consumer = None

    async def take(self, body_bytes_max: int = 0) -> Delivery | None:
        """Returns the next events as soon as there are any; None once the reader is closed.

        Raises MillraceError if the channel cannot be read now: it is claimed, not open yet, or its log has failed.
        """
        channel = self._registry.get(self.channel_name)
        self._report_readiness(channel)
        limits = TakeLimits(events_max=self._events_max, body_bytes_max=body_bytes_max)
        if self._consumer is None:
            self._consumer = channel.deliveries.attach(Origin(peer=f"sinks/{self.component.name}"))
        taken = await channel.deliveries.deliver_while(limits, lambda: not self._is_closing, self._consumer)
        if taken is None:
            return None
        delivery = Delivery(channel, taken, self._finish)
        if (spans := TRACING.spans) is not None:
            delivery.span = delivery_span(spans, self.channel_name, self.component.name, delivery.batches)
        self._unsettled.add(delivery)
        return delivery

    def _report_readiness(self, channel: Channel) -> None:
        is_readable = channel.fault is None and channel.claims.claim is None
        if is_readable and not channel.event_count:
            # The channel is empty, so the last failure no longer delays any event.
            self.component.mark_running()
        else:
            self.component.mark_ready()

    def _finish(self, delivery: Delivery, is_settled: bool) -> None:  # noqa: FBT001 - a callback's argument
        self._unsettled.discard(delivery)
        if delivery.span is not None:
            end_delivery_span(delivery.span, is_settled=is_settled)
            # A nack may follow, which does nothing.
            delivery.span = None
        if is_settled:
            self.component.record_progress(*delivery.delivered_counts)
            # Deliveries that were halved to find a rejected event grow again.
            self._events_max = min(2 * self._events_max, self._limits.batch_events_max)

    @property
    def is_recovering(self) -> bool:
        """Whether the sink's last attempt failed, and nothing has been settled since."""
        return self.component.state is ComponentState.BACKING_OFF

    def report_problem(self, reason: str) -> None:
        """Shows in the sink's state why it makes no progress while it keeps trying; the next settle clears this."""
        self.component.mark_backing_off(reason)

    async def reject(self, delivery: Delivery, error: EventsRejectedError) -> None:
        """Handles a delivery with events that the sink can never accept. Raises ComponentError to repeat it later."""
        if delivery.count > 1:
            self._events_max = delivery.count // 2
            delivery.nack()
            return
        sequence, oldest = delivery.first_sequence, delivery.oldest_open_sequence
        # Without those that the sink has accepted since: a sink that refuses now and then would collect them for ever.
        counts = self._rejection_counts
        self._rejection_counts = {each: counts[each] for each in counts if each >= oldest}
        # Counted first: an event whose dead letter cannot be stored now is delivered once more.
        rejections = self._rejection_counts[sequence] = self._rejection_counts.get(sequence, 0) + 1
        if rejections >= self._limits.deliveries_max and self._dead_letters.has_channel:
            await self._store_dead_letter(delivery, str(error), rejections)
            self._rejection_counts.pop(sequence, None)
            return
        delivery.nack()
        raise ComponentError(f"event {sequence} of channel {self.channel_name} was rejected: {error}")

    async def _store_dead_letter(self, delivery: Delivery, reason: str, rejections: int) -> None:
        table = EventTable.of_windows(batch.window for batch in delivery.batches)
        fields = {
            "reason": reason,
            "channel": self.channel_name,
            "sequence": str(delivery.first_sequence),
            "sink": self.component.name,
            "deliveries": str(rejections),
        }
        # The stamp prevents a second copy after a crash before the settle. The numbers have gaps, and a ledger stores a
        # limited number of ranges; `oldest_open` lets it forget those that can no longer be repeated.
        stamp = Stamp(
            f"dead-letter/{delivery.channel_id}",
            delivery.first_sequence,
            delivery.first_sequence,
            oldest_open=delivery.oldest_open_sequence,
        )
        try:
            await self._dead_letters.write(as_dead_letters(table, fields), stamp, fields)
        except UNSTORABLE_ERRORS as error:
            # Not dropped: the channel has acknowledged it.
            delivery.nack()
            raise ComponentError(
                f"event {delivery.first_sequence} of channel {self.channel_name} was rejected: {reason}; and channel "
                f"{self._limits.dead_letter_channel} cannot hold it: {error}"
            ) from None
        delivery.is_dead_letter = True
        await delivery.settle()
