"""The calls of Spark's planner and tasks: claim ranges, and read them."""

import logging
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

import millrace_client as millrace
from millrace.arrow import record_batches
from millrace.tracing import note_received
from millrace_spark.errors import MillraceSparkError
from millrace_spark.option_values import Security
from millrace_spark.reading.bounds import Bounds
from millrace_spark.reading.options import ClaimOptions, TaskOptions
from millrace_spark.reading.ranges import ClaimedRange, RangePartition
from millrace_spark.servers import RetryPolicy, connected, find_shards, translated_errors
from millrace_spark.shards import Shard
from millrace_spark.tracing import traced
from millrace_spark.workers import freeze_loaded_objects

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_log = logging.getLogger("millrace_spark")


def claim_all(options: ClaimOptions) -> tuple[ClaimedRange, ...]:
    """Claims the channels on each endpoint for a batch read; the claims end with their leases."""
    with connected(options.endpoints, options.security) as clients:
        return tuple(
            _claim(shard, clients[shard.endpoint], options) for shard in find_shards(clients, options.channels)
        )


def bounds_since(time: datetime, ranges: Iterable[ClaimedRange], security: Security) -> Bounds:
    """Returns where the events that were committed at or after a time begin in claimed ranges."""
    found, following = {}, {}
    for claimed in ranges:
        with (
            translated_errors(claimed.endpoint, claimed.channel),
            security.connect(claimed.endpoint) as client,
        ):
            shard = Shard(claimed.channel, claimed.endpoint)
            found[shard] = client.channel(claimed.channel).find_sequence(time).sequence
            following[shard] = claimed.next_sequence
    return Bounds.since(found, following)


def _claim(shard: Shard, client: millrace.Client, options: ClaimOptions) -> ClaimedRange:
    with translated_errors(shard.endpoint, shard.channel):
        channel = client.channel(shard.channel)
        try:
            claim = channel.claim(options.reader_id, options.lease_seconds)
        except millrace.ChannelClaimedError:
            if not options.takeover:
                raise
            # Takes over from other readers only: a claim of this reader may belong to another read in the same query.
            claim = channel.claim(options.reader_id, options.lease_seconds, takeover=True)
        return claimed_range(shard.endpoint, claim, is_held=False)


def claimed_range(endpoint: str, claim: millrace.Claim, *, is_held: bool) -> ClaimedRange:
    """Returns the range of a claim."""
    return ClaimedRange(
        endpoint=endpoint,
        channel=claim.channel,
        reader_id=claim.reader_id,
        channel_id=claim.channel_id,
        epoch=claim.epoch,
        first_sequence=claim.first_sequence,
        next_sequence=claim.next_sequence,
        lease_seconds=claim.lease_seconds,
        is_held=is_held,
    )


def read_partition(partition: RangePartition, schema: pa.Schema, options: TaskOptions) -> Iterator[pa.RecordBatch]:
    """Reads a partition of a claimed range.

    Retries for `retry_seconds` if the server is unreachable, and continues after the last batch that arrived.

    Raises:
        MillraceSparkError: The claim has ended, the server is unreachable, or events are gone and `fail_on_data_loss`
            is set.
    """
    freeze_loaded_objects()
    claimed = partition.claimed
    with (
        translated_errors(claimed.endpoint, claimed.channel),
        traced(options.tracing, "read", claimed.channel) as span,
        options.security.connect(claimed.endpoint) as client,
    ):
        batches = _batches(client, partition, options)
        if span is not None:
            batches = _noted(batches, span)
        columns = ((batch.first_sequence, batch.columns, batch.times) for batch in batches)
        constants = {"channel": claimed.channel, "endpoint": claimed.endpoint}
        yield from record_batches(columns, schema, constants)


def _batches(client: millrace.Client, partition: RangePartition, options: TaskOptions) -> Iterator[millrace.Batch]:
    claimed = partition.claimed
    channel, retries = client.channel(claimed.channel), RetryPolicy(options.retry_seconds)
    position, end = partition.from_sequence, partition.to_sequence
    while position < end:
        try:
            epoch = claimed.epoch if claimed.is_held else _reclaimed_epoch(channel, claimed)
            for batch in channel.read(claimed.reader_id, from_sequence=position, to_sequence=end, epoch=epoch):
                retries.reset()
                yield batch
                position = batch.first_sequence + len(batch)
        except millrace.SequenceGoneError as error:
            if options.fail_on_data_loss:
                raise
            info = retries.call(partial(client.admin.get_channel, claimed.channel))
            _check_channel(info.channel_id, claimed)
            remaining = max(position, info.gauges.first_sequence), min(end, info.gauges.next_sequence)
            if remaining == (position, end):
                raise
            _log.warning(
                "channel %s at %s: %s; failOnDataLoss is false, so the events that remain of %d to %d are read",
                claimed.channel,
                claimed.endpoint,
                error,
                position,
                end - 1,
            )
            position, end = remaining
        except millrace.MillraceError as error:
            retries.wait(error)
        else:
            return


def _noted(batches: Iterator[millrace.Batch], span: "Span") -> Iterator[millrace.Batch]:
    """Yields the batches, and notes them in the task's span: it is linked to what produced the first of them."""
    event_count = 0
    for batch in batches:
        if not event_count:
            note_received(span, [batch.columns])
        event_count += len(batch)
        yield batch
    span.set_attribute("messaging.batch.message_count", event_count)


def _reclaimed_epoch(channel: millrace.Channel, claimed: ClaimedRange) -> int:
    """Claims again, since the claim of a batch read ends between two actions on a DataFrame."""
    claim = channel.claim(claimed.reader_id, claimed.lease_seconds)
    _check_channel(claim.channel_id, claimed)
    return claim.epoch


def _check_channel(channel_id: str, claimed: ClaimedRange) -> None:
    if channel_id != claimed.channel_id:
        raise MillraceSparkError(
            f"channel {claimed.channel} at {claimed.endpoint}: was created again after this read was planned; "
            "load again"
        )
