"""Chunks: the events of deliveries in columns, from which the file formats are written."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from millrace.columns import ColumnsCutter, columns_from_events
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer

SMALL_COUNT = 64
"""Adjacent batches with fewer events are joined, since the cost per chunk would exceed that of its events."""

_CONSTANT_BYTES_MAX = 16 << 20
"""The maximum size of a chunk's constant headers, which files repeat for each event; above it, the chunk is split."""


ItemT = TypeVar("ItemT")

Rows: TypeAlias = Sequence[int]
"""The ascending indexes of some events in a chunk; a range if they are contiguous."""


def chosen(items: Sequence[ItemT], rows: Rows) -> Sequence[ItemT]:
    """Returns the items at these indexes."""
    if len(rows) == len(items):
        return items
    if isinstance(rows, range):
        return items[rows.start : rows.stop]
    return [items[row] for row in rows]


class EventChunk:
    """Events with contiguous sequences.

    Attributes:
        record_batch: The events in Arrow, cached by the Parquet writer, since several files may use parts of it.
    """

    def __init__(self, first_sequence: int, columns: event_pb2.EventColumns) -> None:
        self.first_sequence = first_sequence
        self.columns = columns
        self.count = columns.count
        self.last_sequence = first_sequence + columns.count - 1
        self.record_batch: Any = None

    @cached_property
    def _cutter(self) -> ColumnsCutter:
        return ColumnsCutter(self.columns)

    @cached_property
    def bodies(self) -> list[bytes]:
        return list(self._cutter.bodies(0, self.count))

    @cached_property
    def headers(self) -> "dict[str, str | list[str | None]]":
        """Each header's values by its key: one value for all events, or one value or None per event."""
        return self._cutter.all_headers()

    def header_values(self, key: str) -> Sequence[str | None]:
        """Returns each event's value of a header; None for an event without it."""
        values = self.headers.get(key)
        return values if isinstance(values, list) else [values] * self.count

    def parts(self, ranges: Iterable[tuple[int, int]]) -> "Iterator[EventChunk]":
        """Yields the events in ranges of sequences, both ends included."""
        for first, last in ranges:
            start = first - self.first_sequence
            yield EventChunk(first, self._cutter.cut(start, last + 1 - self.first_sequence))

    def rows(self) -> Iterator[tuple[dict[str, str], bytes]]:
        return self._cutter.rows(0, self.count)


def chunks_of(batches: Iterable[tuple[int, Buffer]]) -> Iterator[EventChunk]:
    """Yields the events of batches, each given as its first sequence and its serialized EventColumns."""
    small: list[EventChunk] = []
    for first_sequence, raw in batches:
        columns = event_pb2.EventColumns.FromString(raw)  # type: ignore[arg-type] # its stubs know bytes only
        chunk = EventChunk(first_sequence, columns)
        if small and (chunk.count >= SMALL_COUNT or first_sequence != small[-1].last_sequence + 1):
            yield from _joined(small)
            small = []
        if chunk.count < SMALL_COUNT:
            small.append(chunk)
        else:
            yield from _cut(chunk)
    yield from _joined(small)


def _joined(chunks: Sequence[EventChunk]) -> Iterator[EventChunk]:
    """Joins adjacent chunks into one, or into several if they have too many header keys."""
    if len(chunks) <= 1:
        for chunk in chunks:
            yield from _cut(chunk)
        return
    sequence = chunks[0].first_sequence
    for columns in columns_from_events(row for chunk in chunks for row in chunk.rows()):
        yield from _cut(EventChunk(sequence, columns))
        sequence += columns.count


def _cut(chunk: EventChunk) -> Iterator[EventChunk]:
    constant_bytes = sum(len(header.values) for header in chunk.columns.headers if len(header.sizes) == 1)
    count_max = max(_CONSTANT_BYTES_MAX // max(constant_bytes, 1), 1)
    if chunk.count <= count_max:
        yield chunk
        return
    starts = range(chunk.first_sequence, chunk.last_sequence + 1, count_max)
    yield from chunk.parts((start, min(start + count_max - 1, chunk.last_sequence)) for start in starts)
