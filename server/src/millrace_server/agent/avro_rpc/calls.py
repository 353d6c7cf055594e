"""Calls of Avro RPC, and their responses.

call:     metadata: map of bytes | message: string | parameters
response: metadata: map of bytes | is error: boolean | response, or a union of errors
"""

from typing import NamedTuple

from millrace.wire_format import read_varint, varint
from millrace_server.agent.avro_rpc.protocol import Status

_TWO_BYTES_FROM = 0x80
_MESSAGE_NAME_BYTES_MAX = 256
_METADATA_ENTRIES_MAX = 1_000
_ERROR_TEXT_BYTES_MAX = 1_000

NO_METADATA = b"\x00"
_NO_ERROR, _ERROR = b"\x00", b"\x01"
_STRING_OF_ERRORS = b"\x00"
"""The first branch of the union of errors is a string, for every message."""


class BadCallError(Exception):
    """Raised when bytes are not a valid call, or not a valid response, of the protocol."""


class RemoteError(Exception):
    """Raised when a server responds to a call with an error; the message is its text."""


def long(value: int) -> bytes:
    """Encodes a number in zigzag order, so that small negative numbers are short too."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number and the position after it. Raises BadCallError."""
    try:
        byte = data[position]
        if byte < _TWO_BYTES_FROM:
            # Most numbers have one byte, and a call for each of them would be noticeably slower.
            return (byte >> 1) ^ -(byte & 1), position + 1
        value, position = read_varint(data, position)
    except IndexError:
        raise BadCallError("the bytes end in the middle of a number") from None
    except OverflowError:
        raise BadCallError("a number has more than 64 bits") from None
    return (value >> 1) ^ -(value & 1), position


def read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    """Returns bytes or the encoded text at a position, and the position after them. Raises BadCallError."""
    size, start = read_long(data, position)
    if not 0 <= size <= len(data) - start:
        raise BadCallError(f"a value declares {size} bytes, but only {len(data) - start} follow")
    return data[start : start + size], start + size


def read_block_count(data: bytes, position: int) -> tuple[int, int]:
    """Returns the number of items in the next block of an array or a map; 0 at its end. Raises BadCallError."""
    count, position = read_long(data, position)
    if count < 0:
        # A negative count is followed by the size of the block, for readers that skip it.
        _, position = read_long(data, position)
    return abs(count), position


def _skip_metadata(data: bytes, position: int) -> int:
    entries_left = _METADATA_ENTRIES_MAX
    count, position = read_block_count(data, position)
    while count:
        entries_left -= count
        if entries_left < 0:
            raise BadCallError(f"the metadata has more than {_METADATA_ENTRIES_MAX} entries")
        for _ in range(count):
            _, position = read_bytes(data, position)
            _, position = read_bytes(data, position)
        count, position = read_block_count(data, position)
    return position


class Call(NamedTuple):
    """A call without its parameters."""

    message: str
    """Its name; empty for a ping."""
    position: int
    """Where its parameters begin."""


def read_call(payload: bytes, position: int) -> Call:
    """Reads a call up to its parameters. Raises BadCallError."""
    name, position = read_bytes(payload, _skip_metadata(payload, position))
    if len(name) > _MESSAGE_NAME_BYTES_MAX:
        raise BadCallError(
            f"the name of a message has {len(name)} bytes; at most {_MESSAGE_NAME_BYTES_MAX} are allowed"
        )
    return Call(name.decode(errors="replace"), position)


def call_head(message: str) -> bytes:
    """Returns what precedes the parameters of a call."""
    name = message.encode()
    return NO_METADATA + long(len(name)) + name


def status_response(status: Status) -> bytes:
    """Returns the response to a call."""
    return NO_METADATA + _NO_ERROR + long(status)


def error_response(text: str) -> bytes:
    """Returns the response to a refused call."""
    encoded = text.encode(errors="replace")[:_ERROR_TEXT_BYTES_MAX].decode(errors="ignore").encode()
    return NO_METADATA + _ERROR + _STRING_OF_ERRORS + long(len(encoded)) + encoded


def read_response(payload: bytes, position: int) -> Status:
    """Reads the response to a call.

    Raises:
        RemoteError: The server responded with an error.
        BadCallError: The bytes are not a valid response.
    """
    position = _skip_metadata(payload, position)
    flag = payload[position : position + 1]
    if flag == _ERROR:
        text = (
            read_bytes(payload, position + 2)[0] if payload[position + 1 : position + 2] == _STRING_OF_ERRORS else b""
        )
        raise RemoteError(text[:_ERROR_TEXT_BYTES_MAX].decode(errors="replace") or "an error of an unknown type")
    try:
        return Status(read_long(payload, position + 1)[0] if flag == _NO_ERROR else -1)
    except ValueError:
        raise BadCallError(f"the response is neither a status nor an error: {payload[position:][:20].hex()}") from None
