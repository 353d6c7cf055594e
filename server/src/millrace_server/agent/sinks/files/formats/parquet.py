"""Events as Parquet."""

from contextlib import suppress
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from millrace_server.agent.sinks.files.chunks import EventChunk
from millrace_server.agent.sinks.files.formats.arrow import BINARY_SCHEMA, TEXT_SCHEMA, record_batch
from millrace_server.agent.sinks.files.formats.writer import Compression
from millrace_server.agent.sinks.files.partitions import Rows

ROW_GROUP_BYTES = 16 << 20
"""Events are gathered until they have so many bytes, and become a row group then."""


class ParquetWriter:
    """Writes a row for each event: `(sequence: int64, headers: map<string, string>, body: binary)`.

    As text, the body is a string, and null where it is no text: then it stands in the column `body_bytes`.
    """

    def __init__(self, file: BinaryIO, compression: Compression, *, is_body_text: bool) -> None:
        self._schema = TEXT_SCHEMA if is_body_text else BINARY_SCHEMA
        self._writer: Any = pq.ParquetWriter(file, self._schema, compression=compression)
        self._batches: list[pa.RecordBatch] = []
        self.buffered_bytes = 0

    def write(self, chunk: EventChunk, rows: Rows) -> None:
        batch = record_batch(chunk, self._schema)
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
        # Left to the collector, it would write its footer whenever that comes by.
        with suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()
        self._writer.is_open = False
        self._batches = []
