"""The driver's part of a write: checks the targets, then commits or rolls back what the tasks put."""

import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError
from millrace_spark.refusals import explained
from millrace_spark.servers import TRANSIENT, RetryPolicy, check_aliases, connected
from millrace_spark.writing.commit_messages import ShardPuts
from millrace_spark.writing.options import WriteOptions
from millrace_spark.writing.refusals import commit_advice, put_advice

_KNOWN_MAX = 100


def check_targets(options: WriteOptions) -> None:
    """Makes sure that each server answers and has the channel, where the options name one.

    Raises:
        MillraceSparkError: One does not.
    """
    with connected(options.endpoints) as clients:
        homes: dict[str, str] = {}
        for endpoint, client in clients.items():
            with explained(endpoint, options.channel, advice_by_reason=put_advice()):
                admin = client.admin
                there = [admin.get_channel(options.channel)] if options.channel else admin.list_channels()
            check_aliases(homes, endpoint, there)


@lru_cache(_KNOWN_MAX)
def check_targets_once(options: WriteOptions) -> None:
    """The same, but in each process once: a stream goes on while a server is away for a while."""
    check_targets(options)


TXNS_MAX = 1_000
"""Transactions that one Commit takes."""

_SHARDS_AT_ONCE = 16

_log = logging.getLogger("millrace_spark")


@dataclass(frozen=True, kw_only=True)
class BatchCommit:
    """Says which batch is committed, and how."""

    producer_id: str
    """Who writes, as the option producerId says it."""
    stamp_id: str
    """Who writes, in the stamp."""
    number: int
    """The batch's number, in the stamp."""
    numbers_increase: bool
    """Whether no batch of a lower number comes any more."""
    is_streaming: bool
    """Whether Spark repeats the batch where this fails."""
    is_repeatable: bool
    """Whether the same rows under the same producer go to the same servers again."""
    retry_seconds: float
    """How long each shard is tried again."""


def commit_all(puts: Sequence[ShardPuts], commit: BatchCommit) -> None:
    """Commits all shards of a batch, each as a whole; several at once.

    A shard that stored the batch before, as is known by its stamp, stores nothing of it again.

    Raises:
        MillraceSparkError: Some shards have not stored the batch; says which, why, and what the others have done.
    """
    for shard_puts in puts:
        _check_txn_count(shard_puts)
    with ThreadPoolExecutor(_SHARDS_AT_ONCE, thread_name_prefix="millrace-commit") as executor:
        commits = [executor.submit(_commit_shard, shard_puts, commit) for shard_puts in puts]
    failed = [str(error) for done in commits if (error := done.exception()) is not None]
    for done in commits:
        error = done.exception()
        if error is not None and not isinstance(error, MillraceSparkError):
            raise error
    if not failed:
        return
    stored = [str(shard_puts.shard) for shard_puts, done in zip(puts, commits, strict=True) if not done.exception()]
    told = ". Also, ".join(failed)
    if stored:
        told += f". What goes to {', '.join(stored)} is stored"
        if commit.is_repeatable and not commit.is_streaming:
            told += f"; saving again to the same endpoints with {_repeat_options(commit)} stores the rest alone"
    raise MillraceSparkError(told)


def _repeat_options(commit: BatchCommit) -> str:
    """What makes another save a repeat of this one."""
    said = f'option("producerId", "{commit.producer_id}")'
    return f'{said}.option("batchNumber", {commit.number})' if commit.number else said


def _check_txn_count(puts: ShardPuts) -> None:
    if len(puts.txn_ids) > TXNS_MAX:
        raise MillraceSparkError(
            f"channel {puts.shard.channel} at {puts.shard.endpoint}: the batch's {puts.event_count:,} events are in "
            f"{len(puts.txn_ids):,} transactions, and one commit takes {TXNS_MAX:,}; raise the channel's "
            "transaction_capacity, write with fewer tasks (coalesce), or write less at once"
        )


def _commit_shard(puts: ShardPuts, commit: BatchCommit) -> None:
    shard = puts.shard
    # Where batches follow each other, whatever is below this number was committed, or is never sent to this shard. A
    # batch without rows for it leaves a gap, and a channel bears with so many of them only.
    oldest_open = commit.number if commit.numbers_increase else None
    stamp = millrace.Stamp(commit.stamp_id, commit.number, commit.number, oldest_open_sequence=oldest_open)
    retries = RetryPolicy(commit.retry_seconds, TRANSIENT)
    began_at = time.monotonic()
    advice = commit_advice(is_streaming=commit.is_streaming)
    with explained(shard.endpoint, shard.channel, advice_by_reason=advice), millrace.connect(shard.endpoint) as client:
        channel = client.channel(shard.channel)
        receipt = retries.call(lambda: channel.commit(puts.txn_ids, stamp))
    if receipt.deduplicated:
        _log.warning(
            "%s: has batch %d of producer %s already, so nothing of its %d events is stored again. That is in order "
            "where a query or save is repeated; a query that was given a new checkpoint needs a new producerId, "
            "since it counts its batches from 0 again",
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


def roll_back(puts: Iterable[ShardPuts]) -> None:
    """Drops what open transactions hold. What a server does not do now is done when their leases end."""
    by_endpoint: dict[str, list[tuple[str, str]]] = {}
    for shard_puts in puts:
        pairs = [(shard_puts.shard.channel, txn_id) for txn_id in shard_puts.txn_ids]
        by_endpoint.setdefault(shard_puts.shard.endpoint, []).extend(pairs)
    for endpoint, txns in by_endpoint.items():
        with millrace.connect(endpoint, timeout_seconds=_CALL_SECONDS_MAX) as client:
            _roll_back_at(client, txns)


def _roll_back_at(client: millrace.Client, txns: Iterable[tuple[str, str]]) -> None:
    for channel, txn_id in txns:
        try:
            client.channel(channel).rollback(txn_id)
        except millrace.MillraceError as error:
            # Ended ones are as they should be: a commit of which the driver has not heard may be among them.
            if error.advice is millrace.RetryAdvice.UNREACHABLE:
                _log.info("%s: transactions wait for their leases to end: %s", client.endpoint, error)
                return
