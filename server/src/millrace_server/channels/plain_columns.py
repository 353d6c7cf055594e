"""Counts the usual columns without parsing their bodies."""

from google.protobuf.message import DecodeError

from millrace.columns import HEADER_KEYS_MAX, ColumnsError, check_header
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer, field, place_of, repeated_number
from millrace_server.storage.v1 import packed_columns_pb2 as pb

_BODIES_FIELD = event_pb2.EventColumns.BODIES_FIELD_NUMBER
_SIZES_FIELD = event_pb2.HeaderColumn.SIZES_FIELD_NUMBER


class _NotPlainError(Exception):
    """Only protobuf and `check_columns` can decide whether these columns are valid."""


def count_plain(raw: Buffer) -> tuple[int, int] | None:
    """Returns the event count and body bytes of columns that `check_columns` would accept.

    Returns None where they contradict themselves, where their bytes differ from what protobuf would write by more than
    the order of the fields, and where protobuf is faster, see `place_of`.
    """
    place = place_of(_BODIES_FIELD, raw)
    # Protobuf would not write a field for bodies without bytes.
    if place is None or place.content == place.end:
        return None
    body_bytes = place.end - place.content
    rest = b"".join((raw[: place.head], raw[place.end :]))
    try:
        return _checked_count(rest, body_bytes), body_bytes
    except (_NotPlainError, ColumnsError, DecodeError):
        return None


def _checked_count(rest: bytes, body_bytes: int) -> int:
    """Returns the number of events in valid columns; `rest` is the columns without their bodies."""
    columns = pb.PackedColumns.FromString(rest)
    columns.DiscardUnknownFields()
    event_count, _, size_sum = count_sizes(columns.body_sizes)
    if columns.ByteSize() != len(rest) or event_count != columns.count or size_sum != body_bytes:
        raise _NotPlainError
    headers = columns.headers
    if not len({header.key for header in headers}) == len(headers) <= HEADER_KEYS_MAX:
        raise _NotPlainError
    for header in headers:
        _check_header(header, event_count)
    return event_count


def _check_header(header: pb.PackedHeader, event_count: int) -> None:
    values = header.values
    if not values.isascii():
        check_header(0, _parsed_header(header.SerializeToString()), event_count)
        return
    size_count, zero_count, size_sum = count_sizes(header.sizes)
    holds_for_all = size_count == 1 and not zero_count
    # The size of a value that is there is one more than its bytes.
    if not (holds_for_all or size_count == event_count) or size_sum - (size_count - zero_count) != len(values):
        raise _NotPlainError


def count_sizes(packed: bytes) -> tuple[int, int, int]:
    """Returns how many sizes a packed field holds, how many of them are 0, and their sum."""
    if (repeated := repeated_number(packed)) is not None:
        number, count = repeated
        return count, 0 if number else count, number * count
    if packed.isascii():
        # One byte each.
        return len(packed), packed.count(0), sum(packed)
    sizes = _parsed_header(field(_SIZES_FIELD, packed)).sizes[:]
    return len(sizes), sizes.count(0), sum(sizes)


def _parsed_header(encoded: bytes) -> event_pb2.HeaderColumn:
    header = event_pb2.HeaderColumn.FromString(encoded)
    if header.ByteSize() != len(encoded):
        raise _NotPlainError
    return header
