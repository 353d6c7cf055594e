"""Ranges of sequences: what a reader has claimed, and how Spark's tasks share it."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
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

    @property
    def event_count(self) -> int:
        """How many events, at most: sequences that were consumed before the claim are left out."""
        return self.next_sequence - self.first_sequence

    def split(self, part_count: int) -> Iterator["RangePartition"]:
        """Cuts the range into so many parts, all of about one size."""
        for part in range(part_count):
            yield RangePartition(
                self,
                from_sequence=self.first_sequence + self.event_count * part // part_count,
                to_sequence=self.first_sequence + self.event_count * (part + 1) // part_count,
            )


class RangePartition(InputPartition):
    """A part of a claimed range, from one sequence to another (excluded): the work of one task."""

    def __init__(self, claimed: ClaimedRange, from_sequence: int, to_sequence: int) -> None:
        super().__init__(None)
        self.claimed = claimed
        self.from_sequence = from_sequence
        self.to_sequence = to_sequence


def split_among_tasks(ranges: Iterable[ClaimedRange], events_max: int, count_min: int) -> list[RangePartition]:
    """Cuts ranges into as few parts as there must be; none for an empty range.

    Args:
        ranges: What is to be read.
        events_max: Most events of a part.
        count_min: Fewest parts in all, where there are as many events. The larger ranges are cut into more.
    """
    full = [claimed for claimed in ranges if claimed.event_count]
    total = sum(claimed.event_count for claimed in full)
    parts: list[RangePartition] = []
    for claimed in full:
        count = claimed.event_count
        part_count = max(-(-count // events_max), min(-(-count_min * count // total), count))
        parts.extend(claimed.split(part_count))
    return parts


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
