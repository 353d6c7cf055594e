"""The writers that Spark instantiates for `df.write` and `df.writeStream` with `format("millrace")`.

Tasks put rows into open transactions and pass their ids to the driver. The driver commits all transactions of a
channel on a server in one call, stamped with the producer's id and the batch number. So a channel has a batch as a
whole or not at all, and stores a repeated batch once: a task that failed or ran twice leaves only open transactions,
which are never committed, and a repeated commit is recognized by its stamp.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self
from zlib import crc32

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.writing.options import WriteOptions, WriteRouting, parse_write_options
from millrace_spark.writing.schema import options_for

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace_spark.writing.driver import TaskPuts


class MillraceWriter(DataSourceArrowWriter):
    """Saves a DataFrame. Spark creates it once in the driver, and pickles it to the tasks and back."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # A generated id is hardly ever used again; the prefix keeps it from displacing other producers in the channel.
        self._producer_id = options.producer_id or f"passing/spark-save-{secrets.token_hex(16)}"

    @classmethod
    def planned(cls, options: Mapping[str, str], schema: StructType, *, is_overwrite: bool) -> Self:
        """Returns the writer, after checking options and targets before any task runs."""
        if is_overwrite:
            raise OptionError('mode overwrite: is not supported by channels, which are queues; use mode("append")')
        return cls(_checked_options(options, schema, is_streaming=False))

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> "TaskPuts":
        return _put(iterator, self._options, self._producer_id, self._turn())

    def _turn(self) -> int:
        if self._options.producer_id or self._options.routing is WriteRouting.KEY:
            # A save that may be repeated goes to the same server again, with any number of tasks. So do the other saves
            # of its producer, whose numbers would otherwise have gaps on each server.
            return crc32(self._producer_id.encode())
        return _task_context().partitionId()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, self._options.batch_number, is_streaming=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class MillraceStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream. Spark creates it for each batch, and again for its commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @classmethod
    def planned(cls, options: Mapping[str, str], schema: StructType, *, is_overwrite: bool) -> Self:
        """Returns the writer, after checking options and targets before the first batch."""
        if is_overwrite:
            raise OptionError(
                "outputMode complete: is not supported by channels, which are queues; use append, or foreachBatch "
                "with a batch save"
            )
        return cls(_checked_options(options, schema, is_streaming=True))

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> "TaskPuts":
        context = _task_context()
        # Spark passes the batch id to the driver's commit, but not the query's id, so the tasks send it.
        producer_id = self._options.producer_id or f"spark-{_local_property(context, 'sql.streaming.queryId')}"
        turn = int(_local_property(context, "streaming.sql.batchId"))
        return _put(iterator, self._options, producer_id, turn)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _commit(self._options, messages, batchId, is_streaming=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        del batchId  # The messages name the transactions.
        _abort(self._options, messages)


def _checked_options(options: Mapping[str, str], schema: StructType, *, is_streaming: bool) -> WriteOptions:
    from millrace_spark.writing.driver import check_stream_targets, check_targets

    checked = options_for(schema, parse_write_options(options, is_streaming=is_streaming))
    if is_streaming:
        check_stream_targets(checked)
    else:
        check_targets(checked, is_streaming=False)
    return checked


def _put(rows: "Iterator[pa.RecordBatch]", options: WriteOptions, producer_id: str, turn: int) -> "TaskPuts":
    from millrace_spark.writing.driver import TaskPuts
    from millrace_spark.writing.tasks import put_all

    return TaskPuts(producer_id, put_all(rows, options, turn))


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    return context


def _local_property(context: TaskContext, name: str) -> str:
    """Returns a property of the task's query. With a wrong value, batches would be taken for repeats, and lost."""
    value = context.getLocalProperty(name)
    if value is None:
        raise MillraceSparkError(
            f"property {name}: is missing in a task, although Spark sets it for every query, so the batch of the rows "
            "is unknown; write with foreachBatch and the options producerId and batchNumber"
        )
    return value


def _commit(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], number: int, *, is_streaming: bool
) -> None:
    from millrace_spark.writing.driver import BatchCommit, commit_all, puts_by_shard, stamp_producer_id, task_puts

    tasks = task_puts(messages)
    if len(tasks) < len(messages):
        raise MillraceSparkError(
            "a task has not given its rows to the sink, which would lose them; if the trigger is continuous, use "
            "processingTime or availableNow, since Spark has no continuous trigger for sinks in Python"
        )
    puts = puts_by_shard(messages)
    if not puts:
        return
    producer_id = tasks[0].producer_id
    commit = BatchCommit(
        producer_id=producer_id,
        stamp_id=stamp_producer_id(producer_id, options),
        number=number,
        numbers_increase=options.batch_numbers_increase,
        is_streaming=is_streaming,
        is_repeatable=bool(options.producer_id) or len(options.endpoints) == 1 or options.routing is WriteRouting.KEY,
        retry_seconds=options.retry_seconds,
        security=options.security,
        tracing=options.tracing,
    )
    commit_all(puts, commit)


def _abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    from millrace_spark.writing.driver import puts_by_shard, roll_back

    roll_back(puts_by_shard(messages), options.security)
