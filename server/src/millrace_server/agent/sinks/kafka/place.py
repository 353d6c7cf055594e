"""The sink's place in its channel: which events were sent in transactions that Kafka has committed.

The place is stored as an offset of a consumer group, which Kafka commits in the same transaction: one past the newest
event that was sent. Most often all events below it were sent. Where others take from the channel too, or return events
to it, some were not: the offset's metadata names those that are still in the channel. Events that have left the channel
never come back, so they count as sent.
"""

from collections.abc import Iterable, Iterator, Sequence

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.stamps import IntervalSet

METADATA_BYTES_MAX = 4_000
"""Brokers refuse more than `offset.metadata.max.bytes`, by default 4,096."""

_MARK = "millrace:"


class UnknownPlaceError(ValueError):
    """Raised when a place was not written by this sink, or is not complete."""


class Place:
    """Which events of a channel were sent."""

    def __init__(self, next_sequence: int = 1) -> None:
        self._sent = IntervalSet()
        if next_sequence > 1:
            self._sent.add(1, next_sequence - 1)

    @classmethod
    def parse(cls, offset: int, metadata: str) -> "Place":
        """Returns the place of an offset and its metadata; raises UnknownPlaceError."""
        place = cls(offset)
        if not metadata.startswith(_MARK):
            raise UnknownPlaceError(f"the metadata of offset {offset} is {metadata[:100]!r}")
        try:
            for bounds in filter(None, metadata.removeprefix(_MARK).split(",")):
                first, _, last = bounds.partition("-")
                place._sent.remove(int(first), int(last))
        except ValueError:
            raise UnknownPlaceError(f"the metadata of offset {offset} is {metadata[:100]!r}") from None
        return place

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

    def after(self, batches: Iterable[StoredBatch], oldest_sequence: int) -> "Place":
        """Returns the place once these events are sent; those below the channel's oldest one count as sent."""
        place = Place()
        place._sent = self._sent.copy()
        if oldest_sequence > 1:
            place._sent.add(1, oldest_sequence - 1)
        for batch in batches:
            place._sent.add(batch.first_sequence, batch.end_sequence - 1)
        return place

    def unsent(self, batches: Sequence[StoredBatch]) -> Iterator[StoredBatch]:
        """Yields those of the events that were not sent."""
        for batch in batches:
            for first, last in self._sent.gaps(batch.first_sequence, batch.end_sequence - 1):
                yield batch.between(first, last + 1)
