"""`df.write.format("millrace")` and `df.writeStream.format("millrace")`, as Spark drives them.

Tasks put rows into open transactions and tell the driver which; the driver commits all transactions of a server's
channel in one call, stamped with the producer's id and the batch's number. So a channel has a batch wholly or not at
all, and a batch that is repeated is stored once: a task that failed or ran twice has left nothing but open
transactions, which nobody commits, and a commit that is repeated is known by its stamp.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Self
from zlib import crc32

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.schema import options_for
from millrace_spark.writing.commit_messages import TaskPuts, puts_by_shard, task_puts
from millrace_spark.writing.options import WriteOptions, WriteRouting, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa


class MillraceWriter(DataSourceArrowWriter):
    """Saves a DataFrame. Made once in the driver, then shipped to tasks and back."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # One that nobody gave is hardly ever used again: however many there are, the channel forgets no other for them.
        self._producer_id = options.producer_id or f"passing/spark-save-{secrets.token_hex(16)}"

    @classmethod
    def planned(cls, options: Mapping[str, str], schema: StructType, *, is_overwrite: bool) -> Self:
        """The writer for what a user asks for, which is looked at before any task runs.

        Raises:
            MillraceSparkError: It cannot be written; says why.
        """
        if is_overwrite:
            raise OptionError('mode overwrite: does not go with channels, which are queues; use mode("append")')
        from millrace_spark.writing.driver import check_targets

        planned = options_for(schema, parse_write_options(options, is_streaming=False))
        check_targets(planned)
        return cls(planned)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskPuts:
        from millrace_spark.writing.tasks import put_all

        return TaskPuts(self._producer_id, put_all(iterator, self._options, self._turn()))

    def _turn(self) -> int:
        if self._options.producer_id or self._options.routing is WriteRouting.KEY:
            # A save that may be repeated, as by the advice that a commit gives, goes where it went before, however many
            # tasks there are; and so do others of its producer, whose numbers would else have a gap in them on each
            # server.
            return crc32(self._producer_id.encode())
        context = TaskContext.get()
        assert context is not None, "Spark writes in tasks"
        return context.partitionId()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, self._producer_id, self._options.batch_number, is_streaming=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(messages)


class MillraceStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream's batches. Spark makes it anew for each of them, and again for its commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @classmethod
    def planned(cls, options: Mapping[str, str], schema: StructType, *, is_overwrite: bool) -> Self:
        """The writer for what a user asks for, which is looked at before the first batch.

        Raises:
            MillraceSparkError: It cannot be written; says why.
        """
        if is_overwrite:
            raise OptionError(
                "outputMode complete: does not go with channels, which are queues; use append, or foreachBatch with a "
                "batch save"
            )
        from millrace_spark.writing.driver import check_targets_once

        planned = options_for(schema, parse_write_options(options, is_streaming=True))
        check_targets_once(planned)
        return cls(planned)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskPuts:
        from millrace_spark.writing.tasks import put_all

        context = TaskContext.get()
        assert context is not None, "Spark writes in tasks"
        # The driver's commit is told the batch, but not the query: so the tasks tell it.
        producer_id = self._options.producer_id or f"spark-{_local_property(context, 'sql.streaming.queryId')}"
        turn = int(_local_property(context, "streaming.sql.batchId"))
        return TaskPuts(producer_id, put_all(iterator, self._options, turn))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        for message in task_puts(messages)[:1]:
            _commit(self._options, messages, message.producer_id, batchId, is_streaming=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        del batchId  # The transactions say all.
        _abort(messages)


def _local_property(context: TaskContext, name: str) -> str:
    """What Spark says of a task's query; under a guess its batches would be taken for repeats, and lost."""
    value = context.getLocalProperty(name)
    if value is None:
        raise MillraceSparkError(
            f"property {name}: is missing in a task, where Spark sets it for every query, and which batch its rows are "
            "of cannot be known; write with foreachBatch, and the options producerId and batchNumber"
        )
    return value


def stamp_producer_id(producer_id: str, options: WriteOptions) -> str:
    """The producer's id as it stands in stamps.

    Where a batch's rows are shared out by key, a server's share depends on which servers there are. So then another set
    of servers is another producer: a batch that is repeated with it is stored once more, and no row of it is taken for
    stored because the server had another share of the batch before.
    """
    if len(options.endpoints) == 1 or options.routing is not WriteRouting.KEY:
        return producer_id
    return f"{producer_id}/{blake2b(','.join(options.endpoints).encode(), digest_size=6).hexdigest()}"


def _commit(
    options: WriteOptions,
    messages: Sequence[WriterCommitMessage | None],
    producer_id: str,
    number: int,
    *,
    is_streaming: bool,
) -> None:
    puts = puts_by_shard(messages)
    if not puts:
        return
    from millrace_spark.writing.driver import BatchCommit, commit_all

    commit = BatchCommit(
        producer_id=producer_id,
        stamp_id=stamp_producer_id(producer_id, options),
        number=number,
        numbers_increase=options.batch_numbers_increase,
        is_streaming=is_streaming,
        is_repeatable=bool(options.producer_id) or len(options.endpoints) == 1 or options.routing is WriteRouting.KEY,
        retry_seconds=options.retry_seconds,
    )
    commit_all(puts, commit)


def _abort(messages: Sequence[WriterCommitMessage | None]) -> None:
    if puts := puts_by_shard(messages):
        from millrace_spark.writing.driver import roll_back

        roll_back(puts)
