"""A Spark source like Millrace's, but without servers: the same events, from memory.

As a stream they are converted to Arrow as Millrace's are. As a batch they are in Arrow beforehand: the time that Spark
itself takes from Python to its rows, which is the maximum for any source in Python. With the option `bareServer` a task
first receives as many bytes from a bare gRPC server: the maximum for any source in Python that reads over gRPC.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millrace.arrow import record_batches
from millrace.columns import CommitTimes
from millrace.v1 import event_pb2
from millrace_spark.reading.options import EVENTS_PER_PARTITION, STREAM_EVENTS_PER_PARTITION
from millrace_spark.reading.stream_reader import arrow_schema
from millrace_spark.source import EVENT_SCHEMA
from tests.bench.bare_server import METHOD, many_request
from tests.bench.payloads import BATCH_EVENTS, columns

_CONSTANTS = {"channel": "memory", "endpoint": "127.0.0.1:0"}


class MemorySource(DataSource):
    """Options: `events`, the number of events, `maxEventsPerTrigger`, and `bareServer`."""

    @classmethod
    def name(cls) -> str:
        return "millrace-bench-memory"

    def schema(self) -> StructType:
        return EVENT_SCHEMA

    def reader(self, schema: StructType) -> "MemoryReader":
        return MemoryReader(int(self.options["events"]), schema, self.options.get("bareServer"))

    def streamReader(self, schema: StructType) -> "MemoryStreamReader":  # noqa: N802 - Spark's name
        return MemoryStreamReader(int(self.options["events"]), int(self.options["maxEventsPerTrigger"]), schema)


class MemoryPartition(InputPartition):
    """A number of events."""

    def __init__(self, start: int, count: int) -> None:
        super().__init__(None)
        self.start = start
        self.count = count


class MemoryReader(DataSourceReader):
    """A task makes one batch, and returns it repeatedly, with a bare server each time that its bytes have arrived."""

    def __init__(self, event_count: int, schema: StructType, bare_server: str | None) -> None:
        self._event_count = event_count
        self._schema = schema
        self._bare_server = bare_server

    def partitions(self) -> Sequence[InputPartition]:
        return _partitions(0, self._event_count, EVENTS_PER_PARTITION)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, MemoryPartition):
            return
        [batch] = _record_batches(MemoryPartition(0, BATCH_EVENTS), self._schema)
        count = partition.count // BATCH_EVENTS
        for _ in range(count) if self._bare_server is None else _received(self._bare_server, count):
            yield batch


class MemoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans as Millrace's does; a task makes its events' columns once, and converts them to Arrow repeatedly."""

    def __init__(self, event_count: int, batch_events: int, schema: StructType) -> None:
        self._event_count = event_count
        self._batch_events = batch_events
        self._schema = schema

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Does nothing, since all events exist from the start."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._batch_events)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"to": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        count = self._event_count if isinstance(limit, ReadAllAvailable) else self._batch_events
        return {"to": min(start["to"] + count, self._event_count)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _partitions(start["to"], end["to"], STREAM_EVENTS_PER_PARTITION)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, MemoryPartition):
            return iter(())
        return _record_batches(partition, self._schema)


def _received(address: str, count: int) -> Iterator[bytes]:
    size = columns(BATCH_EVENTS).ByteSize()
    with grpc.insecure_channel(address) as channel:
        read = channel.unary_stream(METHOD.format("source_many"), bytes, bytes)
        yield from read(many_request(size, count))


def _partitions(start: int, stop: int, events_max: int) -> list[InputPartition]:
    starts = range(start, stop, events_max)
    return [MemoryPartition(first, min(events_max, stop - first)) for first in starts]


def _record_batches(partition: MemoryPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    return record_batches(_batches(partition), arrow_schema(schema), _CONSTANTS)


def _batches(partition: MemoryPartition) -> Iterator[tuple[int, event_pb2.EventColumns, CommitTimes]]:
    batch = columns(BATCH_EVENTS)
    for start in range(partition.start, partition.start + partition.count, BATCH_EVENTS):
        yield start + 1, batch, CommitTimes(1_700_000_000_000_000)
