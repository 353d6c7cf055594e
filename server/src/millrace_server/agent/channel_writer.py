"""Where a source hands its events to: through the interceptors and the selector, into the channels."""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from millrace_server.agent.batch_router import BatchRouter, Routing
from millrace_server.agent.components import Component, ComponentState, EventOutcome
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptor_run import StepError
from millrace_server.agent.interceptors.interceptor import Interceptor
from millrace_server.agent.supervision import Backoff, ComponentError, describe
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError, InternalError, MillraceError, TxnCapacityError

_RETRY_DELAY_SECONDS = 1.0
_LOOK_SECONDS = 0.5
_TO_ALL = Routing()


class ChannelWriter:
    """Takes a source's events, and answers once they are stored.

    Every batch has a stamp, so that whatever fails in the middle can be done again without a second copy. A source that
    can read its events again names them by a number that is the same each time (`producer_id` and numbers of its own).
    One that cannot takes the next numbers of this run (`numbered`).

    A source that is cancelled while it waits in here has its events stored, or has not; after the next `wait_open`,
    `accepted` tells which.

    Args:
        registry: All channels.
        channels: The source's.
        interceptors: What changes or drops its events, in this order.
        component: Its state.
        events_max: At most so many events are stored at once.
        routing: Where its events go.
    """

    def __init__(  # noqa: PLR0913 - it stands between all of them
        self,
        registry: ChannelRegistry,
        channels: Sequence[str],
        interceptors: Sequence[Interceptor],
        component: Component,
        events_max: int,
        *,
        routing: Routing = _TO_ALL,
    ) -> None:
        self._registry = registry
        self._component = component
        self._limits = BatchLimits(registry, channels, events_max)
        self._shipping = BatchRouter(registry, channels, interceptors, routing, component)
        self._run_id = f"{component.name}/{secrets.token_hex(8)}"
        self._next_number = 1
        self._watching: asyncio.Task[None] | None = None

    @property
    def events_max(self) -> int:
        """A batch should have at most so many events. It changes with the channels: to be asked for each batch."""
        return self._limits.events_max

    @property
    def body_bytes_max(self) -> int:
        """The bodies of a batch should have at most so many bytes, unless it is one event. It changes likewise."""
        return self._limits.body_bytes_max

    async def wait_open(self) -> None:
        """Waits until all required channels are open, and what was on its way into them is stored or given up.

        Only then they know what they have stored. To be called before each run of the source.

        Raises:
            MillraceError: Some channel is not there, could not be opened, or cannot be written.
        """
        for name in self._shipping.required:
            hosted = self._registry.get_hosted(name)
            await hosted.opened.wait()
            await hosted.channel.settled()

    def note_ready(self) -> None:
        """Has the source's state say that it works; to be called once it has opened what it reads from."""
        self._component.runs()

    def note_ended(self, reason: str) -> None:
        """Has the source's state say why there will be no more; to be called right before its run ends."""
        self._component.stops(reason)

    def note_dropped(self, count: int) -> None:
        """Counts events that came to the source and are lost, since it could not keep them."""
        self._component.note_outcome(EventOutcome.DROPPED, count)

    def numbered(self, count: int) -> Stamp:
        """A stamp for a source that cannot read its events again: the next numbers of this run."""
        first = self._next_number
        self._next_number += count
        return Stamp(self._run_id, first, first + count - 1)

    def accepted(self, producer_id: str) -> list[list[tuple[int, int]]]:
        """For each required channel the numbers of a producer that it has stored.

        Returns:
            Ascending ranges, both ends included. A batch must not overlap one of them in part: end it where a range
            begins or ends.
        """
        return [
            list(channel.contents.ledger.intervals_of(producer_id)) for channel in self._shipping.fan_out.channels()
        ]

    async def deliver(self, table: EventTable, stamp: Stamp) -> None:
        """Stores events in all channels that they are meant for, however long that takes.

        While a channel has no room, or cannot store anything, the source's state says so. The table stays as it is. A
        batch with as many numbers as events may be of any size, and is stored in several parts where it must be. No two
        calls at a time may have the same numbers.

        Raises:
            ComponentError: The batch is more than a channel takes at once, or overlaps in part what is stored. Let it
                end the run: in the next one `accepted` tells where to go on, and the limits are smaller.
        """
        for piece in self._limits.pieces(table, stamp):
            await self._deliver(*piece)

    async def _deliver(self, table: EventTable, stamp: Stamp) -> None:
        backoff = Backoff()
        attempt = self._shipping.attempt(table, stamp)
        while True:
            try:
                await self._shipping.advance(attempt)
            except BadArgumentError as error:
                raise ComponentError(f"a batch does not go together with what is stored: {_told(error)}") from error
            except (MillraceError, StepError, ComponentError) as error:
                self._back_off(error)
                if isinstance(error, TxnCapacityError) and table.count > 1:
                    await self._deliver_smaller(table, stamp, error)
                    return
                await asyncio.sleep(backoff.next_seconds())
            else:
                self._limits.note_stored()
                return

    async def _deliver_smaller(self, table: EventTable, stamp: Stamp, error: TxnCapacityError) -> None:
        if stamp.span != table.count:
            self._limits.note_too_large()
            raise ComponentError(f"a batch is too large, and is read again in smaller ones: {_told(error)}") from error
        middle = table.count // 2
        await self._deliver(*part_of(table, stamp, 0, middle))
        await self._deliver(*part_of(table, stamp, middle, table.count))

    async def offer(self, table: EventTable, stamp: Stamp) -> None:
        """Stores events as `deliver` does, or says that they cannot be stored now.

        Raises:
            MillraceError: Some channel has no room, or cannot store anything, or an interceptor has failed; with
                TxnCapacityError and BadArgumentError a repeat does not help. Whoever offers the same events with the
                same stamp once more has them stored once.
        """
        for piece in self._limits.pieces(table, stamp):
            try:
                await self._shipping.advance(self._shipping.attempt(*piece))
            except (BadArgumentError, TxnCapacityError):
                # It is the batch that is wrong, not the source.
                raise
            except MillraceError as error:
                self._back_off(error)
                self._watch_for_room(piece[0])
                raise
            except (StepError, ComponentError) as error:
                self._back_off(error)
                raise InternalError(str(error), retry_delay_seconds=_RETRY_DELAY_SECONDS) from error

    def _watch_for_room(self, table: EventTable) -> None:
        """Has the state say that the source works again as soon as it does: nobody may come with events for long."""
        if self._watching is not None:
            self._watching.cancel()
        self._watching = asyncio.create_task(self._recover(table, self._component.reason))

    async def _recover(self, table: EventTable, reason: str) -> None:
        component = self._component
        while component.state is ComponentState.BACKING_OFF and component.reason == reason:
            await asyncio.sleep(_LOOK_SECONDS)
            if component.reason == reason and self._shipping.has_room(table):
                component.runs()

    def _back_off(self, error: MillraceError | StepError | ComponentError) -> None:
        self._component.backs_off(_told(error), error.cause if isinstance(error, StepError) else None)


def _told(error: Exception) -> str:
    """An error as the source's state tells it: there may be several channels."""
    if isinstance(error, MillraceError) and "channel" in error.metadata:
        return f"channel {error.metadata['channel']}: {describe(error)}"
    return describe(error)


BODY_BYTES_MAX = 8 << 20
"""More bytes than these in a batch gain nothing, and are in memory several times."""

_HALVINGS_MAX = 30
_BATCHES_TO_GROW = 100


class BatchLimits:
    """What all channels of a source take at once, as they are now: they can be resized.

    Where a batch was too large all the same, the limits are halved, and grow again with the batches that are not.

    Args:
        registry: All channels.
        channels: The source's.
        events_max: The most that its configuration allows.
    """

    def __init__(self, registry: ChannelRegistry, channels: Sequence[str], events_max: int) -> None:
        self._registry = registry
        self._channels = channels
        self._events_max = events_max
        self._halvings = 0
        self._batches_since = 0

    @property
    def events_max(self) -> int:
        """Events of one batch."""
        capacities = [config.transaction_capacity for config in self._configs()]
        return max(min([self._events_max, *capacities]) >> self._halvings, 1)

    @property
    def body_bytes_max(self) -> int:
        """Bytes of bodies of one batch: half of what a channel takes, since interceptors may add some."""
        takes = [config.open_body_bytes_max // 2 for config in self._configs()]
        return max(min([BODY_BYTES_MAX, *takes]) >> self._halvings, 1)

    def _configs(self) -> Iterator[ChannelConfig]:
        return (self._registry.get_hosted(name).config for name in self._channels if name in self._registry)

    def note_stored(self) -> None:
        """A batch was not too large."""
        self._batches_since += 1
        if self._halvings and self._batches_since >= _BATCHES_TO_GROW:
            self._halvings -= 1
            self._batches_since = 0

    def note_too_large(self) -> None:
        """A batch was too large."""
        self._halvings = min(self._halvings + 1, _HALVINGS_MAX)
        self._batches_since = 0

    def pieces(self, table: EventTable, stamp: Stamp) -> Iterator[tuple[EventTable, Stamp]]:
        """A batch in pieces that keep the limits, each with the numbers of its events.

        Where it has not as many numbers as events, nobody knows which number an event has: then it stays whole.
        """
        if stamp.span != table.count:
            yield table, stamp
            return
        start = 0
        while start < table.count:
            stop = start + self._count_from(table, start)
            is_whole = stop - start == table.count
            yield (table, stamp) if is_whole else part_of(table, stamp, start, stop)
            start = stop

    def _count_from(self, table: EventTable, start: int) -> int:
        bodies = table.bodies[start : start + self.events_max]
        body_bytes_max = self.body_bytes_max
        if sum(map(len, bodies)) <= body_bytes_max:
            return len(bodies)
        return max(sum(end <= body_bytes_max for end in accumulate(map(len, bodies))), 1)


def part_of(table: EventTable, stamp: Stamp, start: int, stop: int) -> tuple[EventTable, Stamp]:
    """The events of a range of indexes, with their numbers, for a batch with as many numbers as events."""
    return table.part(start, stop), replace(stamp, first=stamp.first + start, last=stamp.first + stop - 1)
