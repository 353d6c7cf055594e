"""How much a source should hand over at once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from millrace_server.agent.events import EventTable
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp

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
