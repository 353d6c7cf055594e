"""Lines that were cut out of some input."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Lines:
    """Events of a part of some input, and which of its bytes they cover.

    Each event covers the bytes from its first one to the next event's first one; so what lies between two events, line
    ends and lines that were left out, counts to the event before it.

    Attributes:
        start: Where the part begins, in bytes of the whole input.
        skipped_bytes: Bytes of lines that were left out before the first event.
        bodies: The events' bodies.
        sizes: For each event how many bytes it covers.
    """

    start: int
    skipped_bytes: int
    bodies: Sequence[bytes]
    sizes: Sequence[int]

    @property
    def count(self) -> int:
        """Events."""
        return len(self.bodies)

    @property
    def end(self) -> int:
        """One past the last byte of the part."""
        return self.start + self.skipped_bytes + sum(self.sizes)

    @property
    def offsets(self) -> list[int]:
        """For each event where its first byte is in the whole input."""
        offsets = list(accumulate(self.sizes, initial=self.start + self.skipped_bytes))
        offsets.pop()
        return offsets

    def first(self, count: int) -> "Lines":
        """The first events, and what they cover."""
        return replace(self, bodies=self.bodies[:count], sizes=self.sizes[:count])

    def parts(self, events_max: int, body_bytes_max: int | None = None) -> "Iterator[Lines]":
        """The same in order, in parts that keep some limits; none where it covers no bytes.

        Args:
            events_max: At most so many events in a part.
            body_bytes_max: At most so many bytes of bodies in it, unless it is one event.
        """
        start, skipped_bytes = self.start, self.skipped_bytes
        if body_bytes_max is None or sum(map(len, self.bodies)) <= body_bytes_max:
            stops: Iterable[int] = range(events_max, self.count + events_max, events_max)
        else:
            stops = self._stops(events_max, body_bytes_max)
        index = 0
        for stop in stops:
            part = Lines(start, skipped_bytes, self.bodies[index:stop], self.sizes[index:stop])
            yield part
            index, start, skipped_bytes = stop, part.end, 0
        if skipped_bytes:
            yield Lines(start, skipped_bytes, [], [])

    def _stops(self, events_max: int, body_bytes_max: int) -> Iterator[int]:
        """Indexes at which parts end that keep both limits."""
        ends = list(accumulate(map(len, self.bodies), initial=0))
        stop = 0
        while stop < self.count:
            stop = min(stop + events_max, max(bisect_right(ends, ends[stop] + body_bytes_max) - 1, stop + 1))
            yield stop


class LinesBuilder:
    """Gathers events one by one.

    Args:
        start: Where the part begins.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._skipped_bytes = 0
        self._bodies: list[bytes] = []
        self._sizes: list[int] = []

    def add(self, body: bytes, size: int) -> None:
        """The next event, and how many bytes it covers."""
        self._bodies.append(body)
        self._sizes.append(size)

    def extend(self, bodies: Sequence[bytes], sizes: Sequence[int]) -> None:
        """The next events, and for each how many bytes it covers."""
        self._bodies.extend(bodies)
        self._sizes.extend(sizes)

    def leave_out(self, size: int) -> None:
        """So many bytes that are no event."""
        if self._sizes:
            self._sizes[-1] += size
        else:
            self._skipped_bytes += size

    def build(self) -> Lines:
        """What was gathered."""
        return Lines(self._start, self._skipped_bytes, self._bodies, self._sizes)
