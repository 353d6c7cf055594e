"""The pieces of protobuf's wire format that are written and read by hand: fields that hold bytes or a message.

Columns are passed on as the bytes that they are. Having protobuf parse them only to write the same bytes again would
cost more than all else, so messages that hold columns are put together: their other fields, the head of the field that
holds the columns, the columns. And they are taken apart likewise.
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
"""Bytes, or a view on some of them."""


class Place(NamedTuple):
    """Where a field lies in an encoded message."""

    head: int
    """Where it begins, with its number and wire type."""

    content: int
    """Where the bytes that it holds begin."""

    end: int
    """One past the last of them."""


def field_head(number: int, length: int) -> bytes:
    """What stands before a field's bytes: its number and wire type, and their length."""
    return _varint(number << _WIRE_TYPE_BITS | _LENGTH_DELIMITED) + _varint(length)


def field(number: int, content: bytes) -> bytes:
    """A field that holds bytes, text or a message; nothing where it is empty, as protobuf has it."""
    return field_head(number, len(content)) + content if content else b""


def packed(numbers: list[int]) -> bytes:
    """What a packed field of these holds, none of them below 0. Fast where all are the same, or all are below 128."""
    if not numbers:
        return b""
    if numbers.count(numbers[0]) == len(numbers):
        return _varint(numbers[0]) * len(numbers)
    if max(numbers) < _MORE_FOLLOW:
        return bytes(numbers)
    return b"".join(map(_varint, numbers))


def repeated_number(content: bytes) -> tuple[int, int] | None:
    """The number that a packed field holds again and again, and how often; None where it holds different ones."""
    try:
        number, length = _read_varint(content, 0)
    except IndexError:
        return None
    count = len(content) // length
    return (number, count) if content == _varint(number) * count else None


def place_of(number: int, message: Buffer) -> Place | None:
    """Finds a field that holds bytes or a message.

    Returns:
        None where the message has no such field, or several of that number, or others than ours have, or is not whole.
        Protobuf must parse it then, which knows what all of that means. None also where protobuf is faster: with a
        small message, or many fields.
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
            value, end = _read_varint(message, head + 1)
            if wire_type == _LENGTH_DELIMITED:
                content, end = end, end + value
                if tag >> _WIRE_TYPE_BITS == number:
                    # A length that takes more bytes than it need may be more than protobuf understands.
                    if place is not None or (content > head + 2 and not message[content - 1]):
                        return None
                    place = Place(head, content, end)
            if end == message_bytes:
                return place
            head = end
    except IndexError:
        # It is not whole.
        return None
    return None


def _read_varint(message: Buffer, position: int) -> tuple[int, int]:
    """A number, and where the next thing begins."""
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
    raise IndexError


@lru_cache(1 << 14)
def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= _MORE_FOLLOW:
        encoded.append(value & (_MORE_FOLLOW - 1) | _MORE_FOLLOW)
        value >>= _PAYLOAD_BITS
    encoded.append(value)
    return bytes(encoded)
