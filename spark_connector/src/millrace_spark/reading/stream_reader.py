"""`spark.readStream.format("millrace")`, as Spark drives it.

Acknowledging relies on an order of Spark's calls that was found by experiment: when Spark calls `latestOffset(start)`,
the batches before `start` are in its commit log. So their events are removed from the channels in this call, and the
last one of an AvailableNow run removes the rest.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

from millrace_spark.errors import OptionError
from millrace_spark.reading.options import StreamOptions, TaskOptions
from millrace_spark.reading.ranges import RangePartition
from millrace_spark.workers import require_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace_spark.reading.stream import Stream


_RELEASE_SECONDS_MAX = 10.0
"""How long the release of all claims may take when Spark ends the process."""


def show_log_lines() -> None:
    """Writes the log of `millrace_spark` to standard error, unless logging is configured.

    A stream runs in a Python process of Spark without a logging configuration, where lines below a warning would be
    lost. Spark forwards the standard error of that process to its own.
    """
    logger = logging.getLogger("millrace_spark")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


class MillraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads channels as a stream; `millrace_spark` describes the guarantees.

    Spark creates several instances: one in a process that lives as long as the query, which does everything but read,
    and pickled ones in the tasks, which read. So an instance holds only options until Spark asks for offsets.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._stream: Stream | None = None
        self._is_end_fixed = False

    # Offsets are plain JSON for Spark, whatever its base class declares.

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # If this raises, Spark does not stop the sources of the query, whose claims would be renewed forever. So
        # claiming waits for the first offset, when Spark knows which sources to stop.
        self._is_end_fixed = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        # Spark passes it to latestOffset if the trigger supports limits, else ReadAllAvailable. It holds only one
        # limit; the stream itself applies all limits of the options.
        limits = self._options.limits
        if limits.events_max is not None:
            return ReadMaxRows(limits.events_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        return ReadMinRows(limits.events_min) if limits.events_min > 1 else ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._opened().initial_offset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._opened().next_offset(start, is_limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self._opened().progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        del start  # An offset includes its own start.
        return self._opened().partitions(end)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_rows(partition, self._schema, self._options.tasks)

    def commit(self, end: dict[str, Any]) -> None:
        self._opened().commit(end)

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _opened(self) -> "Stream":
        if self._stream is None:
            from millrace_spark.reading.stream import Stream

            show_log_lines()
            self._release_on_sigterm()
            self._stream = Stream(self._options)
            if self._is_end_fixed:
                self._stream.fix_end()
        return self._stream

    def _release_on_sigterm(self) -> None:
        """Releases the claims on SIGTERM, by which Spark ends this process when a query stops, instead of `stop`.

        The signal interrupts the main thread, which may hold a lock that the release needs. So the handler returns, and
        another thread releases the claims.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        signals: SimpleQueue[int] = SimpleQueue()

        def handle(number: int, _frame: FrameType | None) -> None:
            # Spark sends it twice.
            signal.signal(number, signal.SIG_IGN)
            # If the release never ends, the system ends this process, and its claims end with their leases. It would
            # renew them forever.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, _RELEASE_SECONDS_MAX)
            if self._stream is None:
                # The stream is being opened; it releases its claims when that fails.
                raise SystemExit(128 + number)
            signals.put(number)

        threading.Thread(target=self._end_on, args=(signals,), name="millrace-end", daemon=True).start()
        signal.signal(signal.SIGTERM, handle)

    def _end_on(self, signals: "SimpleQueue[int]") -> None:
        """Releases the claims and ends the process once there is a signal."""
        number = signals.get()
        try:
            self.stop()
        finally:
            os._exit(128 + number)


class InvalidStreamReader(MillraceStreamReader):
    """Raises an error of the options or the schema when Spark asks for an offset, with which every query starts.

    If the data source raised it instead of returning a reader, Spark would fail with another error, since it would have
    no reader to stop.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error
        self._stream = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        del partition
        raise self._error

    def _opened(self) -> NoReturn:
        raise self._error


def read_rows(partition: InputPartition, schema: StructType, options: TaskOptions) -> "Iterator[pa.RecordBatch]":
    """Reads a partition in a task, of a batch read or of a stream."""
    # Without partitions Spark creates one of its own, which has no rows.
    if not isinstance(partition, RangePartition):
        return iter(())
    require_modules()
    from millrace_spark.reading.tasks import read_partition

    return read_partition(partition, arrow_schema(schema), options)


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Returns the schema that Spark demands of the RecordBatches."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    # PySpark 4.2 and 4.3 take the time zone of timestamps under different names.
    zoned = [index for index, field in enumerate(schema) if isinstance(field.dataType, TimestampType)]
    unzoned = StructType(schema.fields.copy())
    for index in zoned:
        field = schema[index]
        unzoned.fields[index] = StructField(field.name, TimestampNTZType(), field.nullable, field.metadata)
    arrow = to_arrow_schema(unzoned)
    for index in zoned:
        arrow = arrow.set(index, arrow.field(index).with_type(pa.timestamp("us", tz="UTC")))
    return arrow
