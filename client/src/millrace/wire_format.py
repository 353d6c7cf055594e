"""The parts of protobuf's wire format that are written and read without protobuf: fields with bytes or a message.

Columns are passed on as bytes. Parsing them with protobuf only to serialize the same bytes again would cost more than
everything else. So messages with columns are assembled from their other fields, the tag and length of the columns, and
the columns; and they are taken apart in the same way.
"""

from functools import lru_cache
from typing import NamedTuple, TypeAlias

_WIRE_TYPE_BITS = 3
_WIRE_TYPES = (1 << _WIRE_TYPE_BITS) - 1
_VARINT = 0
_LENGTH_DELIMITED = 2
_WIRE_TYPES_READ = (_VARINT, _LENGTH_DELIMITED)
_PAYLOAD_BITS = 7
_MORE_FOLLOW = 1 << _PAYLOAD_BITS
_VARINT_BITS_MAX = 64
_FIELDS_MAX = 64
_WORTH_IT_BYTES = 16 * 1024


Buffer: TypeAlias = bytes | memoryview
"""Bytes, or a view of them."""


class Place(NamedTuple):
    """The position of a field in an encoded message."""

    head: int
    """The offset of its tag."""

    content: int
    """The offset of its content."""

    end: int
    """The offset after its content."""


def field_head(number: int, length: int) -> bytes:
    """Returns the tag and length that precede a field's content."""
    return varint(number << _WIRE_TYPE_BITS | _LENGTH_DELIMITED) + varint(length)


def field(number: int, content: bytes) -> bytes:
    """Encodes a field with bytes, text or a message; returns nothing for empty content, as protobuf does."""
    return field_head(number, len(content)) + content if content else b""


def packed(numbers: list[int]) -> bytes:
    """Returns the content of a packed field of non-negative numbers. Fast if all are equal, or all are below 128."""
    if not numbers:
        return b""
    if numbers.count(numbers[0]) == len(numbers):
        return varint(numbers[0]) * len(numbers)
    if max(numbers) < _MORE_FOLLOW:
        return bytes(numbers)
    return b"".join(map(varint, numbers))


def repeated_number(content: bytes) -> tuple[int, int] | None:
    """Returns the number that a packed field repeats, and how often; None if it holds different numbers."""
    try:
        number, length = read_varint(content, 0)
    except (IndexError, OverflowError):
        return None
    count = len(content) // length
    return (number, count) if content == varint(number) * count else None


def place_of(number: int, message: Buffer) -> Place | None:
    """Finds a field with bytes or a message.

    Returns:
        None if the message has no such field or several, has unexpected fields, or is truncated: then protobuf must
        parse it. None also if protobuf is faster: for a small message, or for many fields.
    """
    message_bytes = len(message)
    if message_bytes < _WORTH_IT_BYTES:
        return None
    place = None
    head = 0
    try:
        for _ in range(_FIELDS_MAX):
            tag = message[head]
            wire_type = tag & _WIRE_TYPES
            if tag >= _MORE_FOLLOW or wire_type not in _WIRE_TYPES_READ:
                return None
            value, end = read_varint(message, head + 1)
            if wire_type == _LENGTH_DELIMITED:
                content, end = end, end + value
                if tag >> _WIRE_TYPE_BITS == number:
                    # Protobuf may reject a length that is encoded in more bytes than necessary.
                    if place is not None or (content > head + 2 and not message[content - 1]):
                        return None
                    place = Place(head, content, end)
            if end == message_bytes:
                return place
            head = end
    except (IndexError, OverflowError):
        # The message is truncated, or is none.
        return None
    return None


def read_varint(message: Buffer, position: int) -> tuple[int, int]:
    """Returns a number in base 128, the lowest bits first, and the offset after it.

    Raises:
        IndexError: The message ends inside the number.
        OverflowError: The number has more than 64 bits.
    """
    byte = message[position]
    if byte < _MORE_FOLLOW:
        return byte, position + 1
    value = 0
    for bits in range(0, _VARINT_BITS_MAX, _PAYLOAD_BITS):
        byte = message[position]
        position += 1
        value |= (byte & (_MORE_FOLLOW - 1)) << bits
        if byte < _MORE_FOLLOW:
            return value, position
    raise OverflowError


@lru_cache(1 << 14)
def varint(value: int) -> bytes:
    """Encodes a number of at least 0 in base 128."""
    encoded = bytearray()
    while value >= _MORE_FOLLOW:
        encoded.append(value & (_MORE_FOLLOW - 1) | _MORE_FOLLOW)
        value >>= _PAYLOAD_BITS
    encoded.append(value)
    return bytes(encoded)
