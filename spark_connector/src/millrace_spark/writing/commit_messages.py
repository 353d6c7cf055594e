"""The messages from tasks to the driver: which open transactions hold the rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from millrace_spark.shards import Shard


@dataclass(frozen=True)
class ShardPuts:
    """The events that one task, or all tasks of a batch, put into one shard."""

    shard: Shard
    txn_ids: tuple[str, ...]
    """The transactions that hold the events, in their order."""
    event_count: int


@dataclass
class TaskPuts(WriterCommitMessage):
    """The commit message of one task, which Spark passes to the driver."""

    producer_id: str
    """The producer's id, which a stream's driver does not know."""
    puts: tuple[ShardPuts, ...]


def puts_by_shard(messages: Sequence[WriterCommitMessage | None]) -> list[ShardPuts]:
    """Merges the messages of all tasks by shard, in the order of the tasks. Failed tasks have no message."""
    by_shard: dict[Shard, list[ShardPuts]] = {}
    for message in task_puts(messages):
        for puts in message.puts:
            by_shard.setdefault(puts.shard, []).append(puts)
    return [
        ShardPuts(
            shard,
            tuple(txn_id for puts in all_puts for txn_id in puts.txn_ids),
            sum(puts.event_count for puts in all_puts),
        )
        for shard, all_puts in sorted(by_shard.items())
    ]


def task_puts(messages: Iterable[WriterCommitMessage | None]) -> list[TaskPuts]:
    """Returns the messages of the tasks that did not fail."""
    return [message for message in messages if isinstance(message, TaskPuts)]
