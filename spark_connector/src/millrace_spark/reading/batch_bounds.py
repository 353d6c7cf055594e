"""The part of what was claimed that a batch read asks for."""

import logging
from collections.abc import Iterable
from dataclasses import replace

from millrace_spark.errors import DataLossError, OptionError
from millrace_spark.reading.options import BatchOptions
from millrace_spark.reading.ranges import ClaimedRange
from millrace_spark.shards import Shard

_log = logging.getLogger("millrace_spark")


def bounded(ranges: Iterable[ClaimedRange], options: BatchOptions) -> tuple[ClaimedRange, ...]:
    """The ranges from `startingSequences` to `endingSequences`, to the event.

    Raises:
        OptionError: A bound lies beyond the end, the end lies before the start, or names what is not read.
        DataLossError: The beginning is gone.
    """
    ranges = tuple(ranges)
    shards = [Shard(claimed.channel, claimed.endpoint) for claimed in ranges]
    options.starting.refuse_strangers("startingSequences", shards)
    options.ending.refuse_strangers("endingSequences", shards)
    return tuple(_bounded(claimed, shard, options) for claimed, shard in zip(ranges, shards, strict=True))


def _bounded(claimed: ClaimedRange, shard: Shard, options: BatchOptions) -> ClaimedRange:
    first, following = claimed.first_sequence, claimed.next_sequence
    start = options.starting.sequence(shard, first, following)
    end = options.ending.sequence(shard, first, following)
    there = f"channel {shard} holds {first} to {following - 1}" if first < following else f"channel {shard} is empty"
    if max(start, end) > following:
        name = "startingSequences" if start > following else "endingSequences"
        raise OptionError(
            f"option {name}: is {max(start, end)}, but {there} and {following} comes next; ask for no more than that"
        )
    if end < start:
        raise OptionError(
            f"option endingSequences: is {end} for {shard}, before its start, {start}; swap them, or leave one out"
        )
    if start < min(first, end):
        told = f"channel {shard}: events {start} to {min(first, end) - 1} have been consumed"
        if options.fail_on_data_loss:
            raise DataLossError(
                f"{told}; start at {first}, or set the option failOnDataLoss to false to read what is there"
            )
        _log.warning("%s; failOnDataLoss is false, so what is there is read", told)
    start = max(start, first)
    return replace(claimed, first_sequence=start, next_sequence=max(start, end))
