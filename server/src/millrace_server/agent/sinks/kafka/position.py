"""The sink's position in its channel: which events were sent in transactions that Kafka has committed.

The position is stored as an offset of a consumer group, which Kafka commits in the same transaction: one past the
newest event that was sent. Usually all events below it were sent. If other consumers take from the channel too, or
return events to it, some were not: the offset's metadata lists those that are still in the channel. Events that have
left the channel never come back, so they count as sent.
"""

from collections.abc import Iterable, Iterator, Sequence

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.stamps import IntervalSet

METADATA_BYTES_MAX = 4_000
"""Brokers refuse more than `offset.metadata.max.bytes`, by default 4,096."""

_MARK = "millrace:"


class UnknownPositionError(ValueError):
    """Raised when a position was not written by this sink, or is incomplete."""


class ChannelPosition:
    """The events of a channel that were sent."""

    def __init__(self, next_sequence: int = 1) -> None:
        self._sent = IntervalSet()
        if next_sequence > 1:
            self._sent.add(1, next_sequence - 1)

    @classmethod
    def parse(cls, offset: int, metadata: str) -> "ChannelPosition":
        """Returns the position that an offset and its metadata describe. Raises UnknownPositionError."""
        position = cls(offset)
        if not metadata.startswith(_MARK):
            raise UnknownPositionError(f"the metadata of offset {offset} is {metadata[:100]!r}")
        try:
            for bounds in filter(None, metadata.removeprefix(_MARK).split(",")):
                first, _, last = bounds.partition("-")
                position._sent.remove(int(first), int(last))
        except ValueError:
            raise UnknownPositionError(f"the metadata of offset {offset} is {metadata[:100]!r}") from None
        return position

    @property
    def next_sequence(self) -> int:
        return self._sent.lasts[-1] + 1 if len(self._sent) else 1

    @property
    def has_gaps(self) -> bool:
        return bool(self._gaps())

    def metadata(self) -> str:
        return _MARK + ",".join(f"{first}-{last}" for first, last in self._gaps())

    def _gaps(self) -> list[tuple[int, int]]:
        """Returns the events below the next sequence that were not sent."""
        return self._sent.gaps(1, self.next_sequence - 1)

    def after(self, batches: Iterable[StoredBatch], oldest_sequence: int) -> "ChannelPosition":
        """Returns the position after these events are sent; events below the channel's oldest one count as sent."""
        position = ChannelPosition()
        position._sent = self._sent.copy()
        if oldest_sequence > 1:
            position._sent.add(1, oldest_sequence - 1)
        for batch in batches:
            position._sent.add(batch.first_sequence, batch.end_sequence - 1)
        return position

    def unsent(self, batches: Sequence[StoredBatch]) -> Iterator[StoredBatch]:
        """Yields the events that were not sent."""
        for batch in batches:
            for first, last in self._sent.gaps(batch.first_sequence, batch.end_sequence - 1):
                yield batch.between(first, last + 1)
