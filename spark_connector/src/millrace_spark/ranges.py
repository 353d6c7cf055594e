"""Ranges of sequences: what a reader has claimed, and how Spark's tasks share it."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from millrace_spark.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class ClaimedRange:
    """What one server held of a channel when a reader claimed it."""

    endpoint: str
    """The server, `host:port`."""
    channel: str
    """The channel's name."""
    reader_id: str
    """Who holds the claim."""
    channel_id: str
    """Names this making of the channel; of another one nothing is read."""
    epoch: int
    """The claim's epoch."""
    first_sequence: int
    """The oldest event's sequence."""
    next_sequence: int
    """One past the newest event's sequence; equal to `first_sequence` where the channel was empty."""
    lease_seconds: float
    """How long the claim lives without a call."""
    is_held: bool
    """Whether the driver keeps the claim alive; then nothing is read under a later one. Else each task claims again."""

    def split(self, events_max: int) -> Iterator["RangePartition"]:
        """Cuts the range into as few parts as there must be, all of about one size; none for an empty range."""
        count = self.next_sequence - self.first_sequence
        part_count = -(-count // events_max)
        for part in range(part_count):
            yield RangePartition(
                self,
                from_sequence=self.first_sequence + count * part // part_count,
                to_sequence=self.first_sequence + count * (part + 1) // part_count,
            )


class RangePartition(InputPartition):
    """A part of a claimed range, from one sequence to another (excluded): the work of one task."""

    def __init__(self, claimed: ClaimedRange, from_sequence: int, to_sequence: int) -> None:
        super().__init__(None)
        self.claimed = claimed
        self.from_sequence = from_sequence
        self.to_sequence = to_sequence


def ranges_to_json(ranges: Sequence[ClaimedRange]) -> str:
    """The value of the option `ranges`."""
    return json.dumps([dataclasses.asdict(claimed) for claimed in ranges], sort_keys=True)


def ranges_from_json(text: str) -> tuple[ClaimedRange, ...]:
    """What `ranges_to_json` wrote.

    Raises:
        OptionError: Somebody else wrote it.
    """
    try:
        return tuple(ClaimedRange(**entry) for entry in json.loads(text))
    except (TypeError, ValueError):
        raise OptionError(
            "option ranges: is not what millrace_spark.claim_ranges() gives; take it from there, with load() or options"
        ) from None
