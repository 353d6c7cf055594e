"""Lines that were cut out of some input."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from millrace_server.agent.lines.charsets import Charset
from millrace_server.agent.lines.config import LinesConfig, LongLines


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


class LineCutter:
    """Cuts bytes into lines as they came, without their line ends.

    What it cuts depends on the bytes alone, never on the portions in which they came. Of a line without an end it holds
    no more than twice what a line may have.

    Args:
        charset: What the lines are written in.
        config: What becomes of lines that are too long.
        offset: Where the first byte lies in the whole input; a line begins there.

    Attributes:
        long_line_count: Lines so far that were too long.
    """

    def __init__(self, charset: Charset, config: LinesConfig, offset: int) -> None:
        self._charset = charset
        self._line_bytes_max = config.line_bytes_max
        # With the bytes of a carriage return, and of a part of a line feed, a line may still be short enough.
        self._unfinished_bytes_max = config.line_bytes_max + 2 * charset.unit_bytes - 1
        self._policy = config.long_lines
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_offset = offset
        self._beginning: _Beginning | None = None
        self._is_splitting = False
        self.long_line_count = 0

    @property
    def position(self) -> int:
        """Where the line that is not finished begins."""
        return self._held_offset - (self._beginning.size if self._beginning else 0)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of the line that is not finished."""
        return self._held_bytes + (len(self._beginning.body) if self._beginning else 0)

    @property
    def has_unfinished_line(self) -> bool:
        """Whether there are bytes after the last line end."""
        return self._held_bytes > 0 or self._beginning is not None

    def feed(self, data: bytes) -> Lines:
        """The lines that end in these bytes, and pieces of one that is too long."""
        charset = self._charset
        found = LinesBuilder(self.position)
        # Joined only where a line ends, so that a line which comes in many portions is not copied with each of them.
        self._held.append(data)
        self._held_bytes += len(data)
        if charset.unit_bytes > 1 or charset.newline in data:
            self._cut(found)
        if self._held_bytes > self._unfinished_bytes_max:
            self._shorten(found)
        return found.build()

    def finish(self) -> Lines:
        """The line that is not finished, where there is one: no more is to come of it."""
        found = LinesBuilder(self.position)
        rest = self._take_held()
        if self._beginning is not None:
            self._add_shortened(found, len(rest))
        elif rest:
            self._add(found, rest, len(rest))
        self._is_splitting = False
        return found.build()

    def _take_held(self) -> bytes:
        held = b"".join(self._held)
        self._hold(b"", self._held_offset + len(held))
        return held

    def _hold(self, rest: bytes, offset: int) -> None:
        self._held = [rest] if rest else []
        self._held_bytes = len(rest)
        self._held_offset = offset

    def _cut(self, found: LinesBuilder) -> None:
        charset = self._charset
        text = b"".join(self._held)
        lines = charset.split(text, self._held_offset)
        rest = lines.pop()
        if not lines:
            return
        self._hold(rest, self._held_offset + len(text) - len(rest))
        sizes = [size + charset.unit_bytes for size in map(len, lines)]
        if charset.carriage_return + charset.newline in text:
            lines = [line.removesuffix(charset.carriage_return) for line in lines]
        if self._beginning is not None:
            self._add_shortened(found, sizes[0])
            del lines[0], sizes[0]
        if max(map(len, lines), default=0) <= self._line_bytes_max:
            found.extend(lines, sizes)
        else:
            for line, size in zip(lines, sizes, strict=True):
                self._add(found, line, size)
                self._is_splitting = False
        self._is_splitting = False

    def _add(self, found: LinesBuilder, line: bytes, size: int) -> None:
        """Adds a finished line that may be too long, and covers so many bytes."""
        if len(line) > self._line_bytes_max:
            self._count_long_line()
            if self._policy is LongLines.DROP:
                found.leave_out(size)
                return
            if self._policy is LongLines.TRUNCATE:
                found.add(self._first_of(line, 0), size)
                return
            rest = self._split(found, line, self._line_bytes_max)
            size -= len(line) - len(rest)
            line = rest
        found.add(line, size)

    def _shorten(self, found: LinesBuilder) -> None:
        """Lets go of a line that is too long already and not finished."""
        if self._beginning is None:
            self._count_long_line()
        offset = self._held_offset
        held = self._take_held()
        if self._policy is LongLines.SPLIT:
            rest = self._split(found, held, self._unfinished_bytes_max)
            self._is_splitting = True
        else:
            rest = held[len(held) - len(held) % self._charset.unit_bytes :]
            known = self._beginning or _Beginning(b"", 0)
            is_first = self._beginning is None and self._policy is LongLines.TRUNCATE
            body = self._first_of(held, 0) if is_first else known.body
            self._beginning = _Beginning(body, known.size + len(held) - len(rest))
        self._hold(rest, offset + len(held) - len(rest))

    def _split(self, found: LinesBuilder, line: bytes, rest_bytes_max: int) -> bytes:
        """Adds pieces of a line as events until what is left is short enough; returns that."""
        start = 0
        while len(line) - start > rest_bytes_max:
            piece = self._first_of(line, start)
            found.add(piece, len(piece))
            start += len(piece)
        return line[start:]

    def _first_of(self, line: bytes, start: int) -> bytes:
        return self._charset.whole_characters(line[start : start + self._line_bytes_max])

    def _add_shortened(self, found: LinesBuilder, rest_size: int) -> None:
        assert self._beginning is not None, "asked before"
        size = self._beginning.size + rest_size
        if self._policy is LongLines.TRUNCATE:
            found.add(self._beginning.body, size)
        else:
            found.leave_out(size)
        self._beginning = None

    def _count_long_line(self) -> None:
        if not self._is_splitting:
            self.long_line_count += 1


class _Beginning(NamedTuple):
    """What was let go of a line that is too long and not finished; it lies before what is held."""

    body: bytes
    """What its event will be."""
    size: int
    """Bytes of it."""
