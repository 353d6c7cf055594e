"""The driver's part of a write: checks the targets, then commits or rolls back what the tasks put."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b

from pyspark.sql.datasource import WriterCommitMessage

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError
from millrace_spark.option_values import Security
from millrace_spark.servers import STARTING, TRANSIENT, RetryPolicy, check_aliases, connected, translated_errors
from millrace_spark.shards import Shard
from millrace_spark.tracing import JobTracing, traced
from millrace_spark.writing.options import WriteOptions, WriteRouting

_LOST = (
    "between the tasks' puts and the commit the server restarted, or leaseSeconds ran out, so the rows that the tasks "
    "had put are gone; {again}"
)
_REPEAT_STREAM = "start the query again; it repeats the batch and stores nothing twice"
_REPEAT_SAVE = "save again"

PUT_ADVICE: Mapping[str, str] = {
    "BYTES_FULL": (
        "open transactions hold as many bytes as the server allows, including those of aborted batches until their "
        "leaseSeconds are over; write less at once, or give the channel a larger byte_capacity"
    ),
    "TOO_MANY_TXNS": (
        "write with fewer tasks (coalesce), or raise the channel's transaction_capacity or open_transactions_max; "
        "transactions of aborted batches end when their leaseSeconds are over"
    ),
    "QUOTA_EXCEEDED": "write with fewer tasks (coalesce), or ask for a larger quota, in the server's configuration",
    "TXN_CAPACITY": "write less at once, in smaller batches or saves, or give the channel a larger byte_capacity",
    "MESSAGE_TOO_LARGE": "raise message_bytes_max in the server's configuration, or remove such rows",
    "EVENT_TOO_LARGE": "remove such rows, or raise message_bytes_max or byte_capacity in the server's configuration",
    "DEADLINE": "the server was unreachable, or too slow, for retrySeconds",
    "TXN_NOT_FOUND": _LOST.format(again="run the task again"),
    "LEASE_EXPIRED": _LOST.format(again="run the task again"),
}
"""Advice on a refused put of a task."""

_FULL = (
    "the channel was full for retrySeconds; consume events, give the channel a larger capacity, or write less at a time"
)
_KNOWN_MAX = 100


def commit_advice(*, is_streaming: bool) -> Mapping[str, str]:
    """Returns the advice for a refused commit of the driver."""
    lost = _LOST.format(again=_REPEAT_STREAM if is_streaming else _REPEAT_SAVE)
    less = "limit the batch, such as by maxEventsPerTrigger" if is_streaming else "save it in parts"
    return {
        **PUT_ADVICE,
        "TXN_NOT_FOUND": lost,
        "LEASE_EXPIRED": lost,
        "TXN_STATE": lost,
        "CHANNEL_FULL": _FULL,
        "BYTES_FULL": _FULL,
        "TXN_CAPACITY": f"the batch cannot fit even an empty channel; give the channel more capacity, or {less}",
    }


def check_targets(options: WriteOptions, *, is_streaming: bool) -> None:
    """Checks that each server responds, and has the channel if the options name one."""
    # An unreachable server of a save may be misspelt, and is an error at once. That of a stream may be down for a
    # short time: Spark checks its targets again and again, since the processes that have done so end when idle.
    retried = TRANSIENT if is_streaming else STARTING
    with connected(options.endpoints, options.security) as clients:
        homes: dict[str, str] = {}
        for endpoint, client in clients.items():
            retries = RetryPolicy(options.retry_seconds, retried)
            with translated_errors(endpoint, options.channel, advice_by_reason=PUT_ADVICE):
                there = retries.call(partial(_channels, client.admin, options.channel))
            check_aliases(homes, endpoint, there)


def _channels(admin: millrace.Admin, name: str) -> Sequence[millrace.ChannelInfo]:
    """Returns the channel of this name, or all without a name; none if it is that of a source, which has no id."""
    if not name:
        return admin.list_channels()
    try:
        return [admin.get_channel(name)]
    except millrace.NotAChannelError:
        return []


check_stream_targets = lru_cache(_KNOWN_MAX)(partial(check_targets, is_streaming=True))
"""Checks the targets of a stream, once per process, since Spark asks for each batch and each commit."""


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


TXNS_MAX = 1_000
"""The maximum number of transactions of one Commit."""

_SHARDS_AT_ONCE = 16

_log = logging.getLogger("millrace_spark")


@dataclass(frozen=True, kw_only=True)
class BatchCommit:
    """A batch to commit."""

    producer_id: str
    """The producer's id in the option producerId."""
    stamp_id: str
    number: int
    numbers_increase: bool
    """Whether no batch with a lower number follows."""
    is_streaming: bool
    """Whether Spark repeats the batch if the commit fails."""
    is_repeatable: bool
    """Whether a repeat by the same producer sends the same rows to the same servers."""
    retry_seconds: float
    security: Security
    tracing: JobTracing | None = None


def stamp_producer_id(producer_id: str, options: WriteOptions) -> str:
    """Returns the producer's id for stamps."""
    # With routing by key, a server's share of a batch depends on the set of servers. So another set is another
    # producer: it stores a repeated batch again, and no row is taken for stored because of a former share.
    if len(options.endpoints) == 1 or options.routing is not WriteRouting.KEY:
        return producer_id
    return f"{producer_id}/{blake2b(','.join(options.endpoints).encode(), digest_size=6).hexdigest()}"


def commit_all(puts: Sequence[ShardPuts], commit: BatchCommit) -> None:
    """Commits all shards of a batch in parallel, each as a whole.

    A shard that has stored the batch already, which it knows by the stamp, stores nothing again.

    Raises:
        MillraceSparkError: Shards have not stored the batch. The message names them, their errors, and the shards that
            have stored it.
    """
    for shard_puts in puts:
        _check_txn_count(shard_puts)
    channels = ",".join(sorted({shard_puts.shard.channel for shard_puts in puts}))
    with (
        traced(commit.tracing, "commit", channels),
        ThreadPoolExecutor(_SHARDS_AT_ONCE, thread_name_prefix="millrace-commit") as executor,
    ):
        # Each in this context, so that the calls have the span.
        commits = [executor.submit(copy_context().run, _commit_shard, shard_puts, commit) for shard_puts in puts]
    stored, failed = [], []
    for shard_puts, done in zip(puts, commits, strict=True):
        try:
            done.result()
            stored.append(shard_puts.shard)
        except MillraceSparkError as error:
            failed.append(str(error))
    if failed:
        raise MillraceSparkError(". Also, ".join(failed) + _advice_on_rest(stored, commit))


def _advice_on_rest(stored: Sequence[Shard], commit: BatchCommit) -> str:
    """Returns sentences about the shards that have stored a batch which others have not."""
    if not stored:
        return ""
    advice = f". The rows for {', '.join(map(str, stored))} are stored"
    if commit.is_repeatable and not commit.is_streaming:
        options = f'option("producerId", "{commit.producer_id}")'
        if commit.number:
            options += f'.option("batchNumber", {commit.number})'
        advice += f"; saving again to the same endpoints with {options} stores only the rest"
    return advice


def _check_txn_count(puts: ShardPuts) -> None:
    if len(puts.txn_ids) > TXNS_MAX:
        raise MillraceSparkError(
            f"channel {puts.shard.channel} at {puts.shard.endpoint}: the batch's {puts.event_count:,} events are in "
            f"{len(puts.txn_ids):,} transactions, and one commit takes {TXNS_MAX:,}; raise the channel's "
            "transaction_capacity, write with fewer tasks (coalesce), or write less at a time"
        )


def _commit_shard(puts: ShardPuts, commit: BatchCommit) -> None:
    shard = puts.shard
    # If batch numbers increase, every lower number was committed, or is never sent to this shard. A batch without rows
    # for the shard leaves a gap, and a channel remembers a limited number of gaps.
    oldest_open = commit.number if commit.numbers_increase else None
    stamp = millrace.Stamp(commit.stamp_id, commit.number, commit.number, oldest_open_sequence=oldest_open)
    retries = RetryPolicy(commit.retry_seconds, TRANSIENT)
    began_at = time.monotonic()
    advice = commit_advice(is_streaming=commit.is_streaming)
    with (
        translated_errors(shard.endpoint, shard.channel, advice_by_reason=advice),
        commit.security.connect(shard.endpoint) as client,
    ):
        channel = client.channel(shard.channel)
        receipt = retries.call(lambda: channel.commit(puts.txn_ids, stamp))
    if receipt.deduplicated:
        _log.warning(
            "%s: has batch %d of producer %s already, so none of its %d events is stored again. This is expected if a "
            "query or save is repeated; a query with a new checkpoint needs a new producerId, since it counts its "
            "batches from 0 again",
            shard,
            commit.number,
            commit.producer_id,
            puts.event_count,
        )
        return
    _log.info(
        "%s: stored batch %d of producer %s, %d events from sequence %d to %d, in %.3f s",
        shard,
        commit.number,
        commit.producer_id,
        puts.event_count,
        receipt.first_sequence,
        receipt.last_sequence,
        time.monotonic() - began_at,
    )


_CALL_SECONDS_MAX = 5.0


def roll_back(puts: Iterable[ShardPuts], security: Security) -> None:
    """Rolls back open transactions. Those of an unreachable server end with their leases."""
    by_endpoint: dict[str, list[tuple[str, str]]] = {}
    for shard_puts in puts:
        pairs = [(shard_puts.shard.channel, txn_id) for txn_id in shard_puts.txn_ids]
        by_endpoint.setdefault(shard_puts.shard.endpoint, []).extend(pairs)
    for endpoint, txns in by_endpoint.items():
        with security.connect(endpoint, timeout_seconds=_CALL_SECONDS_MAX) as client:
            _roll_back_at(client, txns)


def _roll_back_at(client: millrace.Client, txns: Iterable[tuple[str, str]]) -> None:
    for channel, txn_id in txns:
        try:
            client.channel(channel).rollback(txn_id)
        except millrace.MillraceError as error:
            # Transactions that have ended are fine; one may have been committed without a response to the driver.
            if error.advice is millrace.RetryAdvice.UNREACHABLE:
                _log.info("%s: transactions end with their leases: %s", client.endpoint, error)
                return
