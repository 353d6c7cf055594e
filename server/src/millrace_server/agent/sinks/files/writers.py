"""What writers of every format do."""

import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring
from typing import BinaryIO, Literal, Protocol, TypeAlias

from millrace_server.agent.sinks.files.chunks import EventChunk, Rows, chosen

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


class StreamWriter:
    """What is the same for formats that put events one behind the other."""

    buffered_bytes = 0
    """Nothing to speak of: what the packing holds back."""

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self._stream = PackedStream(file, compression)

    def write_buffered(self) -> None:
        """Nothing is held."""

    def finish(self) -> None:
        self._stream.finish()

    def discard(self) -> None:
        """Nothing is to be given back."""


class TextWriter(StreamWriter):
    """Writes the bodies as they are, each followed by a newline if that is wanted."""

    def __init__(self, file: BinaryIO, compression: Compression, *, append_newline: bool) -> None:
        super().__init__(file, compression)
        self._end = b"\n" if append_newline else b""

    def write(self, chunk: EventChunk, rows: Rows) -> None:
        bodies = chosen(chunk.bodies, rows)
        self._stream.write(self._end.join(bodies) + self._end)


class JsonWriter(StreamWriter):
    """Writes a line of JSON for each event: `{"sequence": 1, "headers": {"host": "web-1"}, "body": "..."}`.

    A body that is no text stands as `body_base64` instead of `body`: no event is refused, and none is changed.
    """

    def __init__(self, file: BinaryIO, compression: Compression, *, is_body_text: bool) -> None:
        super().__init__(file, compression)
        self._is_body_text = is_body_text

    def write(self, chunk: EventChunk, rows: Rows) -> None:
        sequences = chosen(range(chunk.first_sequence, chunk.last_sequence + 1), rows)
        lines = (
            f'{{"sequence": {sequence}, "headers": {{{headers}}}, {self._body(body)}}}\n'
            for sequence, headers, body in zip(
                sequences, _header_texts(chunk, rows), chosen(chunk.bodies, rows), strict=True
            )
        )
        self._stream.write("".join(lines).encode())

    def _body(self, body: bytes) -> str:
        if self._is_body_text:
            try:
                return f'"body": {encode_basestring(body.decode())}'
            except UnicodeDecodeError:
                # It goes as what it is, bytes.
                pass
        return f'"body_base64": "{b64encode(body).decode()}"'


def _header_texts(chunk: EventChunk, rows: Rows) -> Iterator[str]:
    """For each event its headers as JSON has them between braces."""
    columns: list[Sequence[str | None]] = []
    for key, values in chunk.headers.items():
        name = encode_basestring(key)
        if isinstance(values, str):
            columns.append([f"{name}: {encode_basestring(values)}"] * len(rows))
        else:
            cells = chosen(values, rows)
            columns.append([None if cell is None else f"{name}: {encode_basestring(cell)}" for cell in cells])
    if not columns:
        return iter([""] * len(rows))
    return (", ".join(filter(None, cells)) for cells in zip(*columns, strict=True))
