"""Deliveries as requests: the columns that came, under a stamp that names each event for ever."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer, field_head
from millrace_server.agent.channel_reader import Delivery
from millrace_server.agent.sinks.millrace.joining import JOINED_BYTES_MAX, ColumnsJoiner
from millrace_server.channels.batches import StoredBatch

DELIVERIES_BEFORE_GROWTH = 64
"""After so many deliveries that were taken, requests that were made small may be larger again."""

GAPS_BETWEEN_PROMISES = 64
"""After so many gaps in its numbers, the target is told which of them will never be filled."""


class Request(NamedTuple):
    """One append."""

    encoded: bytes
    event_count: int
    has_condition: bool
    """Whether it names an event that must have been stored before it."""


class RequestEncoder:
    """Makes the requests of one AppendStream, which are in the order of the channel.

    Each but the first says behind which event it belongs. So where one of them is refused, all that were sent behind it
    without waiting for its answer are refused too, and nothing overtakes it.

    Args:
        target_channel: Where they go.
        capacity: Events that the target takes at once.
        events_max: At most so many events in a request, since larger ones were refused.
    """

    def __init__(self, target_channel: str, capacity: int, events_max: int) -> None:
        self._target_channel = target_channel
        self._capacity = capacity
        self._events_max = min(events_max, capacity)
        self._taken_count = 0
        self._last_sequence: int | None = None
        self._gaps_left = 0

    def requests(self, delivery: Delivery) -> list[Request]:
        """The requests for a delivery; most often one."""
        return [
            self._request(delivery, first_sequence, event_count, columns)
            for run in _runs(delivery.batches, self._events_max)
            for first_sequence, event_count, columns in _columns(run)
        ]

    def note_taken(self) -> None:
        """A delivery was taken."""
        self._taken_count += 1
        if self._taken_count % DELIVERIES_BEFORE_GROWTH == 0:
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
            # The events between went elsewhere, and may come back.
            self._gaps_left -= 1
            if self._gaps_left < 0:
                self._gaps_left = GAPS_BETWEEN_PROMISES
                stamp.oldest_open_sequence = delivery.oldest_open_sequence
        self._last_sequence = stamp.last_sequence
        head = pb.AppendStreamRequest(channel=self._target_channel, stamp=stamp).SerializeToString()
        columns_head = field_head(pb.AppendStreamRequest.COLUMNS_FIELD_NUMBER, len(columns))
        return Request(b"".join((head, columns_head, columns)), event_count, after is not None)


def _runs(batches: Iterable[StoredBatch], events_max: int) -> Iterator[list[StoredBatch]]:
    """Batches in groups of neighbours that may become one request."""
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
    """First sequence, number of events and encoded columns of what a group becomes."""
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
