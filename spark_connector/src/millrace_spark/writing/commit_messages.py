"""The messages from tasks to the driver: which open transactions hold the rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from millrace_spark.shards import Shard


@dataclass(frozen=True)
class ShardPuts:
    """What one task, or all of a batch, put for one shard."""

    shard: Shard
    """Where."""
    txn_ids: tuple[str, ...]
    """The transactions that hold it, in the order of their events."""
    event_count: int
    """How many events they hold."""


@dataclass
class TaskPuts(WriterCommitMessage):
    """What one task put; what Spark brings from task to driver."""

    producer_id: str
    """Who writes, as the task knows it; empty where the driver knows."""
    puts: tuple[ShardPuts, ...]
    """For each shard what was put."""


def puts_by_shard(messages: Sequence[WriterCommitMessage | None]) -> list[ShardPuts]:
    """What all tasks put, by shard, in the order of the tasks; tasks that failed put nothing."""
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
    """The messages of the tasks that did not fail."""
    return [message for message in messages if isinstance(message, TaskPuts)]
