"""What each producer has stored: the basis of exactly-once delivery."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millrace_server.channels.activity import ProducerInfo
from millrace_server.channels.config import check_identifier
from millrace_server.errors import BadArgumentError, ForbiddenError, OffsetGapError

PRODUCERS_MAX = 100_000
"""Producers that a channel remembers. Beyond it, the least recently active is forgotten, transient ones first."""

PASSING_PREFIX = "passing/"
"""Prefix of the ids of transient producers, such as the keys of requests, which are not expected to store again.
However many there are, no other producer is forgotten for them.
"""

SHARED_PREFIX = "replay/"
"""Prefix of the ids of producers that belong to no identity: whoever replays dead letters continues others' replays."""

INTERVALS_MAX = 10_000
"""Separate ranges that a channel remembers of one producer."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Names, in the producer's own numbering, the events that a commit stores."""

    producer_id: str
    first: int
    last: int
    after: int | None = None  # A number that must have been accepted before.
    oldest_open: int | None = None  # The producer sends no lower number any more; None: unknown.
    owner: str = ""  # The identity of the caller; empty without authentication.

    def __post_init__(self) -> None:
        check_identifier("stamp.producer_id", self.producer_id)
        if self.last < self.first:
            raise BadArgumentError(
                f"stamp.last_sequence: is {self.last}; it must not be below stamp.first_sequence, {self.first}"
            )
        if self.oldest_open is not None and self.oldest_open > self.first:
            raise BadArgumentError(
                f"stamp.oldest_open_sequence: is {self.oldest_open}; it must not be above stamp.first_sequence, "
                f"{self.first}, which this call sends"
            )

    @property
    def span(self) -> int:
        return self.last - self.first + 1

    def follows(self, before: "Stamp") -> bool:
        """Whether its numbers are the next ones after those of another stamp, which may be stored with them."""
        return (
            self.first == before.last + 1
            and self.producer_id == before.producer_id
            and self.owner == before.owner
            and self.after in {None, before.last}
        )


class StampLedger:
    """The numbers that the channel has accepted from each producer, as intervals."""

    def __init__(self) -> None:
        self._permanent: dict[str, IntervalSet] = {}
        self._transient: dict[str, IntervalSet] = {}
        self._snapshot_count = 0

    def __len__(self) -> int:
        return len(self._permanent) + len(self._transient)

    def __contains__(self, producer_id: str) -> bool:
        return self._find(producer_id) is not None

    def _group_of(self, producer_id: str) -> "dict[str, IntervalSet]":
        """Returns the producers of its kind, the least recently active first."""
        return self._transient if producer_id.startswith(PASSING_PREFIX) else self._permanent

    def _find(self, producer_id: str) -> "IntervalSet | None":
        return self._group_of(producer_id).get(producer_id)

    def new_ranges(self, stamp: Stamp, event_count: int) -> list[tuple[int, int]]:
        """Returns ranges of indexes, the end excluded, of a commit's events that are new.

        All are new where the producer is unknown.

        Raises:
            BadArgumentError: A stamp that covers the commit as a whole was accepted in part, or the producer has left
                too many gaps.
            ForbiddenError: The producer belongs to another identity.
        """
        accepted = self._find(stamp.producer_id)
        if accepted is None:
            return [(0, event_count)]
        if accepted.owner and stamp.owner and accepted.owner != stamp.owner:
            raise ForbiddenError(
                f"stamp.producer_id: {stamp.producer_id!r} belongs to the identity that used it first; use another"
            )
        gaps = accepted.gaps(stamp.first, stamp.last)
        if gaps and len(accepted) >= INTERVALS_MAX and stamp.oldest_open:
            accepted = accepted.copy()
            accepted.add(0, stamp.oldest_open - 1)
        if gaps and len(accepted) >= INTERVALS_MAX and not accepted.touches(stamp.first, stamp.last):
            raise BadArgumentError(
                f"stamp: producer {stamp.producer_id!r} has left {len(accepted)} gaps in its numbers; fill some first"
            )
        if stamp.span == event_count:
            return [(first - stamp.first, last + 1 - stamp.first) for first, last in gaps]
        if not gaps:
            return []
        if gaps != [(stamp.first, stamp.last)]:
            raise BadArgumentError(
                f"stamp: {stamp.first} to {stamp.last} covers {event_count} events as a whole and overlaps in part "
                f"what producer {stamp.producer_id!r} has stored; it must be all new or all stored"
            )
        return [(0, event_count)]

    def refuse_gap(self, stamp: Stamp) -> None:
        """Raises OffsetGapError where the stamp's `after` was not accepted."""
        if stamp.after is None:
            return
        accepted = self._find(stamp.producer_id)
        if accepted is None or accepted.gaps(stamp.after, stamp.after):
            raise OffsetGapError(
                f"stamp.after_sequence: is {stamp.after}, which the channel has not accepted from producer "
                f"{stamp.producer_id!r}; send that first"
            )

    def has_accepted(self, stamp: Stamp) -> bool:
        accepted = self._find(stamp.producer_id)
        return accepted is not None and not accepted.gaps(stamp.first, stamp.last)

    def run_end(self, stamp: Stamp) -> int:
        """Returns the last of the stamp's numbers up to which all are accepted, or none is, as the first one."""
        accepted = self._find(stamp.producer_id)
        return stamp.last if accepted is None else accepted.run_end(stamp.first, stamp.last)

    def accept(self, stamp: Stamp, time: int = 0) -> "Acceptance":
        """Accepts the stamp's numbers, and with them those below `oldest_open`; returns the argument of `undo`.

        `time` is now, in microseconds since 1970.
        """
        group = self._group_of(stamp.producer_id)
        # Removed and added again, so that it becomes the most recently active.
        known = group.pop(stamp.producer_id, None)
        accepted = self._writable(known or IntervalSet())
        new = accepted.gaps(stamp.first, stamp.last)
        if new and len(accepted) and stamp.oldest_open:
            new = accepted.gaps(0, stamp.oldest_open - 1) + new
            accepted.add(0, stamp.oldest_open - 1)
        accepted.add(stamp.first, stamp.last)
        accepted.seen_at = time
        if stamp.owner and not stamp.producer_id.startswith(SHARED_PREFIX):
            accepted.owner = stamp.owner
        group[stamp.producer_id] = accepted
        forgotten = None
        if len(self) > PRODUCERS_MAX:
            group = self._transient or self._permanent
            producer_id = next(iter(group))
            forgotten = producer_id, group.pop(producer_id)
        return Acceptance(stamp.producer_id, new, forgotten, accepted.owner)

    def forget(self, producer_id: str) -> "Acceptance":
        """Forgets a producer that is known; returns the argument of `undo`."""
        return Acceptance(producer_id, [], (producer_id, self._group_of(producer_id).pop(producer_id)))

    def undo(self, acceptance: "Acceptance") -> None:
        """Reverses an acceptance; all later ones must have been reversed before."""
        if acceptance.forgotten is not None:
            # Perhaps the very same, where there was no space for any passing one.
            _put_first(*acceptance.forgotten, self._group_of(acceptance.forgotten[0]))
        group = self._group_of(acceptance.producer_id)
        accepted = group[acceptance.producer_id] = self._writable(group[acceptance.producer_id])
        for first, last in acceptance.new:
            accepted.remove(first, last)
        if not len(accepted):
            del group[acceptance.producer_id]

    def _writable(self, intervals: "IntervalSet") -> "IntervalSet":
        """Returns the intervals, or a copy where a snapshot has them."""
        if intervals.snapshot_count != self._snapshot_count:
            intervals = intervals.copy()
            intervals.snapshot_count = self._snapshot_count
        return intervals

    def without(self, acceptances: Iterable["Acceptance"]) -> "StampLedger":
        """Returns a copy of the ledger without these acceptances."""
        rest = StampLedger()
        self._snapshot_count += 1
        rest._permanent, rest._transient = dict(self._permanent), dict(self._transient)
        copied: set[str] = set()
        for acceptance in acceptances:
            producer_id = acceptance.producer_id
            if (accepted := rest._find(producer_id)) is None:
                continue
            if producer_id not in copied:
                copied.add(producer_id)
                accepted = rest._group_of(producer_id)[producer_id] = accepted.copy()
            for first, last in acceptance.new:
                accepted.remove(first, last)
        for producer_id in copied:
            group = rest._group_of(producer_id)
            if not len(group[producer_id]):
                del group[producer_id]
        return rest

    def intervals_of(self, producer_id: str) -> Iterator[tuple[int, int]]:
        """Returns a producer's accepted numbers as ascending ranges, both ends included."""
        return iter(self._find(producer_id) or ())

    def describe(self) -> Iterator[ProducerInfo]:
        """Yields the producers of now; of each kind the least recently active first."""
        for producer_id, accepted in self.snapshot().items():
            yield ProducerInfo(producer_id, accepted.lasts[-1], len(accepted) - 1, accepted.seen_at, accepted.owner)

    def producers(self) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """Yields each producer with its intervals; of each kind the least recently active first."""
        return ((producer_id, list(intervals)) for producer_id, intervals in self.snapshot().items())

    def snapshot(self) -> "dict[str, IntervalSet]":
        """Returns the intervals of each producer, in the same order. They stay as they are, whatever is accepted."""
        self._snapshot_count += 1
        return self._permanent | self._transient

    def restore(
        self, producer_id: str, intervals: Iterable[tuple[int, int]], seen_at: int = 0, owner: str = ""
    ) -> None:
        restored = self._group_of(producer_id)[producer_id] = IntervalSet()
        restored.seen_at, restored.owner = seen_at, owner
        for first, last in intervals:
            restored.add(first, last)


def _put_first(producer_id: str, intervals: "IntervalSet", group: "dict[str, IntervalSet]") -> None:
    others = dict(group)
    group.clear()
    group[producer_id] = intervals
    group.update(others)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The effects of accepting a stamp: numbers that were new, the producer that was forgotten for it, the owner."""

    producer_id: str
    new: list[tuple[int, int]]
    forgotten: "tuple[str, IntervalSet] | None"
    owner: str = ""


class IntervalSet:
    """A set of whole numbers as closed intervals, ascending and at least one number apart.

    `seen_at` is when their producer last sent some, in microseconds since 1970, 0 if that is not known; `owner` is the
    identity that it belongs to, empty without authentication.
    """

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.seen_at = 0
        self.owner = ""
        self.snapshot_count = 0  # That of the ledger when it was new: later snapshots have it too.

    def __len__(self) -> int:
        return len(self.firsts)

    def add(self, first: int, last: int) -> None:
        low, high = self._neighbours(first, last)
        if low < high:
            first = min(first, self.firsts[low])
            last = max(last, self.lasts[high - 1])
        self.firsts[low:high] = [first]
        self.lasts[low:high] = [last]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.firsts, self.lasts, strict=True)

    def copy(self) -> "IntervalSet":
        copy = IntervalSet()
        copy.firsts, copy.lasts = self.firsts[:], self.lasts[:]
        copy.seen_at, copy.owner = self.seen_at, self.owner
        return copy

    def remove(self, first: int, last: int) -> None:
        low, high = bisect_left(self.lasts, first), bisect_right(self.firsts, last)
        if low >= high:
            return
        parts = [(self.firsts[low], first - 1), (last + 1, self.lasts[high - 1])]
        kept = [(low, high) for low, high in parts if low <= high]
        self.firsts[low:high] = [first for first, _ in kept]
        self.lasts[low:high] = [last for _, last in kept]

    def gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Returns the parts of `first` to `last` that are not in the set."""
        gaps = []
        low, high = self._neighbours(first, last)
        for known_first, known_last in zip(self.firsts[low:high], self.lasts[low:high], strict=True):
            if first < known_first:
                gaps.append((first, min(known_first - 1, last)))
            first = max(first, known_last + 1)
        if first <= last:
            gaps.append((first, last))
        return gaps

    def run_end(self, first: int, last: int) -> int:
        """Returns the last number, of `first` to `last`, up to which all are in the set, or none is, as `first`."""
        index = bisect_left(self.lasts, first)
        if index == len(self.lasts):
            return last
        is_in = self.firsts[index] <= first
        return min(last, self.lasts[index] if is_in else self.firsts[index] - 1)

    def touches(self, first: int, last: int) -> bool:
        """Whether adding these numbers would not create another interval."""
        low, high = self._neighbours(first, last)
        return low < high

    def _neighbours(self, first: int, last: int) -> tuple[int, int]:
        """Returns the index range of the intervals that overlap or adjoin `first` to `last`."""
        low = bisect_left(self.lasts, first - 1)
        high = bisect_left(self.firsts, last + 2)
        return low, max(low, high)
