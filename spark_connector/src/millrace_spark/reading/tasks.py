"""The calls of Spark's planner and tasks: claim ranges, and read them."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

import millrace_client as millrace
from millrace.arrow import record_batches
from millrace.tracing import note_received
from millrace_spark.errors import MillraceSparkError
from millrace_spark.option_values import PLAINTEXT, Security
from millrace_spark.reading.bounds import Bounds
from millrace_spark.reading.options import RETRY_SECONDS, ClaimOptions
from millrace_spark.reading.ranges import ClaimedRange, RangePartition
from millrace_spark.servers import RetryPolicy, connected, find_shards, translated_errors
from millrace_spark.shards import Shard
from millrace_spark.tracing import JobTracing, traced
from millrace_spark.workers import freeze_loaded_objects

if TYPE_CHECKING:
    from opentelemetry.trace import Span


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


def read_partition(
    partition: RangePartition,
    schema: pa.Schema,
    retry_seconds: float = RETRY_SECONDS,
    security: Security = PLAINTEXT,
    tracing: JobTracing | None = None,
) -> Iterator[pa.RecordBatch]:
    """Reads a partition of a claimed range.

    Retries for `retry_seconds` if the server is unreachable, and continues after the last batch that arrived.

    Raises:
        MillraceSparkError: The claim has ended, the events are gone, or the server is unreachable.
    """
    freeze_loaded_objects()
    claimed = partition.claimed
    with (
        translated_errors(claimed.endpoint, claimed.channel),
        traced(tracing, "read", claimed.channel) as span,
        security.connect(claimed.endpoint) as client,
    ):
        batches = _batches(client.channel(claimed.channel), partition, RetryPolicy(retry_seconds))
        if span is not None:
            batches = _noted(batches, span)
        columns = ((batch.first_sequence, batch.columns, batch.times) for batch in batches)
        constants = {"channel": claimed.channel, "endpoint": claimed.endpoint}
        yield from record_batches(columns, schema, constants)


def _batches(channel: millrace.Channel, partition: RangePartition, retries: RetryPolicy) -> Iterator[millrace.Batch]:
    claimed = partition.claimed
    position = partition.from_sequence
    while True:
        try:
            epoch = claimed.epoch if claimed.is_held else _reclaimed_epoch(channel, claimed)
            for batch in channel.read(
                claimed.reader_id, from_sequence=position, to_sequence=partition.to_sequence, epoch=epoch
            ):
                retries.reset()
                yield batch
                position = batch.first_sequence + len(batch)
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
    if claim.channel_id != claimed.channel_id:
        raise MillraceSparkError(
            f"channel {claimed.channel} at {claimed.endpoint}: was created again after this read was planned; "
            "load again"
        )
    return claim.epoch
