"""Flume's compression of connections: each direction is one zlib stream, as Netty's `ZlibEncoder` makes it.

The stream is flushed after each frame. With TLS, the compressed stream is encrypted.
"""

from collections.abc import Iterator

from zlib_ng import zlib_ng

_PIECE_BYTES = 64 * 1024
_SMALL_WINDOW_BITS, _SMALL_MEMORY = 9, 1


class CompressionError(Exception):
    """Raised when bytes do not continue a zlib stream."""


class Inflater:
    """Decompresses one direction of a connection, in pieces of limited size whatever the ratio of compression is."""

    def __init__(self) -> None:
        self._stream = zlib_ng.decompressobj()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the decompressed data of these bytes. Raises CompressionError."""
        while data:
            try:
                piece = self._stream.decompress(data, _PIECE_BYTES)
            except zlib_ng.error as error:  # type: ignore[misc]  # its stub calls it Any
                raise CompressionError(
                    f"the bytes are not compressed with zlib ({error}); compression must be configured "
                    "identically on both sides"
                ) from None
            if self._stream.unused_data:
                raise CompressionError("there are bytes after the end of the compressed stream")
            data = self._stream.unconsumed_tail
            if piece:
                yield piece
            elif not data:
                return


class Deflater:
    """Compresses one direction of a connection."""

    def __init__(self, level: int, window_bits: int = zlib_ng.MAX_WBITS, memory: int = zlib_ng.DEF_MEM_LEVEL) -> None:
        self._stream = zlib_ng.compressobj(level, zlib_ng.DEFLATED, window_bits, memory)

    @classmethod
    def for_responses(cls) -> "Deflater":
        """Returns a compressor for short responses, which uses a few KiB of memory instead of hundreds."""
        return cls(1, _SMALL_WINDOW_BITS, _SMALL_MEMORY)

    def deflated(self, frame: bytes) -> bytes:
        """Returns a compressed frame, flushed so that the other side can decompress all of it."""
        return self._stream.compress(frame) + self._stream.flush(zlib_ng.Z_SYNC_FLUSH)
