"""The interface of file formats' writers, and the writers of text and JSON lines."""

import zlib
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring
from typing import Any, BinaryIO, Literal, TypeAlias

from millrace_server.agent.sinks.files.chunks import EventChunk, Rows, chosen

Compression: TypeAlias = Literal["none", "gzip", "zstd", "snappy"]
"""The compression of a file, or of its blocks."""

_GZIP_WINDOW_BITS = 31


class EventWriter(ABC):
    """Writes events into one open file; the caller closes the file."""

    buffered_bytes: int = 0
    """Approximately how many bytes are buffered in memory; 0 if that is negligible."""

    @abstractmethod
    def write(self, chunk: EventChunk, rows: Rows) -> None:
        """Writes some events of a chunk."""

    def write_buffered(self) -> None:  # noqa: B027 - most formats have no buffer
        """Writes buffered events, as far as the format permits without ending the file."""

    def finish(self) -> None:
        """Writes the remaining data, which completes the file."""
        self.write_buffered()

    def discard(self) -> None:  # noqa: B027 - most formats have nothing to release
        """Releases its resources without completing the file. Never raises."""


class StreamWriter(EventWriter):
    """Writes one event after another, compressed as a single stream, so that the usual tools can decompress it."""

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self._file = file
        self._compressor = _compressor_for(compression)

    def _write_bytes(self, data: bytes) -> None:
        self._file.write(data if self._compressor is None else self._compressor.compress(data))

    def finish(self) -> None:
        if self._compressor is not None:
            self._file.write(self._compressor.flush())


def _compressor_for(compression: Compression) -> Any:
    match compression:
        case "gzip":
            return zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
        case "zstd":
            import zstandard

            return zstandard.ZstdCompressor().compressobj()
        case _:
            return None


class TextWriter(StreamWriter):
    """Writes the bodies unchanged, each followed by a newline if configured."""

    def __init__(self, file: BinaryIO, compression: Compression, *, append_newline: bool) -> None:
        super().__init__(file, compression)
        self._end = b"\n" if append_newline else b""

    def write(self, chunk: EventChunk, rows: Rows) -> None:
        bodies = chosen(chunk.bodies, rows)
        self._write_bytes(self._end.join(bodies) + self._end)


class JsonWriter(StreamWriter):
    """Writes a line of JSON for each event: `{"sequence": 1, "headers": {"host": "web-1"}, "body": "..."}`.

    A body that is not UTF-8 is stored as `body_base64` instead of `body`, so that no event is changed.
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
        self._write_bytes("".join(lines).encode())

    def _body(self, body: bytes) -> str:
        if self._is_body_text:
            try:
                return f'"body": {encode_basestring(body.decode())}'
            except UnicodeDecodeError:
                # Encoded below.
                pass
        return f'"body_base64": "{b64encode(body).decode()}"'


def _header_texts(chunk: EventChunk, rows: Rows) -> Iterator[str]:
    """Returns the headers of each event as members of a JSON object."""
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
