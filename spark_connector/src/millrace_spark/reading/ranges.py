"""Claimed ranges of sequences, and their partitions for Spark's tasks."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from millrace_spark.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class ClaimedRange:
    """The events of a channel on one server when a reader claimed it."""

    endpoint: str
    channel: str
    reader_id: str
    channel_id: str
    """The id of the channel; a channel of the same name with another id is not read."""
    epoch: int
    first_sequence: int
    next_sequence: int
    """One past the sequence of the newest event; equal to `first_sequence` if the channel was empty."""
    lease_seconds: float
    is_held: bool
    """Whether the driver keeps the claim alive, and tasks read under its epoch only; else each task claims again."""

    @property
    def event_count(self) -> int:
        """The maximum number of events in the range: sequences that were consumed before the claim are missing."""
        return self.next_sequence - self.first_sequence

    def split(self, part_count: int) -> Iterator["RangePartition"]:
        """Splits the range into a number of parts of about the same size."""
        for part in range(part_count):
            yield RangePartition(
                self,
                from_sequence=self.first_sequence + self.event_count * part // part_count,
                to_sequence=self.first_sequence + self.event_count * (part + 1) // part_count,
            )


class RangePartition(InputPartition):
    """The part of a claimed range that one task reads, from one sequence to another (exclusive)."""

    def __init__(self, claimed: ClaimedRange, from_sequence: int, to_sequence: int) -> None:
        super().__init__(None)
        self.claimed = claimed
        self.from_sequence = from_sequence
        self.to_sequence = to_sequence


def split_among_tasks(ranges: Iterable[ClaimedRange], events_max: int, count_min: int) -> list[RangePartition]:
    """Splits ranges into as few parts as possible; an empty range has none.

    Args:
        ranges: The ranges to read.
        events_max: The maximum number of events of a part.
        count_min: The fewest parts of all ranges, if there are enough events. Larger ranges have more parts.
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
    """Returns the value of the option `ranges`."""
    return json.dumps([dataclasses.asdict(claimed) for claimed in ranges], sort_keys=True)


def ranges_from_json(text: str) -> tuple[ClaimedRange, ...]:
    """Parses the result of `ranges_to_json`."""
    try:
        return tuple(ClaimedRange(**entry) for entry in json.loads(text))
    except (TypeError, ValueError):
        raise OptionError(
            "option ranges: is not a result of millrace_spark.claim_ranges(); use its load() or its options"
        ) from None
