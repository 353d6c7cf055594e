"""Events as a channel stores them: the received columns, and windows on them.

Nothing in here copies an event. A channel keeps the bytes of a request's columns as they were received. The queue, the
transactions and the responses hold windows on them; only a window that is sent is cut out.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from millrace.columns import HEADER_KEYS_MAX, ColumnsCutter, check_columns
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer
from millrace_server.channels.plain_columns import count_plain
from millrace_server.errors import MillraceError
from millrace_server.wal.records import Location

# Upper bounds of what protobuf adds: to a batch in a response; to an event with its own time; to one row for its
# headers' tags and lengths.
_BATCH_BYTES = 64
_OFFSET_BYTES = 5
_ROW_HEADERS_BYTES = 24 * (HEADER_KEYS_MAX + 1)


class Form(Enum):
    """How events travel in a response."""

    ROWS = "rows"
    COLUMNS = "columns"


class ColumnsSource(Protocol):
    """Reads columns that are not in memory."""

    def read(self, stored: "StoredColumns") -> Buffer:
        """The columns as they came."""


class StoredColumns:
    """The checked columns of one request: in memory, in the log, or in both. Or a run: those of several small requests.

    `location` is None while they are in memory only. That of a run begins with the first of its `record_count` PUT
    records and ends with the last; see `EventQueue`. `offsets` says for each event how many microseconds after the time
    of its batch it was committed; None if all were committed then.
    """

    __slots__ = (
        "_cutter",
        "_raw",
        "_source",
        "body_bytes",
        "count",
        "is_batch",
        "location",
        "offsets",
        "raw_bytes",
        "record_count",
    )

    def __init__(self, raw: Buffer, count: int, body_bytes: int) -> None:
        self._raw: Buffer | None = raw
        self.raw_bytes = len(raw)
        self.count = count
        self.body_bytes = body_bytes
        self.location: Location | None = None
        self._source: ColumnsSource | None = None
        self._cutter: ColumnsCutter | None = None
        self.offsets: array[int] | None = None
        self.record_count = 1
        # Whether a response may have all as one batch. A run may have too many header keys, which is known once it was
        # read.
        self.is_batch = True

    @classmethod
    def in_log(  # noqa: PLR0913 - what a checkpoint states of each
        cls,
        location: Location,
        source: ColumnsSource,
        count: int,
        body_bytes: int,
        raw_bytes: int,
        *,
        record_count: int = 1,
    ) -> "StoredColumns":
        """Returns columns that are in a log, and are read into memory on demand."""
        stored = cls(b"", count, body_bytes)
        stored._raw = None
        stored.raw_bytes = raw_bytes
        stored.record_count = record_count
        stored.is_batch = record_count == 1
        # Not `locate`, since replay creates one for each record.
        stored.location, stored._source = location, source
        return stored

    @classmethod
    def of(cls, columns: event_pb2.EventColumns) -> "StoredColumns":
        """Stores columns that are known to be valid."""
        return cls(columns.SerializeToString(), columns.count, len(columns.bodies))

    @classmethod
    def received(cls, received: Buffer | event_pb2.EventColumns) -> "StoredColumns":
        """Checks columns from a client, and keeps the received bytes where the columns are plain.

        Raises:
            ColumnsError: They contradict themselves.
            DecodeError: The bytes are not an EventColumns message.
        """
        if isinstance(received, event_pb2.EventColumns):
            columns = received
        elif (counts := count_plain(received)) is not None:
            return cls(received, *counts)
        else:
            columns = _parsed(received)
        # There may be more in it than protobuf would write: it would be stored and sent again, and no bound knows of
        # it.
        columns.DiscardUnknownFields()
        counts = check_columns(columns)
        return cls(columns.SerializeToString(), *counts)

    @property
    def raw(self) -> Buffer:
        """The serialized columns, read from the log where they are not in memory."""
        # Another thread may have it forgotten in the meantime.
        if (raw := self._raw) is not None:
            return raw
        assert self._source is not None, "columns are in memory or in a log"
        return self._source.read(self)

    @property
    def is_in_memory(self) -> bool:
        return self._raw is not None

    def locate(self, location: Location, source: ColumnsSource) -> None:
        self.location = location
        self._source = source

    def remember(self, raw: Buffer) -> None:
        self._raw = raw

    def as_run(self) -> "StoredColumns":
        """Returns a run of these columns alone, which can grow. They must be in a log."""
        assert self.location is not None, "a run is in a log"
        assert self._source is not None, "what is in a log can be read back"
        run = StoredColumns.in_log(self.location, self._source, self.count, self.body_bytes, self.raw_bytes)
        run.offsets = self.offsets and self.offsets[:]
        return run

    def grow(self, following: "StoredColumns", payload_length: int, offset: int) -> None:
        """Adds the columns after a run that has not been read so far, whose commit was `offset` microseconds later."""
        assert self.location is not None, "a run is in a log"
        assert self._raw is None, "a run that was read does not grow"
        if offset or following.offsets or self.offsets:
            if self.offsets is None:
                self.offsets = array("I", bytes(4 * self.count))
            theirs = following.offsets
            self.offsets.extend([offset + one for one in theirs] if theirs else [offset] * following.count)
        # Not `_replace`, which takes several times as long.
        self.location = Location(self.location.segment_id, self.location.position, payload_length)
        self.count += following.count
        self.body_bytes += following.body_bytes
        self.raw_bytes += following.raw_bytes
        self.record_count += 1
        self.is_batch = False

    def forget(self) -> None:
        """Drops the columns from memory; the log has them."""
        assert self.location is not None, "only a log can give them back"
        self._raw = None
        self._cutter = None

    @property
    def largest_body_bytes(self) -> int:
        return max(_parsed(self.raw).body_sizes[:], default=0)

    def first_index_above(self, response_bytes_max: int) -> int | None:
        """Returns the first event that alone, in either form, might not fit a response; None if all do."""
        # No event has more in it than the whole, however it is encoded.
        if self.raw_bytes + _ROW_HEADERS_BYTES <= response_bytes_max:
            return None
        return _first_above(self.cutter(), 0, self.count, response_bytes_max)

    def cutter(self, *, keep: bool = False) -> ColumnsCutter:
        """Returns a cutter of these columns; `keep` stores it for the next call, until the batch is gone."""
        cutter = self._cutter or ColumnsCutter(_parsed(self.raw))
        if keep:
            self._cutter = cutter
        return cutter

    def forget_cutter(self) -> None:
        self._cutter = None


@dataclass(slots=True)
class Window:
    """Events `start` to `stop` (excluded) of stored columns; immutable, see `StoredBatch`."""

    stored: StoredColumns
    start: int
    stop: int
    body_bytes: int

    @classmethod
    def whole(cls, stored: StoredColumns) -> "Window":
        return cls(stored, 0, stored.count, stored.body_bytes)

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        return self.stop - self.start == self.stored.count

    def part(self, start: int, stop: int) -> "Window":
        """Returns a window inside this one; indexes count from its first event."""
        if start == 0 and stop == self.count:
            return self
        start, stop = self.start + start, self.start + stop
        return Window(self.stored, start, stop, self.stored.cutter(keep=True).body_bytes(start, stop))

    def columns(self) -> Buffer:
        """Returns the window's events as a serialized EventColumns."""
        if self.is_whole:
            return self.stored.raw
        return self.stored.cutter().cut(self.start, self.stop).SerializeToString()

    def rows(self) -> Iterator[tuple[dict[str, str], bytes]]:
        """Yields the headers and the body of each event."""
        return self.stored.cutter().rows(self.start, self.stop)

    def fit(self, body_bytes_max: int, response_bytes_max: int, form: Form) -> "Fit":
        """Returns how many of the first events stay within both limits."""
        offset_bytes = _OFFSET_BYTES if self.stored.offsets else 0
        is_batch = self.is_whole and self.stored.is_batch
        if form is Form.COLUMNS and is_batch and self.body_bytes <= body_bytes_max:
            response_bytes = self.stored.raw_bytes + _BATCH_BYTES + offset_bytes * self.count
            if response_bytes <= response_bytes_max:
                return Fit(self.count, self.body_bytes, response_bytes)
        cutter = self.stored.cutter()
        own_bound = cutter.columns_bytes_bound if form is Form.COLUMNS else cutter.rows_bytes_bound

        def bound(start: int, stop: int) -> int:
            return own_bound(start, stop) + offset_bytes * (stop - start)

        # Both bounds grow with the range, so the furthest stop that fits is found by halving. A run may have more keys
        # than a batch may.
        low, high = self.start, min(cutter.stop_within(self.start, body_bytes_max), self.stop)
        while low < high:
            middle = (low + high + 1) // 2
            if (
                bound(self.start, middle) <= response_bytes_max
                and cutter.key_count(self.start, middle) <= HEADER_KEYS_MAX
            ):
                low = middle
            else:
                high = middle - 1
        return Fit(low - self.start, cutter.body_bytes(self.start, low), bound(self.start, low))


@dataclass(frozen=True, slots=True)
class Fit:
    """The first events of a window that stay within a response's limits."""

    count: int  # 0 where the first event alone exceeds a limit.
    body_bytes: int
    response_bytes: int  # An upper bound of their encoded size.


@dataclass(slots=True)
class StoredBatch:
    """A window whose events have their sequences, and the time of their commit.

    Times are in microseconds since 1970, and 0 for events that a release without times has stored. `commit_time` is
    what the offsets of the stored columns, if any, are added to: see `first_time`.

    Immutable by convention: each commit creates some, and a frozen dataclass takes three times as long to create.
    """

    first_sequence: int
    window: Window
    commit_time: int = 0

    @property
    def count(self) -> int:
        return self.window.stop - self.window.start

    @property
    def end_sequence(self) -> int:
        """One past the last event's sequence."""
        return self.first_sequence + self.window.stop - self.window.start

    @property
    def is_in_log(self) -> bool:
        """Whether a log has its events; otherwise a crash loses them."""
        return self.window.stored.location is not None

    @property
    def first_time(self) -> int:
        """When the first event was committed."""
        return self.time_at(0)

    @property
    def last_time(self) -> int:
        """When the last event was committed."""
        return self.time_at(self.count - 1)

    def time_at(self, index: int) -> int:
        """Returns when an event was committed."""
        offsets = self.window.stored.offsets
        return self.commit_time + offsets[self.window.start + index] if offsets else self.commit_time

    def commit_offsets(self) -> Sequence[int]:
        """Returns for each event how many microseconds after the first it was committed; none if all were then."""
        offsets = self.window.stored.offsets
        if offsets is None:
            return ()
        mine = offsets[self.window.start : self.window.stop]
        first = mine[0]
        if mine[-1] == first:
            return ()
        return [offset - first for offset in mine] if first else mine

    def index_since(self, time: int) -> int:
        """Returns the index of the first event that was committed at or after a time; the batch's count if none was."""
        window, offsets = self.window, self.window.stored.offsets
        if offsets is None:
            return 0 if self.commit_time >= time else self.count
        return bisect_left(offsets, time - self.commit_time, window.start, window.stop) - window.start

    def part(self, start: int, stop: int) -> "StoredBatch":
        """Returns a part of the batch; indexes count from its first event."""
        if start == 0 and stop == self.count:
            return self
        return StoredBatch(self.first_sequence + start, self.window.part(start, stop), self.commit_time)

    def between(self, from_sequence: int, to_sequence: int) -> "StoredBatch":
        """Returns the part from one sequence to another (excluded), which must overlap the batch."""
        start = max(from_sequence - self.first_sequence, 0)
        stop = min(to_sequence - self.first_sequence, self.count)
        return self.part(start, stop)

    def without(self, start: int, count: int, body_bytes: int) -> "list[StoredBatch]":
        """Returns what remains without `count` events from an index on, whose bodies have `body_bytes`."""
        if start == 0 and count == self.count:
            return []
        mine, time, stop = self.window, self.commit_time, start + count
        rest_bytes = max(mine.body_bytes - body_bytes, 0)
        if start == 0:
            rest = Window(mine.stored, mine.start + stop, mine.stop, rest_bytes)
            return [StoredBatch(self.first_sequence + stop, rest, time)]
        if stop == self.count:
            rest = Window(mine.stored, mine.start, mine.start + start, rest_bytes)
            return [StoredBatch(self.first_sequence, rest, time)]
        front_bytes = self.measured_bytes(0, start, rest_bytes * start // (self.count - count))
        front = Window(mine.stored, mine.start, mine.start + start, front_bytes)
        back = Window(mine.stored, mine.start + stop, mine.stop, rest_bytes - front_bytes)
        return [StoredBatch(self.first_sequence, front, time), StoredBatch(self.first_sequence + stop, back, time)]

    def measured_bytes(self, start: int, stop: int, share: int) -> int:
        """Returns the bytes of some bodies, or a `share` if they cannot be read; their readers then get an error."""
        try:
            return self.part(start, stop).window.body_bytes
        except MillraceError:
            return min(share, self.window.body_bytes)

    def joined(self, following: "StoredBatch") -> "StoredBatch | None":
        """Returns both batches as one where they are neighbours in the same stored columns, else None."""
        mine, theirs = self.window, following.window
        if (
            mine.stored is not theirs.stored
            or mine.stop != theirs.start
            or self.end_sequence != following.first_sequence
        ):
            return None
        body_bytes = mine.body_bytes + theirs.body_bytes
        window = Window(mine.stored, mine.start, theirs.stop, body_bytes)
        if window.is_whole:
            mine.stored.forget_cutter()
        return StoredBatch(self.first_sequence, window, self.commit_time)


def _parsed(raw: Buffer) -> event_pb2.EventColumns:
    return event_pb2.EventColumns.FromString(raw)  # type: ignore[arg-type] # its stubs know bytes only


def _first_above(cutter: ColumnsCutter, start: int, stop: int, response_bytes_max: int) -> int | None:
    # A range's bound is above that of each event in it: one look clears a whole range, where most are cleared.
    if max(cutter.columns_bytes_bound(start, stop), cutter.rows_bytes_bound(start, stop)) <= response_bytes_max:
        return None
    if stop - start == 1:
        return start
    middle = (start + stop) // 2
    first = _first_above(cutter, start, middle, response_bytes_max)
    return _first_above(cutter, middle, stop, response_bytes_max) if first is None else first
