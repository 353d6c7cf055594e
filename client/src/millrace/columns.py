"""Columns: the form in which Millrace's own programs exchange and store events, and from which Arrow is created.

A message `EventColumns` holds all bodies of a batch in one bytes field and each header in another, with their sizes
next to them, so that neither a server nor the wire touches single events. This module creates columns from events
(`columns_from_events`), checks columns from other programs (`check_columns`), and splits them (`ColumnsCutter`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple, Self

from millrace.v1 import event_pb2

HEADER_KEYS_MAX = 256
"""The most header keys of one batch."""

HEADER_CELLS_MAX = 1_000_000
"""The most sizes (keys times events) of one batch from `columns_from_events`; bounds the cost of sparse headers."""

# Upper bounds of what protobuf adds: to a size in a packed field, to a message with its few fields, to a row or one
# header of a row with their tags and lengths.
_VARINT_BYTES = 5
_MESSAGE_BYTES = 64
_ROW_BYTES = 24

_CONTINUATION_BYTES = range(0x80, 0xC0)


class ColumnsError(ValueError):
    """Raised when columns are inconsistent; the message says which field, its value and what is allowed."""


def check_columns(columns: event_pb2.EventColumns) -> tuple[int, int]:
    """Checks that columns are consistent, so that splitting them and creating rows cannot fail.

    Takes some microseconds for a thousand events: it compares sums and lengths, and touches no event.

    Returns:
        The number of events, and the bytes of their bodies.

    Raises:
        ColumnsError: A sum is wrong, a key is repeated, there are too many keys, or values are not UTF-8.
    """
    count, body_sizes = columns.count, columns.body_sizes
    if len(body_sizes) != count:
        raise ColumnsError(f"columns.body_sizes: has {len(body_sizes)} entries; columns.count is {count}")
    body_bytes = len(columns.bodies)
    # As lists: iterating protobuf's own sequences is several times slower. For one event, a list is what takes longest.
    size_sum = body_sizes[0] if count == 1 else sum(body_sizes[:])
    if size_sum != body_bytes:
        raise ColumnsError(f"columns.bodies: has {body_bytes} bytes; columns.body_sizes sum to {size_sum}")
    if columns.headers:
        _check_headers(columns.headers[:], count)
    return count, body_bytes


def _check_headers(headers: Sequence[event_pb2.HeaderColumn], count: int) -> None:
    if len(headers) > HEADER_KEYS_MAX:
        raise ColumnsError(f"columns.headers: has {len(headers)} keys; at most {HEADER_KEYS_MAX} are allowed")
    keys = set()
    for index, header in enumerate(headers):
        keys.add(header.key)
        sizes, values = header.sizes, header.values
        # One value, for one event or for all, which most headers have: nothing is left to check in it.
        if not (len(sizes) == 1 and sizes[0] == len(values) + 1 and values.isascii()):
            check_header(index, header, count)
    if len(keys) != len(headers):
        raise ColumnsError("columns.headers: a key is duplicated; keys must be unique")


def check_header(index: int, header: event_pb2.HeaderColumn, count: int) -> None:
    """Checks one header of this many events.

    Raises:
        ColumnsError: A sum is wrong, or values are not UTF-8.
    """
    sizes = header.sizes[:]
    values = header.values
    if len(sizes) not in {1, count}:
        raise ColumnsError(
            f"columns.headers[{index}].sizes: has {len(sizes)} entries; 1 or columns.count, {count}, are allowed"
        )
    if sizes == [0] and count != 1:
        raise ColumnsError(
            f"columns.headers[{index}].sizes: a single entry that holds for all events is 0; it must be above 0"
        )
    value_bytes = sum(sizes) - (len(sizes) - sizes.count(0))
    if value_bytes != len(values):
        raise ColumnsError(f"columns.headers[{index}].values: has {len(values)} bytes; its sizes say {value_bytes}")
    if values.isascii():
        return
    try:
        values.decode()
    except UnicodeDecodeError as error:
        raise ColumnsError(f"columns.headers[{index}].values: is not UTF-8 at byte {error.start}") from None
    # The whole is UTF-8, so each value is, unless a boundary between two values splits a character.
    ends = accumulate(max(size - 1, 0) for size in sizes[:-1])
    if any(end < len(values) and values[end] in _CONTINUATION_BYTES for end in ends):
        raise ColumnsError(f"columns.headers[{index}].values: a value ends inside a UTF-8 character")


def columns_from_events(events: Iterable[tuple[Mapping[str, str], bytes]]) -> list[event_pb2.EventColumns]:
    """Converts rows to columns.

    Args:
        events: For each event its headers and its body, as `event_pb2.Event` has them.

    Returns:
        The same events in order. One batch, or several if the events have more than `HEADER_KEYS_MAX` different keys,
        or so many sparse ones that the table of sizes would exceed `HEADER_CELLS_MAX`. Empty without events.

    Raises:
        ColumnsError: One event alone has more than `HEADER_KEYS_MAX` headers.
    """
    batches = []
    builder = ColumnsBuilder()
    for headers, body in events:
        if not builder.has_space_for(headers):
            batches.append(builder.build())
            builder = ColumnsBuilder()
        builder.add(headers, body)
    if builder.count:
        batches.append(builder.build())
    return batches


class ColumnsBuilder:
    """Collects events in columns."""

    def __init__(self) -> None:
        self._body_sizes: list[int] = []
        self._bodies: list[bytes] = []
        self._headers: dict[str, _HeaderBuilder] = {}

    @property
    def count(self) -> int:
        """Events added so far."""
        return len(self._bodies)

    def has_space_for(self, headers: Mapping[str, str]) -> bool:
        """Whether an event with these headers fits. An empty builder accepts any legal event."""
        if not self._bodies:
            return True
        known = self._headers
        key_count = len(known) + sum(key not in known for key in headers)
        return key_count <= HEADER_KEYS_MAX and key_count * (self.count + 1) <= HEADER_CELLS_MAX

    def add(self, headers: Mapping[str, str], body: bytes) -> None:
        """Adds one event after the others.

        Raises:
            ColumnsError: The event has more than `HEADER_KEYS_MAX` headers; nothing was added.
        """
        if len(headers) > HEADER_KEYS_MAX:
            raise ColumnsError(f"headers: an event has {len(headers)} headers; at most {HEADER_KEYS_MAX} are allowed")
        index = len(self._bodies)
        known = self._headers
        for key, value in headers.items():
            header = known.get(key)
            if header is None:
                header = known[key] = _HeaderBuilder([], [])
            encoded = value.encode()
            # Events since the last one with this key had no such header.
            if missing := index - len(header.sizes):
                header.sizes.extend([0] * missing)
            header.sizes.append(len(encoded) + 1)
            header.values.append(encoded)
        self._bodies.append(body)
        self._body_sizes.append(len(body))

    def build(self) -> event_pb2.EventColumns:
        count = len(self._bodies)
        return event_pb2.EventColumns(
            count=count,
            body_sizes=self._body_sizes,
            bodies=b"".join(self._bodies),
            headers=[header.column(key, count) for key, header in self._headers.items()],
        )


@dataclass(slots=True)
class _HeaderBuilder:
    sizes: list[int]
    values: list[bytes]

    def column(self, key: str, count: int) -> event_pb2.HeaderColumn:
        values = self.values
        if len(values) == count and values.count(values[0]) == count:
            return event_pb2.HeaderColumn(key=key, sizes=self.sizes[:1], values=values[0])
        sizes = self.sizes + [0] * (count - len(self.sizes))
        return event_pb2.HeaderColumn(key=key, sizes=sizes, values=b"".join(values))


class CommitTimes(NamedTuple):
    """When the events of a batch were committed, in microseconds since 1970 (UTC)."""

    first: int = 0
    """The time of the first event; 0 if the times are not known."""
    offsets: Sequence[int] = ()
    """For each event, how much later than the first it was committed; empty if all were committed together."""

    @classmethod
    def of(cls, batch: event_pb2.EventBatch) -> Self:
        if not batch.HasField("commit_time"):
            return cls()
        time = batch.commit_time
        return cls(time.seconds * 1_000_000 + time.nanos // 1_000, batch.commit_offsets)

    def cut(self, start: int, stop: int) -> Self:
        """Returns the times of a range. Its offsets still count from the first event of the batch."""
        return self._replace(offsets=self.offsets[start:stop])


class ColumnsCutter:
    """Cuts ranges out of checked columns, and converts them to rows.

    Offsets are computed once, so that many cuts of a batch together cost as much as one. Indexes
    count the batch's events from 0; ranges include `start` and exclude `stop`.
    """

    def __init__(self, columns: event_pb2.EventColumns) -> None:
        self._columns = columns
        # Reading a bytes field copies it: once here, not for each cut.
        self._bodies = columns.bodies
        self._body_ends = list(accumulate(columns.body_sizes[:], initial=0))
        self._headers: list[_HeaderCutter] | None = None

    @property
    def count(self) -> int:
        """The number of all events."""
        return len(self._body_ends) - 1

    def body_bytes(self, start: int, stop: int) -> int:
        """Returns the bytes of the bodies in a range."""
        return self._body_ends[stop] - self._body_ends[start]

    def stop_within(self, start: int, body_bytes_max: int) -> int:
        """Returns the largest `stop` for which the bodies from `start` on have at most this many bytes."""
        return bisect_right(self._body_ends, self._body_ends[start] + body_bytes_max) - 1

    def columns_bytes_bound(self, start: int, stop: int) -> int:
        """Returns an upper bound of the serialized bytes of the range's columns."""
        count = stop - start
        headers = sum(header.columns_bytes_bound(start, stop) for header in self._header_cutters())
        return _MESSAGE_BYTES + count * _VARINT_BYTES + self.body_bytes(start, stop) + headers

    def rows_bytes_bound(self, start: int, stop: int) -> int:
        """Returns an upper bound of the bytes of the range's events, serialized one by one."""
        headers = sum(header.rows_bytes_bound(start, stop) for header in self._header_cutters())
        return _MESSAGE_BYTES + (stop - start) * _ROW_BYTES + self.body_bytes(start, stop) + headers

    def key_count(self, start: int, stop: int) -> int:
        """Returns the number of header keys in a range; of the whole batch if that is allowed."""
        headers = self._header_cutters()
        if len(headers) <= HEADER_KEYS_MAX:
            return len(headers)
        return sum(header.is_in(start, stop) for header in headers)

    def cut(self, start: int, stop: int) -> event_pb2.EventColumns:
        if start == 0 and stop == self.count:
            return self._columns
        ends = self._body_ends
        return event_pb2.EventColumns(
            count=stop - start,
            body_sizes=self._columns.body_sizes[start:stop],
            bodies=self._bodies[ends[start] : ends[stop]],
            headers=[column for header in self._header_cutters() if (column := header.cut(start, stop))],
        )

    def rows(self, start: int, stop: int) -> Iterator[tuple[dict[str, str], bytes]]:
        """Returns the headers and the body of each event of the range."""
        return zip(self.headers(start, stop), self.bodies(start, stop), strict=True)

    def bodies(self, start: int, stop: int) -> Iterator[bytes]:
        """Returns the body of each event of the range."""
        ends = self._body_ends
        return map(self._bodies.__getitem__, map(slice, ends[start:stop], ends[start + 1 : stop + 1]))

    def headers(self, start: int, stop: int) -> Iterator[dict[str, str]]:
        """Yields the headers of each event of the range."""
        columns = [(header.key, header.strings(start, stop)) for header in self._header_cutters()]
        for _ in range(start, stop):
            headers = {}
            for key, values in columns:
                value = next(values)
                if value is not None:
                    headers[key] = value
            yield headers

    def all_headers(self) -> dict[str, str | list[str | None]]:
        """Returns the values of each header by its key, as `header_values` does."""
        return {header.key: header.all_strings(self.count) for header in self._header_cutters()}

    def header_values(self, key: str) -> str | list[str | None] | None:
        """Returns a header's value of all events, or of each event; None if none has it."""
        found = next((header for header in self._header_cutters() if header.key == key), None)
        return None if found is None else found.all_strings(self.count)

    def _header_cutters(self) -> list["_HeaderCutter"]:
        if self._headers is None:
            self._headers = [_HeaderCutter(header, self.count) for header in self._columns.headers]
        return self._headers


class _HeaderCutter:
    def __init__(self, column: event_pb2.HeaderColumn, count: int) -> None:
        self.key = column.key
        self._key_bytes = len(column.key.encode())
        self._values = column.values
        self._sizes: Sequence[int] = column.sizes[:]
        self._is_constant = len(self._sizes) == 1 and count != 1
        self._ends = (
            [0] if self._is_constant else list(accumulate((max(size - 1, 0) for size in self._sizes), initial=0))
        )

    def is_in(self, start: int, stop: int) -> bool:
        return self._is_constant or any(self._sizes[start:stop])

    def columns_bytes_bound(self, start: int, stop: int) -> int:
        own = _MESSAGE_BYTES + self._key_bytes
        if self._is_constant:
            return own + len(self._values)
        return own + (stop - start) * _VARINT_BYTES + self._ends[stop] - self._ends[start]

    def rows_bytes_bound(self, start: int, stop: int) -> int:
        own = (stop - start) * (self._key_bytes + _ROW_BYTES)
        if self._is_constant:
            return own + (stop - start) * len(self._values)
        return own + self._ends[stop] - self._ends[start]

    def cut(self, start: int, stop: int) -> event_pb2.HeaderColumn | None:
        """Returns the column of the range; None if no event of it has the header."""
        if self._is_constant:
            return event_pb2.HeaderColumn(key=self.key, sizes=self._sizes, values=self._values)
        sizes = self._sizes[start:stop]
        if not any(sizes):
            return None
        values = self._values[self._ends[start] : self._ends[stop]]
        return event_pb2.HeaderColumn(key=self.key, sizes=sizes, values=values)

    def strings(self, start: int, stop: int) -> Iterator[str | None]:
        """Returns the value of each event of the range; None for an event without the header."""
        if self._is_constant:
            return repeat(self._values.decode(), stop - start)
        return self._varying_strings(start, stop)

    def all_strings(self, count: int) -> str | list[str | None]:
        if not self._values.isascii():
            return self._values.decode() if self._is_constant else list(self._varying_strings(0, count))
        # Slicing text is cheaper than decoding each slice of bytes.
        text = self._values.decode()
        if self._is_constant:
            return text
        ends = pairwise(self._ends)
        return [text[start:end] if size else None for size, (start, end) in zip(self._sizes, ends, strict=True)]

    def _varying_strings(self, start: int, stop: int) -> Iterator[str | None]:
        values = self._values
        first = self._ends[start]
        for size, end in zip(self._sizes[start:stop], self._ends[start + 1 : stop + 1], strict=True):
            yield values[first:end].decode() if size else None
            first = end
