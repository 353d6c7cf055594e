"""HTTP/2 frame by frame, for tests of invalid clients."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_END_STREAM = 1
_END_HEADERS = 4


class FrameKind(IntEnum):
    """Kinds of frames, as RFC 9113 numbers them."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


@dataclass(frozen=True)
class Frame:
    """One frame."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def ends_call(self) -> bool:
        """Whether the server has no more to say to the call."""
        is_last = self.kind == FrameKind.HEADERS and bool(self.flags & _END_STREAM)
        return is_last or self.kind in {FrameKind.RST_STREAM, FrameKind.GOAWAY}

    def encode(self) -> bytes:
        """The frame's bytes."""
        head = len(self.payload).to_bytes(3, "big") + bytes([self.kind, self.flags])
        return head + self.stream.to_bytes(4, "big") + self.payload


class RawConnection:
    """A connection that sends arbitrary frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *frames: Frame) -> None:
        """Sends frames."""
        self._writer.write(b"".join(frame.encode() for frame in frames))
        await self._writer.drain()

    async def receive(self) -> Frame | None:
        """The next frame; None if the other side has closed."""
        try:
            head = await self._reader.readexactly(_HEAD_BYTES)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)

    async def receive_kind(self, kind: FrameKind) -> Frame | None:
        """The next frame of a kind; None if the other side closed before it sent one."""
        while (frame := await self.receive()) is not None and frame.kind != kind:
            pass
        return frame

    async def receive_all(self) -> list[Frame]:
        """All frames until the other side closes."""
        frames = []
        while (frame := await self.receive()) is not None:
            frames.append(frame)
        return frames


@asynccontextmanager
async def raw_connection(address: str, preface: bytes | None = None) -> AsyncGenerator[RawConnection]:
    """Connects and begins HTTP/2.

    Args:
        address: The server's `host:port`.
        preface: What to send first instead of the HTTP/2 preface.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    settings = Frame(FrameKind.SETTINGS, 0, 0, b"").encode()
    writer.write(_PREFACE + settings if preface is None else preface)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


def call_headers(stream: int, path: str, *more: tuple[bytes, bytes]) -> Frame:
    """The headers that begin a gRPC call, and any others; its request must follow."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "test",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    named = [(name.encode(), value.encode()) for name, value in fields.items()]
    block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in [*named, *more])
    return Frame(FrameKind.HEADERS, _END_HEADERS, stream, block)


def reset(stream: int) -> Frame:
    """Cancels a stream."""
    return Frame(FrameKind.RST_STREAM, 0, stream, (8).to_bytes(4, "big"))


def _literal(text: bytes) -> bytes:
    # HPACK without its tables and its Huffman code.
    length, rest = min(len(text), 127), len(text) - 127
    more = []
    while rest >= 0:
        more.append(rest % 128 | (128 if rest >= 128 else 0))
        rest = rest // 128 or -1
    return bytes([length, *more]) + text
