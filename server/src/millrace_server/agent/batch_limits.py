"""The maximum size of a source's batches, derived from the configuration of its channels."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from millrace_server.agent.events import EventTable, part_of
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp

BODY_BYTES_MAX = 8 << 20
"""Larger batches are not faster, and several copies of a batch are in memory."""

_HALVINGS_MAX = 30
_BATCHES_TO_GROW = 100


class BatchLimits:
    """The largest batch that all channels of a source accept, as currently configured.

    If a batch is too large nevertheless, the limits are halved; they grow again with later batches.
    """

    def __init__(self, registry: ChannelRegistry, channels: Sequence[str], events_max: int) -> None:
        self._registry = registry
        self._channels = channels
        self._events_max = events_max
        self._halvings = 0
        self._batches_since = 0

    @property
    def events_max(self) -> int:
        capacities = [config.transaction_capacity for config in self._configs()]
        return max(min([self._events_max, *capacities]) >> self._halvings, 1)

    @property
    def body_bytes_max(self) -> int:
        """Bytes of bodies in a batch: half of what a channel accepts, since interceptors may enlarge the bodies."""
        limits = [config.open_body_bytes_max // 2 for config in self._configs()]
        return max(min([BODY_BYTES_MAX, *limits]) >> self._halvings, 1)

    def _configs(self) -> Iterator[ChannelConfig]:
        return (self._registry.find(name).config for name in self._channels if name in self._registry)

    def note_stored(self) -> None:
        self._batches_since += 1
        if self._halvings and self._batches_since >= _BATCHES_TO_GROW:
            self._halvings -= 1
            self._batches_since = 0

    def note_too_large(self) -> None:
        self._halvings = min(self._halvings + 1, _HALVINGS_MAX)
        self._batches_since = 0

    def pieces(self, table: EventTable, stamp: Stamp) -> Iterator[tuple[EventTable, Stamp]]:
        """Yields a batch in parts within the limits, each with the numbers of its events.

        A batch without exactly one number per event is not split: the numbers of its events are unknown.
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
