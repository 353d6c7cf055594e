"""Avro container files."""

from collections.abc import Sequence
from typing import Any, BinaryIO

from fastavro import parse_schema
from fastavro.write import Writer

from millrace_server.agent.sinks.files.chunks import EventChunk, Rows, chosen
from millrace_server.agent.sinks.files.writers import Compression, EventWriter

BLOCK_BYTES = 256 << 10
"""Records are collected into blocks of this size."""

_CODECS = {"none": "null", "gzip": "deflate", "zstd": "zstandard"}

_COMMON_FIELDS = [
    {"name": "sequence", "type": "long"},
    {"name": "headers", "type": {"type": "map", "values": "string"}},
]
_BINARY_FIELDS = [{"name": "body", "type": "bytes"}]
_TEXT_FIELDS = [
    {"name": "body", "type": ["null", "string"]},
    {"name": "body_bytes", "type": ["null", "bytes"], "default": None},
]


class AvroWriter(EventWriter):
    """Writes a record for each event: `(sequence: long, headers: map<string>, body: bytes)`.

    With text bodies, `body` is `["null", "string"]`; a body that is not UTF-8 is null there and stored in `body_bytes`.
    """

    def __init__(self, file: BinaryIO, compression: Compression, *, is_body_text: bool) -> None:
        self._file = file
        self._is_body_text = is_body_text
        fields = [*_COMMON_FIELDS, *(_TEXT_FIELDS if is_body_text else _BINARY_FIELDS)]
        schema = parse_schema({"type": "record", "name": "Event", "namespace": "millrace", "fields": fields})
        self._writer: Any = Writer(file, schema, codec=_CODECS[compression], sync_interval=BLOCK_BYTES)

    def write(self, chunk: EventChunk, rows: Rows) -> None:
        keys = list(chunk.headers)
        columns: list[Sequence[str | None]] = [chosen(chunk.header_values(key), rows) for key in keys]
        cells = zip(*columns, strict=True) if columns else [()] * len(rows)
        sequences = chosen(range(chunk.first_sequence, chunk.last_sequence + 1), rows)
        for sequence, values, body in zip(sequences, cells, chosen(chunk.bodies, rows), strict=True):
            headers = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
            record = {"sequence": sequence, "headers": headers}
            self._writer.write(record | (_text_fields(body) if self._is_body_text else {"body": body}))

    def write_buffered(self) -> None:
        self._writer.flush()


def _text_fields(body: bytes) -> dict[str, str | bytes | None]:
    try:
        return {"body": body.decode(), "body_bytes": None}
    except UnicodeDecodeError:
        return {"body": None, "body_bytes": body}
