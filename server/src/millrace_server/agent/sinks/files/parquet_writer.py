"""Parquet files."""

from contextlib import suppress
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.arrow import RecordBatchBuilder
from millrace_server.agent.sinks.files.chunks import EventChunk, Rows
from millrace_server.agent.sinks.files.writers import Compression, EventWriter

ROW_GROUP_BYTES = 16 << 20
"""Events are collected into row groups of this size."""

_COMMON_FIELDS = [
    pa.field("sequence", pa.int64(), nullable=False),
    pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
]
_BINARY_SCHEMA = pa.schema([*_COMMON_FIELDS, pa.field("body", pa.binary(), nullable=False)])
_TEXT_SCHEMA = pa.schema([*_COMMON_FIELDS, pa.field("body", pa.string()), pa.field("body_bytes", pa.binary())])


class ParquetWriter(EventWriter):
    """Writes a row for each event: `(sequence: int64, headers: map<string, string>, body: binary)`.

    With text bodies, `body` is a string; a body that is not UTF-8 is null there and stored in the column `body_bytes`.
    """

    def __init__(self, file: BinaryIO, compression: Compression, *, is_body_text: bool) -> None:
        self._schema = _TEXT_SCHEMA if is_body_text else _BINARY_SCHEMA
        self._writer: Any = pq.ParquetWriter(file, self._schema, compression=compression)
        self._batches: list[pa.RecordBatch] = []

    def write(self, chunk: EventChunk, rows: Rows) -> None:
        if chunk.record_batch is None:
            chunk.record_batch = _record_batch(chunk, self._schema)
        batch = chunk.record_batch
        if isinstance(rows, range):
            batch = batch.slice(rows.start, len(rows))
        else:
            batch = batch.take(pa.array(rows, pa.int32()))
        self._batches.append(batch)
        self.buffered_bytes += batch.nbytes
        if self.buffered_bytes >= ROW_GROUP_BYTES:
            self.write_buffered()

    def write_buffered(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._batches = []
            self.buffered_bytes = 0

    def finish(self) -> None:
        self.write_buffered()
        self._writer.close()

    def discard(self) -> None:
        # Otherwise it would write its footer when it is garbage-collected.
        with suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()
        self._writer.is_open = False
        self._batches = []


def _record_batch(chunk: EventChunk, schema: pa.Schema) -> pa.RecordBatch:
    builder = RecordBatchBuilder(_BINARY_SCHEMA, {})
    builder.add(chunk.first_sequence, chunk.columns)
    batch = builder.build()
    if schema is _BINARY_SCHEMA:
        return batch
    columns = [*batch.columns[:2], *_text_bodies(batch.column("body"))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _text_bodies(bodies: pa.Array) -> list[pa.Array]:
    try:
        return [bodies.cast(pa.string()), pa.nulls(len(bodies), pa.binary())]
    except pa.ArrowInvalid:
        values: list[bytes] = bodies.to_pylist()
        texts = [_decoded(value) for value in values]
        others = [value if text is None else None for text, value in zip(texts, values, strict=True)]
        return [pa.array(texts, pa.string()), pa.array(others, pa.binary())]


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
