"""Encodes pages as requests. Bodies are copied once: from the caller's objects into the request."""

from collections.abc import Sequence

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import field, field_head, packed
from millrace_client.append_session import append_request
from millrace_client.events import Stamp
from millrace_client.producing.pages import Page

_BODIES_FIELD = event_pb2.EventColumns.BODIES_FIELD_NUMBER
_BODY_SIZES_FIELD = event_pb2.EventColumns.BODY_SIZES_FIELD_NUMBER
_HEADERS_FIELD = event_pb2.EventColumns.HEADERS_FIELD_NUMBER
_KEY_FIELD = event_pb2.HeaderColumn.KEY_FIELD_NUMBER
_SIZES_FIELD = event_pb2.HeaderColumn.SIZES_FIELD_NUMBER
_VALUES_FIELD = event_pb2.HeaderColumn.VALUES_FIELD_NUMBER


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
            field(_BODY_SIZES_FIELD, packed(sizes)),
            *[field(_HEADERS_FIELD, _column(name, values, count)) for name, values in columns.items()],
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
        (field(_KEY_FIELD, name.encode()), field(_SIZES_FIELD, packed(sizes)), field(_VALUES_FIELD, values))
    )
