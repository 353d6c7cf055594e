"""The framing of Avro's Netty transport.

    serial: int32 | buffer count: int32 | for each buffer, length: int32 | its bytes

All numbers are big-endian. The payload is the concatenation of the buffers; their boundaries have no meaning. A
response has the serial of its request.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEAD = struct.Struct(">Ii")
_LENGTH = struct.Struct(">i")

_BUFFER_BYTES_MIN = 8
"""Limits the number of buffers: they must have this many bytes on average. Java's have 8 KiB, except for a few short
ones of each call, which `_BUFFERS_MIN` allows for."""

_BUFFERS_MIN = 64


class FramingError(Exception):
    """Raised when bytes are not a frame, or a frame exceeds a limit; the start of the next frame is then unknown."""


class Frame(NamedTuple):
    """A request or a response."""

    serial: int
    payload: bytes


def framed(serial: int, *buffers: bytes) -> bytes:
    """Returns a frame."""
    parts = [_HEAD.pack(serial, len(buffers))]
    for buffer in buffers:
        parts += (_LENGTH.pack(len(buffer)), buffer)
    return b"".join(parts)


class FrameReader:
    """Finds frames in a stream of bytes.

    It buffers the received part of one frame, and allocates no memory for a length that is only declared.
    """

    def __init__(self, payload_bytes_max: int) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._buffers_max = max(payload_bytes_max // _BUFFER_BYTES_MIN, _BUFFERS_MIN)
        self._head = bytearray()
        self._payload = bytearray()
        self._serial = 0
        self._buffers_left = 0
        self._bytes_left = 0
        self._has_begun = False
        """Whether the head of a frame has been read, and the frame is incomplete."""

    @property
    def is_inside(self) -> bool:
        """Whether a frame is incomplete."""
        return self._has_begun or bool(self._head)

    @property
    def held_bytes(self) -> int:
        return len(self._payload)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that these bytes complete; must be exhausted before the next call.

        Raises FramingError.
        """
        view = memoryview(data)
        position = 0
        while position < len(view):
            if self._bytes_left:
                position = self._fill_buffer(view, position)
            elif self._has_begun and not self._head and position + _LENGTH.size <= len(view):
                # A call of Java has a buffer every 8 KiB, so this is the usual case.
                self._begin_buffer(*_LENGTH.unpack_from(view, position))
                position += _LENGTH.size
            else:
                position = self._fill_head(view, position)
            if self._has_begun and not self._buffers_left and not self._bytes_left:
                yield self._take()

    def _fill_buffer(self, view: memoryview, position: int) -> int:
        part = view[position : position + self._bytes_left]
        self._payload += part
        self._bytes_left -= len(part)
        return position + len(part)

    def _fill_head(self, view: memoryview, position: int) -> int:
        """Reads a head, which may arrive in parts."""
        head = _LENGTH if self._has_begun else _HEAD
        part = view[position : position + head.size - len(self._head)]
        self._head += part
        if len(self._head) == head.size:
            numbers = head.unpack(self._head)
            self._head.clear()
            if self._has_begun:
                self._begin_buffer(*numbers)
            else:
                self._begin_frame(*numbers)
        return position + len(part)

    def _begin_frame(self, serial: int, buffer_count: int) -> None:
        if not 0 <= buffer_count <= self._buffers_max:
            raise FramingError(
                f"a frame declares {buffer_count} buffers; at most {self._buffers_max} are allowed. TLS and "
                "compression must be configured identically on both sides"
            )
        self._serial, self._buffers_left = serial, buffer_count
        self._has_begun = True

    def _begin_buffer(self, length: int) -> None:
        if not 0 <= length <= self._payload_bytes_max - len(self._payload):
            raise FramingError(
                f"a frame declares a buffer of {length} bytes after {len(self._payload)}; at most "
                f"{self._payload_bytes_max} bytes are allowed in a frame"
            )
        self._bytes_left = length
        self._buffers_left -= 1

    def _take(self) -> Frame:
        frame = Frame(self._serial, bytes(self._payload))
        self._payload = bytearray()
        self._has_begun = False
        return frame
