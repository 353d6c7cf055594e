"""Batches: events that are sent, responded and sent again together."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

from millrace.columns import ColumnsCutter
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import field as wire_field
from millrace.wire_format import field_head, packed
from millrace_client.append_session import append_request
from millrace_client.events import Stamp
from millrace_client.producing.channel_buffer import ChannelBuffer, OrderingBucket
from millrace_client.producing.pages import Page
from millrace_client.producing.servers import Batch, Part

_BODIES_FIELD = event_pb2.EventColumns.BODIES_FIELD_NUMBER
_BODY_SIZES_FIELD = event_pb2.EventColumns.BODY_SIZES_FIELD_NUMBER
_HEADERS_FIELD = event_pb2.EventColumns.HEADERS_FIELD_NUMBER
_KEY_FIELD = event_pb2.HeaderColumn.KEY_FIELD_NUMBER
_SIZES_FIELD = event_pb2.HeaderColumn.SIZES_FIELD_NUMBER
_VALUES_FIELD = event_pb2.HeaderColumn.VALUES_FIELD_NUMBER


def seal(  # noqa: PLR0913, PLR0917 - all that a batch consists of
    buffer: ChannelBuffer,
    pages: Sequence[Page],
    buckets: list[OrderingBucket],
    stamp: Stamp,
    attempts_kept_max: int,
    now: float,
) -> Batch:
    """Returns the batch of these pages, and drops the pages' events."""
    created_at = min(page.created_at for page in pages)
    request = request_of_pages(buffer.channel, stamp, pages)
    for page in pages:
        page.drop_content()
    return Batch(
        buffer=buffer,
        parts=[Part(page, page.dropped_count, page.count) for page in pages],
        stamp=stamp,
        request=request,
        created_at=created_at,
        # An ordered batch has waited for those before it; only from now on it takes time itself.
        timed_from=now if buffer.is_ordered else created_at,
        held_bytes=sum(page.held_bytes for page in pages),
        attempts=deque(maxlen=attempts_kept_max),
        buckets=buckets,
    )


def split_in_halves(batch: Batch) -> list[Batch]:
    """Returns two batches of half the events each, which keep their numbers."""
    return _cut(batch, [0, batch.count // 2, batch.count])


def split_by_size(batch: Batch, bytes_max: int) -> list[Batch]:
    """Returns at least two batches of about this many bytes; if one event has most of them, it and its neighbours."""
    sizes = columns_of_request(batch.request).body_sizes[:]
    if 2 * max(sizes) > sum(sizes):
        return split_around_largest(batch)
    part_count = min(max(math.ceil(len(batch.request) / bytes_max), 2), batch.count)
    return _cut(batch, [batch.count * index // part_count for index in range(part_count + 1)])


def split_around_largest(batch: Batch) -> list[Batch]:
    """Returns batches of the events before the largest one, of that one alone, and of those after it."""
    sizes = columns_of_request(batch.request).body_sizes[:]
    index = sizes.index(max(sizes))
    return _cut(batch, sorted({0, index, index + 1, batch.count}))


def _cut(batch: Batch, borders: Sequence[int]) -> list[Batch]:
    """Returns the batches that replace one. The first has its buckets and is followed by the others."""
    cutter = ColumnsCutter(columns_of_request(batch.request))
    first_number = batch.stamp.first_sequence
    pieces = []
    held_left = batch.held_bytes
    for start, stop in pairwise(borders):
        stamp = Stamp(batch.stamp.producer_id, first_number + start, first_number + stop - 1)
        held = held_left if stop == batch.count else batch.held_bytes * (stop - start) // batch.count
        held_left -= held
        pieces.append(
            Batch(
                buffer=batch.buffer,
                parts=_parts_between(batch.parts, start, stop),
                stamp=stamp,
                request=request_of_columns(batch.channel, stamp, cutter.cut(start, stop)),
                created_at=batch.created_at,
                timed_from=batch.timed_from,
                held_bytes=held,
                attempts=batch.attempts.copy(),
                attempt_count=batch.attempt_count,
                doubted=batch.doubted,
                doubted_at=batch.doubted_at,
                last_error=batch.last_error,
            )
        )
    pieces[0].buckets = batch.buckets
    pieces[0].followers = deque([*pieces[1:], *batch.followers])
    return pieces


def _parts_between(parts: Sequence[Part], start: int, stop: int) -> list[Part]:
    chosen = []
    offset = 0
    for part in parts:
        count = part.stop - part.start
        first, last = max(start - offset, 0), min(stop - offset, count)
        if first < last:
            chosen.append(Part(part.page, part.start + first, part.start + last))
        offset += count
    return chosen


class RetryQueue:
    """The batches that wait for another attempt, each with the time of that attempt."""

    def __init__(self) -> None:
        self._due: dict[Batch, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[tuple[Batch, float]]:
        return iter(list(self._due.items()))

    def add(self, batch: Batch, due: float) -> None:
        self._due[batch] = due

    def discard(self, batch: Batch) -> None:
        """Removes a batch, if it is here."""
        self._due.pop(batch, None)

    def due(self, now: float) -> list[Batch]:
        """Returns the batches whose time has come, earliest first."""
        return [batch for batch, due in sorted(self._due.items(), key=lambda entry: entry[1]) if due <= now]


def request_of_pages(channel: str, stamp: Stamp, pages: Sequence[Page]) -> bytes:
    """Encodes an AppendStreamRequest with the events of pages, one page after the other."""
    if len(pages) == 1:
        bodies, columns = pages[0].bodies, pages[0].columns
    else:
        bodies, columns = _joined(pages)
    count = len(bodies)
    sizes = list(map(len, bodies))
    events = b"".join(
        [
            event_pb2.EventColumns(count=count).SerializeToString(),
            wire_field(_BODY_SIZES_FIELD, packed(sizes)),
            *[wire_field(_HEADERS_FIELD, _column(name, values, count)) for name, values in columns.items()],
        ]
    )
    body_bytes = sum(sizes)
    bodies_head = field_head(_BODIES_FIELD, body_bytes) if body_bytes else b""
    columns_bytes = len(events) + len(bodies_head) + body_bytes
    return append_request(channel, wire_stamp(stamp), (events, bodies_head, *bodies), columns_bytes)


def request_of_columns(channel: str, stamp: Stamp, columns: event_pb2.EventColumns) -> bytes:
    """Encodes an AppendStreamRequest with events that are in a message already."""
    encoded = columns.SerializeToString()
    return append_request(channel, wire_stamp(stamp), (encoded,), len(encoded))


def columns_of_request(request: bytes) -> event_pb2.EventColumns:
    """Returns the events of a request that was encoded here."""
    return pb.AppendStreamRequest.FromString(request).columns


def wire_stamp(stamp: Stamp) -> event_pb2.ProducerStamp:
    """Returns a stamp as the wire has it."""
    return event_pb2.ProducerStamp(
        producer_id=stamp.producer_id, first_sequence=stamp.first_sequence, last_sequence=stamp.last_sequence
    )


def _joined(pages: Sequence[Page]) -> tuple[list[bytes], dict[str, list[str | None]]]:
    bodies: list[bytes] = []
    columns: dict[str, list[str | None]] = {}
    for page in pages:
        for name, values in page.columns.items():
            column = columns.setdefault(name, [])
            column.extend([None] * (len(bodies) - len(column)))
            column.extend(values)
        bodies.extend(page.bodies)
    return bodies, columns


def _column(name: str, values: list[str | None], count: int) -> bytes:
    """Encodes a HeaderColumn."""
    if len(values) == count and values[0] is not None and values.count(values[0]) == count:
        constant = values[0].encode()
        return _encoded_column(name, [len(constant) + 1], constant)
    # Most often each event has the header, and it is ASCII: then a few passes that create no objects suffice.
    try:
        text = "".join(values)  # type: ignore[arg-type] # raises where there is a None
    except TypeError:
        return _sparse_column(name, values, count)
    if len(values) != count or not text.isascii():
        return _sparse_column(name, values, count)
    lengths = list(map(len, values))  # type: ignore[arg-type] # there is no None
    is_even = lengths.count(lengths[0]) == count
    sizes = [lengths[0] + 1] * count if is_even else [length + 1 for length in lengths]
    return _encoded_column(name, sizes, text.encode())


def _sparse_column(name: str, values: list[str | None], count: int) -> bytes:
    encoded = [None if value is None else value.encode() for value in values]
    sizes = [0 if value is None else len(value) + 1 for value in encoded]
    sizes.extend([0] * (count - len(sizes)))
    return _encoded_column(name, sizes, b"".join(value for value in encoded if value))


def _encoded_column(name: str, sizes: list[int], values: bytes) -> bytes:
    return b"".join(
        (
            wire_field(_KEY_FIELD, name.encode()),
            wire_field(_SIZES_FIELD, packed(sizes)),
            wire_field(_VALUES_FIELD, values),
        )
    )
