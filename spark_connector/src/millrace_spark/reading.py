"""What Spark's planner and tasks ask of servers."""

from collections.abc import Iterator

import pyarrow as pa

import millrace_client as millrace
from millrace_spark.arrow import EventOrigin, record_batches
from millrace_spark.errors import MillraceSparkError
from millrace_spark.options import ClaimOptions
from millrace_spark.ranges import ClaimedRange, RangePartition
from millrace_spark.refusals import explained


def claim_all(options: ClaimOptions) -> tuple[ClaimedRange, ...]:
    """Claims the channel on each endpoint for a look, and leaves the claims to their leases.

    Raises:
        MillraceSparkError: A server cannot be reached, or refuses.
    """
    return tuple(_claim_at(endpoint, options) for endpoint in options.endpoints)


def _claim_at(endpoint: str, options: ClaimOptions) -> ClaimedRange:
    with explained(endpoint, options.channel), millrace.connect(endpoint) as client:
        channel = client.channel(options.channel)
        try:
            claim = channel.claim(options.reader_id, options.lease_seconds)
        except millrace.ChannelClaimedError:
            if not options.takeover:
                raise
            # Only another reader's claim is taken over; this reader's own may be that of another read in the query.
            claim = channel.claim(options.reader_id, options.lease_seconds, takeover=True)
        return claimed_range(endpoint, claim, is_held=False)


def claimed_range(endpoint: str, claim: millrace.Claim, *, is_held: bool) -> ClaimedRange:
    """What a claim found."""
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


def read_partition(partition: RangePartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Reads a part of a claimed range.

    Raises:
        MillraceSparkError: The claim has ended, the events are gone, or the server cannot be reached.
    """
    claimed = partition.claimed
    with explained(claimed.endpoint, claimed.channel), millrace.connect(claimed.endpoint) as client:
        channel = client.channel(claimed.channel)
        batches = channel.read(
            claimed.reader_id,
            from_sequence=partition.from_sequence,
            to_sequence=partition.to_sequence,
            epoch=claimed.epoch if claimed.is_held else _epoch_of_a_look(channel, claimed),
        )
        columns = ((batch.first_sequence, batch.columns) for batch in batches)
        yield from record_batches(columns, EventOrigin(claimed.channel, claimed.endpoint), schema)


def _epoch_of_a_look(channel: millrace.Channel, claimed: ClaimedRange) -> int:
    """Claims again: nothing keeps a look's claim alive from one action on a DataFrame to the next."""
    claim = channel.claim(claimed.reader_id, claimed.lease_seconds)
    if claim.channel_id != claimed.channel_id:
        raise MillraceSparkError(
            f"channel {claimed.channel} at {claimed.endpoint}: was made anew since this read was planned; load anew"
        )
    return claim.epoch
