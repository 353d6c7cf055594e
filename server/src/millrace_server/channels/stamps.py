"""What each producer has stored, the basis of exactly-once delivery."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from millrace_server.channels.names import check_identifier
from millrace_server.errors import BadArgumentError, OffsetGapError

PRODUCERS_MAX = 100_000
"""Producers that a channel remembers; beyond it, the one that has not stored anything for longest is forgotten, a
passing one before any other."""

PASSING_PREFIX = "passing/"
"""So the ids of producers begin that are not expected to store again, such as the keys of requests. However many come,
no other producer is forgotten for them."""

INTERVALS_MAX = 10_000
"""Separate ranges that a channel remembers of one producer."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Names, in the producer's own numbering, what a commit stores."""

    producer_id: str
    first: int
    last: int
    after: int | None = None
    """A number that must have been accepted before; None: there is no condition."""
    oldest_open: int | None = None
    """The producer sends no number below this one any more; None: not known."""

    def __post_init__(self) -> None:
        check_identifier("stamp.producer_id", self.producer_id)
        if self.last < self.first:
            raise BadArgumentError(
                f"stamp.last_sequence: is {self.last}; it must not be below stamp.first_sequence, {self.first}"
            )
        if self.oldest_open is not None and self.oldest_open > self.first:
            raise BadArgumentError(
                f"stamp.oldest_open_sequence: is {self.oldest_open}; it must not be above stamp.first_sequence, "
                f"{self.first}, which is sent just now"
            )

    @property
    def span(self) -> int:
        """Numbers that the stamp names."""
        return self.last - self.first + 1


class StampLedger:
    """For each producer the numbers that the channel has accepted, as intervals."""

    def __init__(self) -> None:
        self._permanent: dict[str, IntervalSet] = {}
        self._transient: dict[str, IntervalSet] = {}

    def __len__(self) -> int:
        return len(self._permanent) + len(self._transient)

    def _group_of(self, producer_id: str) -> "dict[str, IntervalSet]":
        """The producers of its kind, the one that has been silent for longest first."""
        return self._transient if producer_id.startswith(PASSING_PREFIX) else self._permanent

    def _find(self, producer_id: str) -> "IntervalSet | None":
        return self._group_of(producer_id).get(producer_id)

    def new_ranges(self, stamp: Stamp, event_count: int) -> list[tuple[int, int]]:
        """Which of a commit's events are new.

        Returns:
            Ranges of indexes into the events, the end excluded. All of them where the producer is unknown, none where
            everything was accepted before.

        Raises:
            BadArgumentError: A stamp that covers the commit as a whole overlaps in part what was accepted, or the
                producer has left too many gaps.
        """
        accepted = self._find(stamp.producer_id)
        if accepted is None:
            return [(0, event_count)]
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
        """Raises OffsetGapError where the number that the stamp is to come after was not accepted."""
        if stamp.after is None:
            return
        accepted = self._find(stamp.producer_id)
        if accepted is None or accepted.gaps(stamp.after, stamp.after):
            raise OffsetGapError(
                f"stamp.after_sequence: is {stamp.after}, which the channel has not accepted of producer "
                f"{stamp.producer_id!r}; send that first"
            )

    def has_accepted(self, stamp: Stamp) -> bool:
        """Whether all numbers of the stamp were accepted."""
        accepted = self._find(stamp.producer_id)
        return accepted is not None and not accepted.gaps(stamp.first, stamp.last)

    def accept(self, stamp: Stamp) -> "Acceptance":
        """Remembers the stamp's numbers as stored, and with them those that the producer says it never sends any more.

        Returns:
            What `undo` needs to forget them again.
        """
        group = self._group_of(stamp.producer_id)
        # Taken out and put in again, for the order.
        accepted = group.pop(stamp.producer_id, None) or IntervalSet()
        new = accepted.gaps(stamp.first, stamp.last)
        if new and len(accepted) and stamp.oldest_open:
            new = accepted.gaps(0, stamp.oldest_open - 1) + new
            accepted.add(0, stamp.oldest_open - 1)
        accepted.add(stamp.first, stamp.last)
        group[stamp.producer_id] = accepted
        forgotten = None
        if len(self) > PRODUCERS_MAX:
            group = self._transient or self._permanent
            producer_id = next(iter(group))
            forgotten = producer_id, group.pop(producer_id)
        return Acceptance(stamp.producer_id, new, forgotten)

    def undo(self, acceptance: "Acceptance") -> None:
        """Forgets numbers that were accepted, and after which nothing else was that is not undone already."""
        if acceptance.forgotten is not None:
            # Perhaps the very same, where there was no room for any passing one.
            _put_first(*acceptance.forgotten, self._group_of(acceptance.forgotten[0]))
        group = self._group_of(acceptance.producer_id)
        accepted = group[acceptance.producer_id]
        for first, last in acceptance.new:
            accepted.remove(first, last)
        if not len(accepted):
            del group[acceptance.producer_id]

    def without(self, acceptances: Iterable["Acceptance"]) -> "StampLedger":
        """A copy of the ledger without these acceptances."""
        rest = StampLedger()
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
        """The numbers of one producer that were accepted, as ascending ranges with both ends included."""
        return iter(self._find(producer_id) or ())

    def producers(self) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """Each producer with its intervals; of each kind first the one that has stored nothing for longest."""
        for producer_id, intervals in chain(self._permanent.items(), self._transient.items()):
            yield producer_id, list(intervals)

    def restore(self, producer_id: str, intervals: Iterable[tuple[int, int]]) -> None:
        """Restores a producer's intervals from a log."""
        restored = self._group_of(producer_id)[producer_id] = IntervalSet()
        for first, last in intervals:
            restored.add(first, last)


def _put_first(producer_id: str, intervals: "IntervalSet", group: "dict[str, IntervalSet]") -> None:
    others = dict(group)
    group.clear()
    group[producer_id] = intervals
    group.update(others)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What accepting a stamp has changed."""

    producer_id: str
    new: list[tuple[int, int]]
    """The numbers that were not accepted before."""
    forgotten: "tuple[str, IntervalSet] | None"
    """The producer that was forgotten for it."""


class IntervalSet:
    """A set of whole numbers as closed intervals: ascending, apart from each other by one number at least."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Adds the numbers from `first` to `last`, both included."""
        low, high = self._neighbours(first, last)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def copy(self) -> "IntervalSet":
        """Another set of the same numbers."""
        copy = IntervalSet()
        copy._firsts, copy._lasts = self._firsts[:], self._lasts[:]
        return copy

    def remove(self, first: int, last: int) -> None:
        """Removes the numbers from `first` to `last`, both included, as far as they are there."""
        low, high = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        if low >= high:
            return
        parts = [(self._firsts[low], first - 1), (last + 1, self._lasts[high - 1])]
        kept = [(low, high) for low, high in parts if low <= high]
        self._firsts[low:high] = [first for first, _ in kept]
        self._lasts[low:high] = [last for _, last in kept]

    def gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of `first` to `last` that are not in the set."""
        gaps = []
        low, high = self._neighbours(first, last)
        for known_first, known_last in zip(self._firsts[low:high], self._lasts[low:high], strict=True):
            if first < known_first:
                gaps.append((first, min(known_first - 1, last)))
            first = max(first, known_last + 1)
        if first <= last:
            gaps.append((first, last))
        return gaps

    def touches(self, first: int, last: int) -> bool:
        """Whether adding these numbers would not make one more interval."""
        low, high = self._neighbours(first, last)
        return low < high

    def _neighbours(self, first: int, last: int) -> tuple[int, int]:
        """Indexes of the intervals that overlap or adjoin `first` to `last`: from, and one past."""
        low = bisect_left(self._lasts, first - 1)
        high = bisect_left(self._firsts, last + 2)
        return low, max(low, high)
