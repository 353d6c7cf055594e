"""What writers of every format do."""

import zlib
from typing import BinaryIO, Literal, Protocol, TypeAlias

from millrace_server.agent.sinks.files.chunks import EventChunk
from millrace_server.agent.sinks.files.partitions import Rows

Compression: TypeAlias = Literal["none", "gzip", "zstd", "snappy"]
"""What packs a file, or its parts."""

_GZIP_WINDOW_BITS = 31


class EventWriter(Protocol):
    """Writes events into one file that it was given, and leaves closing that to whoever opened it."""

    @property
    def buffered_bytes(self) -> int:
        """About so many bytes are held in memory and will be written later."""

    def write(self, chunk: EventChunk, rows: Rows) -> None:
        """Adds some events of a chunk."""

    def write_buffered(self) -> None:
        """Writes what is held in memory, as far as the format can without ending the file."""

    def finish(self) -> None:
        """Writes the rest: the file is whole then."""

    def discard(self) -> None:
        """Ends where the file is not wanted any more. Raises nothing."""


class Packer(Protocol):
    """Packs a stream of bytes."""

    def compress(self, data: bytes, /) -> bytes:
        """What there is to write so far."""

    def flush(self) -> bytes:
        """The rest."""


class PackedStream:
    """A stream of bytes into a file, packed as a whole, so that the usual tools unpack it."""

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self._file = file
        self._packer = _packer(compression)

    def write(self, data: bytes) -> None:
        """Adds bytes."""
        self._file.write(data if self._packer is None else self._packer.compress(data))

    def finish(self) -> None:
        """Writes the rest."""
        if self._packer is not None:
            self._file.write(self._packer.flush())


def _packer(compression: Compression) -> Packer | None:
    match compression:
        case "gzip":
            return zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
        case "zstd":
            import zstandard

            return zstandard.ZstdCompressor().compressobj()
        case _:
            return None
