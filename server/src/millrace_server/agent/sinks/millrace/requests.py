"""The encoding of deliveries as requests: unchanged columns, with a stamp that identifies each event forever."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from millrace.columns import HEADER_CELLS_MAX, HEADER_KEYS_MAX
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer
from millrace_client.append_session import append_request
from millrace_server.agent.channel_reader import Delivery
from millrace_server.channels.batches import StoredBatch

JOINED_BYTES_MAX = 1 << 20
"""The maximum number of bytes of joined events; above that, a separate request costs less than joining."""

DELIVERIES_BEFORE_GROWTH = 64
"""After this many stored deliveries, requests that were made smaller may grow again."""

GAPS_PER_REPORT = 64
"""After this many gaps in the numbers, a stamp reports which of them will never be filled."""


class Request(NamedTuple):
    """One append."""

    encoded: bytes
    event_count: int
    has_condition: bool
    """Whether the server stores it only after another event."""


class RequestEncoder:
    """Encodes the requests of an AppendStream, in the order of the channel.

    Each request except the first names the event that it follows. So if one of them is refused, all requests that were
    sent after it without waiting for the response are refused too, and no event overtakes another.
    """

    def __init__(self, target_channel: str, capacity: int, events_max: int) -> None:
        self._target_channel = target_channel
        self._capacity = capacity
        self._events_max = min(events_max, capacity)
        self._stored_count = 0
        self._last_sequence: int | None = None
        self._gaps_left = 0

    def requests(self, delivery: Delivery) -> list[Request]:
        """Returns the requests for a delivery, usually one."""
        return [
            self._request(delivery, first_sequence, event_count, columns)
            for run in _runs(delivery.batches, self._events_max)
            for first_sequence, event_count, columns in _columns(run)
        ]

    def note_stored(self) -> None:
        self._stored_count += 1
        if self._stored_count % DELIVERIES_BEFORE_GROWTH == 0:
            self._events_max = min(2 * self._events_max, self._capacity)

    def _request(self, delivery: Delivery, first_sequence: int, event_count: int, columns: Buffer) -> Request:
        stamp = event_pb2.ProducerStamp(
            producer_id=delivery.channel_id,
            first_sequence=first_sequence,
            last_sequence=first_sequence + event_count - 1,
        )
        after = self._last_sequence
        if after is not None:
            stamp.after_sequence = after
        if after is None or first_sequence != after + 1:
            # The events in between were taken by others, who may return them.
            self._gaps_left -= 1
            if self._gaps_left < 0:
                self._gaps_left = GAPS_PER_REPORT
                stamp.oldest_open_sequence = delivery.oldest_open_sequence
        self._last_sequence = stamp.last_sequence
        encoded = append_request(self._target_channel, stamp, (columns,), len(columns))
        return Request(encoded, event_count, after is not None)


def _runs(batches: Iterable[StoredBatch], events_max: int) -> Iterator[list[StoredBatch]]:
    """Groups adjacent batches that may become one request."""
    run: list[StoredBatch] = []
    event_count = body_bytes = 0
    for batch in _cut(batches, events_max):
        event_count += batch.count
        body_bytes += batch.window.body_bytes
        is_next = bool(run) and run[-1].end_sequence == batch.first_sequence
        if run and not (is_next and event_count <= events_max and body_bytes <= JOINED_BYTES_MAX):
            yield run
            run, event_count, body_bytes = [], batch.count, batch.window.body_bytes
        run.append(batch)
    yield run


def _cut(batches: Iterable[StoredBatch], events_max: int) -> Iterator[StoredBatch]:
    for batch in batches:
        for start in range(0, batch.count, events_max):
            yield batch.part(start, min(start + events_max, batch.count))


def _columns(run: list[StoredBatch]) -> Iterator[tuple[int, int, Buffer]]:
    """Yields the first sequence, the number of events and the encoded columns of each request of a group."""
    first_sequence = run[0].first_sequence
    if len(run) == 1:
        yield first_sequence, run[0].count, run[0].window.columns()
        return
    joiner = ColumnsJoiner()
    for batch in run:
        columns = event_pb2.EventColumns.FromString(batch.window.columns())  # type: ignore[arg-type] # stubs know bytes only
        if not joiner.add(columns):
            yield first_sequence, joiner.count, joiner.build().SerializeToString()
            first_sequence = batch.first_sequence
            joiner = ColumnsJoiner()
            joiner.add(columns)
    yield first_sequence, joiner.count, joiner.build().SerializeToString()


class ColumnsJoiner:
    """Joins columns without decoding events, so that small batches need no separate request, commit and fsync."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._body_sizes: list[int] = []
        self._bodies: list[bytes] = []
        self._headers: dict[str, list[event_pb2.HeaderColumn | None]] = {}
        self._byte_count = 0
        self.count = 0

    def add(self, columns: event_pb2.EventColumns) -> bool:
        """Appends columns to the others; returns False without a change if they do not fit."""
        bodies = columns.bodies
        byte_count = len(bodies) + _header_bytes(columns)
        if self._counts and not self._admits(columns, byte_count):
            return False
        for header in columns.headers:
            column = self._headers.setdefault(header.key, [])
            column += [None] * (len(self._counts) - len(column))
            column.append(header)
        self._counts.append(columns.count)
        self._body_sizes += columns.body_sizes[:]
        self._bodies.append(bodies)
        self._byte_count += byte_count
        self.count += columns.count
        return True

    def _admits(self, columns: event_pb2.EventColumns, byte_count: int) -> bool:
        key_count = len(self._headers) + sum([header.key not in self._headers for header in columns.headers])
        return (
            key_count <= HEADER_KEYS_MAX
            and key_count * (self.count + columns.count) <= HEADER_CELLS_MAX
            and self._byte_count + byte_count <= JOINED_BYTES_MAX
        )

    def build(self) -> event_pb2.EventColumns:
        return event_pb2.EventColumns(
            count=self.count,
            body_sizes=self._body_sizes,
            bodies=b"".join(self._bodies),
            headers=[self._joined(key, column) for key, column in self._headers.items()],
        )

    def _joined(self, key: str, column: Sequence[event_pb2.HeaderColumn | None]) -> event_pb2.HeaderColumn:
        first = column[0]
        if first is not None and len(first.sizes) == 1 and first.sizes[0] and column.count(first) == len(self._counts):
            # All events have the same value.
            return first
        sizes: list[int] = []
        values: list[bytes] = []
        for index, count in enumerate(self._counts):
            header = column[index] if index < len(column) else None
            if header is None:
                sizes += [0] * count
            elif len(header.sizes) == count:
                sizes += header.sizes[:]
                values.append(header.values)
            else:
                sizes += header.sizes[:] * count
                values.append(header.values * count)
        return event_pb2.HeaderColumn(key=key, sizes=sizes, values=b"".join(values))


def _header_bytes(columns: event_pb2.EventColumns) -> int:
    """Returns the bytes of the header values if each event has its own copy."""
    count = columns.count
    return sum(
        [len(header.values) if len(header.sizes) == count else len(header.values) * count for header in columns.headers]
    )
