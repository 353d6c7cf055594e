"""The pieces of protobuf's wire format that are written and read by hand: fields that hold bytes or a message.

Columns are passed on as the bytes that they are. Having protobuf parse them only to write the same bytes again would
cost more than all else, so messages that hold columns are put together: their other fields, the head of the field that
holds the columns, the columns. And they are taken apart likewise.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

_WIRE_TYPE_BITS = 3
_WIRE_TYPES = (1 << _WIRE_TYPE_BITS) - 1
_VARINT = 0
_FIXED_64 = 1
_LENGTH_DELIMITED = 2
_FIXED_32 = 5
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
        None where the message has no such field, or several of that number, or is not plain, or not whole. Protobuf
        must parse it then, which knows what all of that means. None also where protobuf is faster: with a small
        message, or many fields.
    """
    if len(message) < _WORTH_IT_BYTES:
        return None
    try:
        places = list(_places_of(number, message))
    except IndexError:
        return None
    return places[0] if len(places) == 1 and _is_plain(number, message, places[0]) else None


def _places_of(number: int, message: Buffer) -> Iterator[Place]:
    """All fields of a number.

    Raises:
        IndexError: The message is not plain, not whole, or has too many fields.
    """
    position = 0
    for _ in range(_FIELDS_MAX):
        head = position
        tag, position = _read_varint(message, head)
        wire_type = tag & _WIRE_TYPES
        if wire_type == _LENGTH_DELIMITED:
            length, content = _read_varint(message, position)
            position = content + length
            if tag >> _WIRE_TYPE_BITS == number:
                yield Place(head, content, position)
        elif wire_type == _VARINT:
            _, position = _read_varint(message, position)
        elif wire_type == _FIXED_64:
            position += 8
        elif wire_type == _FIXED_32:
            position += 4
        else:
            raise IndexError
        if position == len(message):
            return
    raise IndexError


def _is_plain(number: int, message: Buffer, place: Place) -> bool:
    """Whether a field's head is no longer than it need be: one that is may be more than protobuf understands."""
    return message[place.head : place.content] == field_head(number, place.end - place.content)


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
