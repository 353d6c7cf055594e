"""Where a sink gets its events from, and where those go that nobody takes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace_server.agent.components import Component
from millrace_server.agent.dead_letters import DeadLetterBox, dead_letters
from millrace_server.agent.events import EventTable
from millrace_server.agent.rate_limited_log import Notices
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel import Channel, TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transactions import Transaction
from millrace_server.errors import MillraceError


class EventsRejectedError(Exception):
    """Returned when some events of a delivery will never be taken, however often they come; says why.

    Not for what may pass, such as a server that cannot be reached: that is ComponentError, and is never counted.
    """


class ReaderLimits(NamedTuple):
    """What bounds a reader's deliveries."""

    batch_events_max: int
    """At most so many events in a delivery."""
    deliveries_max: int
    """So often an event is delivered that is rejected."""
    dead_letter_channel: str | None
    """Where it goes then; None: it is delivered again for ever."""


class UnsettledLimits(NamedTuple):
    """How much a sink may hold unsettled, so that those who fill the channel still find room: half of what there is."""

    event_count: int
    """Events."""
    body_bytes: int
    """Bytes of their bodies."""
    delivery_count: int
    """Deliveries, each of which is an open transaction."""


class Delivery:
    """Events that were taken out of a channel and are still its own: to be settled, or given back.

    Attributes:
        batches: The events.
        channel_id: Names this making of the channel; with an event's sequence it names the event for ever.
        count: Events in the delivery.
        body_bytes: Bytes of their bodies.
        is_dead_letter: Whether the sink has rejected it for good: settled, it does not count as delivered.
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

    @property
    def first_sequence(self) -> int:
        """Its first event's sequence."""
        return self.batches[0].first_sequence

    @property
    def delivered(self) -> tuple[int, int]:
        """Of how many events, and bytes of their bodies, the sink may say that it has brought them on."""
        return (0, 0) if self.is_dead_letter else (self.count, self.body_bytes)

    @property
    def oldest_open_sequence(self) -> int:
        """The oldest sequence that its channel still has: none before it will ever be delivered again."""
        return self._channel.contents.oldest_sequence

    async def settle(self) -> None:
        """Removes the events from the channel, for good once this returns.

        Raises:
            DiskFullError, ChannelLogFailedError: They could not be removed, and are back in their place.
        """
        try:
            if (settling := self._channel.settle(self._delivery)) is not None:
                await asyncio.shield(settling)
        except MillraceError:
            self._on_end(self, False)
            raise
        self._on_end(self, True)

    def join(self, following: "Delivery") -> None:
        """Makes another delivery of the same channel a part of this one: they are settled or given back together.

        For sinks that hold what they take: thousands of small deliveries would be as many open transactions.
        """
        self._channel.join(self._delivery, following._delivery)  # noqa: SLF001 - another of this class
        self.batches = (*self.batches, *following.batches)
        self.count += following.count
        self.body_bytes += following.body_bytes
        self._on_end(following, False)

    def nack(self) -> None:
        """Returns the events to their place. Does nothing where they were settled or given back."""
        self._channel.nack(self._delivery)
        self._on_end(self, False)


class ChannelReader:
    """Gives a sink the events of one channel.

    Events that the sink rejects are found out by halving what is delivered, and go to the dead-letter channel one by
    one; the others wait for them no longer than that takes.
    """

    def __init__(
        self, registry: ChannelRegistry, channel_name: str, limits: ReaderLimits, component: Component
    ) -> None:
        self._registry = registry
        self._channel_name = channel_name
        self._limits = limits
        self._component = component
        self._events_max = limits.batch_events_max
        self._rejection_counts: dict[int, int] = {}
        self._unsettled: set[Delivery] = set()
        self._is_closing = False
        notices = Notices(component.name, kind=component.kind.key)
        self._dead_letters = DeadLetterBox(registry, limits.dead_letter_channel, component, notices)
        self.hurried = asyncio.Event()
        """Set once sinks that hold deliveries are to settle them as soon as there is nothing more to take."""

    @property
    def channel_name(self) -> str:
        """The channel that it empties."""
        return self._channel_name

    @property
    def delivered_count(self) -> int:
        """Deliveries that are neither settled nor given back."""
        return len(self._unsettled)

    async def wait_open(self) -> None:
        """Waits until the channel is open, or is known not to open; then its refusal is raised."""
        hosted = self._registry.get_hosted(self._channel_name)
        await hosted.opened.wait()
        hosted.refuse_unless_open()

    def holdable(self) -> UnsettledLimits:
        """How much a sink may hold unsettled now.

        Raises:
            MillraceError: The channel is not open.
        """
        config = self._registry.get(self._channel_name).config
        halves = (config.capacity, config.body_bytes_max, config.open_transactions_max)
        return UnsettledLimits(*(max(whole // 2, 1) for whole in halves))

    @property
    def is_room_wanted(self) -> bool:
        """Whether somebody waits to put events into the channel, which has no room for them."""
        if self._channel_name not in self._registry:
            return False
        channel = self._registry.get_hosted(self._channel_name).channel_if_open
        return channel is not None and bool(channel.contents.room.line)

    def hurry(self) -> None:
        """Has a sink that holds deliveries settle them as soon as there is nothing more to take."""
        self.hurried.set()

    def close(self) -> None:
        """Gives no more; who waits for a delivery gets None."""
        self._is_closing = True
        self.hurry()
        if self._channel_name in self._registry:
            hosted = self._registry.get_hosted(self._channel_name)
            if hosted.channel_if_open is not None:
                hosted.channel_if_open.contents.takers.wake_all()

    def nack_all(self) -> None:
        """Takes back whatever the sink has left unsettled."""
        for delivery in list(self._unsettled):
            delivery.nack()

    async def take(self, body_bytes_max: int = 0) -> Delivery | None:
        """The next events as soon as there are any; None once there will be no more.

        Raises:
            MillraceError: The channel cannot be read now: it is claimed, not open yet, or its log has failed.
        """
        channel = self._registry.get(self._channel_name)
        self._note_readiness(channel)
        limits = TakeLimits(events_max=self._events_max, body_bytes_max=body_bytes_max)
        taken = await channel.deliver_while(limits, lambda: not self._is_closing)
        if taken is None:
            return None
        delivery = Delivery(channel, taken, self._note_end)
        self._unsettled.add(delivery)
        return delivery

    def _note_readiness(self, channel: Channel) -> None:
        is_readable = channel.commits.fault is None and channel.claims.claim is None
        if is_readable and not channel.contents.room.event_count:
            # Nothing waits for it, so whatever kept it from its work before keeps it no more.
            self._component.runs()
        else:
            self._component.starts()

    def _note_end(self, delivery: Delivery, is_settled: bool) -> None:  # noqa: FBT001 - a callback's argument
        self._unsettled.discard(delivery)
        if is_settled:
            self._component.note_progress(*delivery.delivered)
            # What was cut small to find a rejected event out grows again.
            self._events_max = min(2 * self._events_max, self._limits.batch_events_max)

    def note_trouble(self, reason: str) -> None:
        """Has the sink's state say why it does not get on, while it goes on trying; whatever it settles ends that."""
        self._component.backs_off(reason)

    async def reject(self, delivery: Delivery, error: EventsRejectedError) -> None:
        """Takes back a delivery of which the sink will never take some event.

        Raises:
            ComponentError: It is to be delivered again, after a while.
        """
        if delivery.count > 1:
            self._events_max = delivery.count // 2
            delivery.nack()
            return
        sequence = delivery.first_sequence
        rejections = self._rejection_counts.get(sequence, 0) + 1
        if rejections >= self._limits.deliveries_max and self._dead_letters.is_there:
            await self._set_aside(delivery, str(error), rejections)
            self._rejection_counts.pop(sequence, None)
            return
        self._rejection_counts[sequence] = rejections
        delivery.nack()
        raise ComponentError(f"event {sequence} of channel {self._channel_name} was rejected: {error}")

    async def _set_aside(self, delivery: Delivery, reason: str, rejections: int) -> None:
        table = EventTable.of_windows(batch.window for batch in delivery.batches)
        said = {
            "reason": reason,
            "channel": self._channel_name,
            "sequence": str(delivery.first_sequence),
            "sink": self._component.name,
            "deliveries": str(rejections),
        }
        # Stamped, so that a crash before the event has left its own channel stores no second copy. Events that are gone
        # leave gaps between letters, of which a ledger bears only so many: those in front never come any more.
        stamp = Stamp(
            f"dead-letter/{delivery.channel_id}",
            delivery.first_sequence,
            delivery.first_sequence,
            oldest_open=delivery.oldest_open_sequence,
        )
        await self._dead_letters.keep(dead_letters(table, said), stamp, said)
        delivery.is_dead_letter = True
        await delivery.settle()
