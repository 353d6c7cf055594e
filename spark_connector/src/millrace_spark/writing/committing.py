"""What the driver does: commits what all tasks have put, each shard in one call."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError
from millrace_spark.patience import PASSING, Patience
from millrace_spark.refusals import explained
from millrace_spark.writing.put_notes import ShardPuts
from millrace_spark.writing.refusals import commit_advice

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
    numbers_rise: bool
    """Whether no batch of a lower number comes any more."""
    is_streaming: bool
    """Whether Spark repeats the batch where this fails."""
    keeps_places: bool
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
        _refuse_too_many(shard_puts)
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
        if commit.keeps_places and not commit.is_streaming:
            told += f"; saving again to the same endpoints with {_repeat_options(commit)} stores the rest alone"
    raise MillraceSparkError(told)


def _repeat_options(commit: BatchCommit) -> str:
    """What makes another save a repeat of this one."""
    said = f'option("producerId", "{commit.producer_id}")'
    return f'{said}.option("batchNumber", {commit.number})' if commit.number else said


def _refuse_too_many(puts: ShardPuts) -> None:
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
    oldest_open = commit.number if commit.numbers_rise else None
    stamp = millrace.Stamp(commit.stamp_id, commit.number, commit.number, oldest_open_sequence=oldest_open)
    patience = Patience(commit.retry_seconds, PASSING)
    began_at = time.monotonic()
    advice = commit_advice(is_streaming=commit.is_streaming)
    with explained(shard.endpoint, shard.channel, advice_by_reason=advice), millrace.connect(shard.endpoint) as client:
        channel = client.channel(shard.channel)
        receipt = patience.have(lambda: channel.commit(puts.txn_ids, stamp))
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
