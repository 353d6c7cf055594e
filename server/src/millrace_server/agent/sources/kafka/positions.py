"""The position at which a partition is read: the group's committed offset, corrected by what the channels have stored.

A record's offset is its number in the stamps of its partition's producer, so channels know what they have stored, even
if a commit to the group was lost. A batch covers all offsets from the end of the previous batch up to its last record:
offsets without a record, because of compaction or transaction markers, leave no gap in the numbers. So regardless of
the number of such offsets, a channel remembers one interval, and one more for each position at which records were
skipped (because the group's offset was set forward, or `offset_reset` is `latest`).
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from millrace_server.agent.sources.stored_ranges import Ranges, boundaries_after
from millrace_server.agent.supervision import ComponentFailedError

_ID_NAME_LENGTH_MAX = 60


def producer_id_of(cluster_id: str, topic_id: str, group: str, topic: str, partition: int) -> str:
    """Returns the producer id that identifies a partition in stamps."""
    identity = json.dumps([cluster_id, topic_id, group, topic, partition])
    digest = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    return f"kafka/{topic[:_ID_NAME_LENGTH_MAX]}/{partition}/{digest}"


class PartitionFacts(NamedTuple):
    """What is known about a partition when it is assigned to the source."""

    name: str
    low: int
    """The offset of the oldest record."""
    high: int
    """The offset after the newest record."""
    committed: int | None
    """The group's offset."""
    producer_id: str
    stored: Ranges


class Start(NamedTuple):
    """The position at which reading a partition starts."""

    position: int
    covered_from: int
    """The first number of the first batch: there are no more records between this number and the position."""
    reset_reason: str
    """Why the position is not the group's offset; empty if it is, or if the group had none."""


def start_of(facts: PartitionFacts, offset_reset: str) -> Start:
    """Returns where to start. Raises ComponentFailedError if an operator must decide."""
    _refuse_reused_offsets(facts)
    wanted = facts.committed
    if wanted is None:
        wanted = _first_unstored(facts.stored)
    if wanted is None:
        return _start_at(_reset(facts, offset_reset, "the group has no offset"))
    if wanted < facts.low:
        reason = f"offset {wanted} is gone; the oldest record has offset {facts.low}"
        position = _reset(facts, offset_reset, reason)
        return Start(position, wanted if position == facts.low else position, reason)
    if wanted > facts.high:
        reason = f"the group's offset is {wanted}, and the partition ends at {facts.high}"
        return _start_at(_reset(facts, offset_reset, reason), reason)
    return _start_at(_behind_stored(wanted, facts.stored))


def _start_at(position: int, reset_reason: str = "") -> Start:
    return Start(position, position, reset_reason)


def _refuse_reused_offsets(facts: PartitionFacts) -> None:
    stored_end = max((ranges[-1][1] + 1 for ranges in facts.stored if ranges), default=0)
    if stored_end > facts.high:
        raise ComponentFailedError(
            f"{facts.name} ends at offset {facts.high}, and records up to {stored_end - 1} are stored: the brokers "
            "have lost records, or the topic was created again, and new records would be mistaken for stored ones. To "
            "read them, remove the producer from the channels: millrace producer forget CHANNEL "
            f"{facts.producer_id}; then retry"
        )


def _first_unstored(stored: Ranges) -> int | None:
    """Returns the first offset that some channel may lack, if the group has none; None if nothing is stored."""
    known = [ranges for ranges in stored if ranges]
    if not known:
        return None
    if len(known) < len(stored):
        # After a crash during the very first batch, only some of the channels may have it.
        return min(ranges[0][0] for ranges in known)
    return min(ranges[-1][1] + 1 for ranges in known)


def _behind_stored(position: int, stored: Ranges) -> int:
    """Returns the first offset at or after a position that some channel has not stored."""
    while True:
        ends = [_end_at(position, ranges) for ranges in stored]
        if not ends or min(ends) == position:
            return position
        position = min(ends)


def _end_at(position: int, ranges: Sequence[tuple[int, int]]) -> int:
    index = bisect_right(ranges, position, key=lambda bounds: bounds[0]) - 1
    return max(ranges[index][1] + 1, position) if index >= 0 else position


def _reset(facts: PartitionFacts, offset_reset: str, reason: str) -> int:
    if offset_reset == "fail":
        raise ComponentFailedError(f"{facts.name}: {reason}; set the offset of the group, or offset_reset, then retry")
    return facts.low if offset_reset == "earliest" else facts.high


class Piece(NamedTuple):
    """Records of a partition that are stored together."""

    start: int
    """Index of the first record."""
    stop: int
    first_number: int
    last_number: int


class PieceCutter:
    """Splits the records of a partition into batches, none of which a channel has partly stored.

    Attributes:
        next_number: One past the last number that was used.
    """

    def __init__(self, start: Start, stored: Ranges) -> None:
        self.next_number = start.covered_from
        self._bounds = boundaries_after(start.covered_from, stored)

    def pieces(self, offsets: Sequence[int], sizes: Sequence[int], events_max: int, bytes_max: int) -> Iterator[Piece]:
        """Yields the pieces of records with these ascending offsets and sizes of bodies."""
        ends = list(accumulate(sizes))
        start = 0
        while start < len(offsets):
            bound = self._take_bound(offsets[start])
            limit = min(start + events_max, len(offsets))
            stop = limit if bound is None or offsets[limit - 1] < bound else bisect_right(offsets, bound - 1, start)
            before = ends[start - 1] if start else 0
            stop = max(min(stop, bisect_right(ends, before + bytes_max, start, stop)), start + 1)
            last = offsets[stop - 1]
            if bound is not None and stop < len(offsets) and offsets[stop] >= bound:
                # Exactly up to the bound: a channel may have stored a record there that has since been compacted.
                last = bound - 1
            yield Piece(start, stop, self.next_number, last)
            self.next_number = last + 1
            start = stop

    def _take_bound(self, offset: int) -> int | None:
        """Returns the first bound after an offset; numbers below the last bound up to the offset remain unused."""
        while self._bounds and self._bounds[0] <= offset:
            self.next_number = max(self.next_number, self._bounds.pop(0))
        return self._bounds[0] if self._bounds else None
