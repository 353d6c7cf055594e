"""A Spark source like Millrace's, but without servers: the same events, from memory, by the same way into Arrow."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millrace.v1 import event_pb2
from millrace_spark.reading.arrow import EventOrigin, record_batches
from millrace_spark.reading.options import EVENTS_PER_PARTITION
from millrace_spark.reading.schema import EVENT_SCHEMA
from tests.bench.payloads import BATCH_EVENTS, columns

_ORIGIN = EventOrigin("memory", "127.0.0.1:0")


class MemorySource(DataSource):
    """Options: `events`, how many there are, and `maxEventsPerTrigger`."""

    @classmethod
    def name(cls) -> str:
        return "millrace-bench-memory"

    def schema(self) -> StructType:
        return EVENT_SCHEMA

    def streamReader(self, schema: StructType) -> "MemoryStreamReader":  # noqa: N802 - Spark's name
        return MemoryStreamReader(int(self.options["events"]), int(self.options["maxEventsPerTrigger"]), schema)


class MemoryPartition(InputPartition):
    """So many events."""

    def __init__(self, start: int, count: int) -> None:
        super().__init__(None)
        self.start = start
        self.count = count


class MemoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans as Millrace's does; a task makes its events' columns once, and turns them into Arrow again and again."""

    def __init__(self, event_count: int, batch_events: int, schema: StructType) -> None:
        self._event_count = event_count
        self._batch_events = batch_events
        self._schema = schema

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """All is there from the beginning."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._batch_events)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"to": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        count = self._event_count if isinstance(limit, ReadAllAvailable) else self._batch_events
        return {"to": min(start["to"] + count, self._event_count)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        starts = range(start["to"], end["to"], EVENTS_PER_PARTITION)
        return [MemoryPartition(first, min(EVENTS_PER_PARTITION, end["to"] - first)) for first in starts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, MemoryPartition):
            return iter(())
        from pyspark.sql.pandas.types import to_arrow_schema

        return record_batches(_batches(partition), _ORIGIN, to_arrow_schema(self._schema))


def _batches(partition: MemoryPartition) -> Iterator[tuple[int, event_pb2.EventColumns]]:
    batch = columns(BATCH_EVENTS)
    for start in range(partition.start, partition.start + partition.count, BATCH_EVENTS):
        yield start + 1, batch
