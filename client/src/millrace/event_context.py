"""The W3C trace context in the headers of events: `traceparent` and `tracestate`."""

from collections.abc import Iterator, Mapping

from millrace.columns import HEADER_KEYS_MAX
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer, field, place_of

TRACEPARENT = "traceparent"

KEYS_MAX = HEADER_KEYS_MAX - 8
"""Events with this many header keys, or a batch with this many, get no context: it must not make them too many."""

_BODIES_FIELD = event_pb2.EventColumns.BODIES_FIELD_NUMBER
_HEADERS_FIELD = event_pb2.EventColumns.HEADERS_FIELD_NUMBER


def traceparents(columns: event_pb2.EventColumns) -> Iterator[str]:
    """Yields the `traceparent` of each event that has one; only once if all events share it."""
    for header in columns.headers:
        if header.key == TRACEPARENT:
            yield from _values(header)


def encoded_traceparents(columns: Buffer) -> Iterator[str]:
    """Yields the same for encoded columns, whose bodies are not parsed if they are large."""
    place = place_of(_BODIES_FIELD, columns)
    rest = bytes(columns) if place is None else b"".join((columns[: place.head], columns[place.end :]))
    yield from traceparents(event_pb2.EventColumns.FromString(rest))


def _values(header: event_pb2.HeaderColumn) -> Iterator[str]:
    values = header.values
    start = 0
    for size in header.sizes:
        if size:
            end = start + size - 1
            yield values[start:end].decode()
            start = end


def context_fields(columns: event_pb2.EventColumns, context: Mapping[str, str]) -> bytes:
    """Returns what to append to encoded columns so that all their events have a context.

    Nothing if an event has one already, or if there are too many header keys.
    """
    keys = {header.key for header in columns.headers}
    if len(keys) >= KEYS_MAX or TRACEPARENT in keys:
        return b""
    return b"".join(field(_HEADERS_FIELD, _constant(key, value)) for key, value in context.items() if key not in keys)


def _constant(key: str, value: str) -> bytes:
    encoded = value.encode()
    return event_pb2.HeaderColumn(key=key, sizes=[len(encoded) + 1], values=encoded).SerializeToString()


def headers_with_context(headers: Mapping[str, str], context: Mapping[str, str]) -> Mapping[str, str]:
    """Returns an event's headers with a context, unless the event has one, or too many headers."""
    if not context or TRACEPARENT in headers or len(headers) >= KEYS_MAX:
        return headers
    return {**context, **headers}
