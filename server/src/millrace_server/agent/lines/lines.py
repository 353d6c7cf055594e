"""Lines, and the framer that splits an input into lines."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from millrace_server.agent.lines.charsets import Charset
from millrace_server.agent.lines.config import LinesConfig


@dataclass(frozen=True, slots=True)
class Lines:
    """The events in a part of the input, and the bytes that they cover.

    Each event covers the bytes from its own first byte to that of the next event. So bytes between two events, such as
    line ends and dropped lines, belong to the earlier one.

    Attributes:
        skipped_bytes: Bytes of dropped lines before the first event.
        sizes: The number of bytes that each event covers.
    """

    start: int
    skipped_bytes: int
    bodies: Sequence[bytes]
    sizes: Sequence[int]

    @property
    def count(self) -> int:
        return len(self.bodies)

    @property
    def end(self) -> int:
        return self.start + self.skipped_bytes + sum(self.sizes)

    @property
    def offsets(self) -> list[int]:
        """The position of each event's first byte in the whole input."""
        offsets = list(accumulate(self.sizes, initial=self.start + self.skipped_bytes))
        offsets.pop()
        return offsets

    def first(self, count: int) -> "Lines":
        return replace(self, bodies=self.bodies[:count], sizes=self.sizes[:count])

    def parts(self, events_max: int, body_bytes_max: int | None = None) -> "Iterator[Lines]":
        """Yields the same events in parts within these limits; nothing if no bytes are covered.

        A single event may exceed `body_bytes_max`.
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
        ends = list(accumulate(map(len, self.bodies), initial=0))
        stop = 0
        while stop < self.count:
            stop = min(stop + events_max, max(bisect_right(ends, ends[stop] + body_bytes_max) - 1, stop + 1))
            yield stop


class LinesBuilder:
    """Collects events into Lines."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._skipped_bytes = 0
        self._bodies: list[bytes] = []
        self._sizes: list[int] = []

    def add(self, body: bytes, size: int) -> None:
        self._bodies.append(body)
        self._sizes.append(size)

    def extend(self, bodies: Sequence[bytes], sizes: Sequence[int]) -> None:
        self._bodies.extend(bodies)
        self._sizes.extend(sizes)

    def skip(self, size: int) -> None:
        """Adds bytes that belong to no event."""
        if self._sizes:
            self._sizes[-1] += size
        else:
            self._skipped_bytes += size

    def build(self) -> Lines:
        return Lines(self._start, self._skipped_bytes, self._bodies, self._sizes)


class LineFramer:
    """Splits bytes into lines, without their line ends and not yet decoded.

    The result depends only on the bytes, not on the chunks in which they arrive. At most twice the maximum length of a
    line is buffered of an unfinished line.

    Args:
        offset: The position of the first byte in the whole input; a line begins there.
    """

    def __init__(self, charset: Charset, config: LinesConfig, offset: int) -> None:
        self._charset = charset
        self._line_bytes_max = config.line_bytes_max
        # A line is still short enough if the excess is a carriage return and a part of a line feed.
        self._unfinished_bytes_max = config.line_bytes_max + 2 * charset.unit_bytes - 1
        self._policy = config.long_lines
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._buffer_offset = offset
        self._long_line: _LongLine | None = None
        self._is_splitting = False
        self.long_line_count = 0

    @property
    def position(self) -> int:
        return self._buffer_offset - (self._long_line.size if self._long_line else 0)

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes + (len(self._long_line.body) if self._long_line else 0)

    @property
    def has_unfinished_line(self) -> bool:
        """Whether there are bytes after the last line end."""
        return self._buffered_bytes > 0 or self._long_line is not None

    def feed(self, data: bytes) -> Lines:
        """Returns the lines that end in these bytes, and the pieces of a line that is too long."""
        charset = self._charset
        builder = LinesBuilder(self.position)
        # Joined only when a line ends, so that a line in many chunks is not copied for each of them.
        self._buffer.append(data)
        self._buffered_bytes += len(data)
        if charset.unit_bytes > 1 or charset.newline in data:
            self._split_buffer(builder)
        if self._buffered_bytes > self._unfinished_bytes_max:
            self._reduce_buffer(builder)
        return builder.build()

    def finish(self) -> Lines:
        """Returns the unfinished line, if any, as if it had ended."""
        builder = LinesBuilder(self.position)
        rest = self._take_buffer()
        if self._long_line is not None:
            self._add_reduced(builder, len(rest))
        elif rest:
            self._add(builder, rest, len(rest))
        self._is_splitting = False
        return builder.build()

    def _take_buffer(self) -> bytes:
        held = b"".join(self._buffer)
        self._set_buffer(b"", self._buffer_offset + len(held))
        return held

    def _set_buffer(self, rest: bytes, offset: int) -> None:
        self._buffer = [rest] if rest else []
        self._buffered_bytes = len(rest)
        self._buffer_offset = offset

    def _split_buffer(self, builder: LinesBuilder) -> None:
        charset = self._charset
        text = b"".join(self._buffer)
        lines = charset.split(text, self._buffer_offset)
        rest = lines.pop()
        if not lines:
            return
        self._set_buffer(rest, self._buffer_offset + len(text) - len(rest))
        sizes = [size + charset.unit_bytes for size in map(len, lines)]
        if charset.carriage_return + charset.newline in text:
            lines = [line.removesuffix(charset.carriage_return) for line in lines]
        if self._long_line is not None:
            self._add_reduced(builder, sizes[0])
            del lines[0], sizes[0]
        if max(map(len, lines), default=0) <= self._line_bytes_max:
            builder.extend(lines, sizes)
        else:
            for line, size in zip(lines, sizes, strict=True):
                self._add(builder, line, size)
                self._is_splitting = False
        self._is_splitting = False

    def _add(self, builder: LinesBuilder, line: bytes, size: int) -> None:
        if len(line) > self._line_bytes_max:
            self._count_long_line()
            if self._policy == "drop":
                builder.skip(size)
                return
            if self._policy == "truncate":
                builder.add(self._piece_of(line, 0), size)
                return
            rest = self._emit_pieces(builder, line, self._line_bytes_max)
            size -= len(line) - len(rest)
            line = rest
        builder.add(line, size)

    def _reduce_buffer(self, builder: LinesBuilder) -> None:
        """Emits or discards the beginning of an unfinished line that is too long already."""
        if self._long_line is None:
            self._count_long_line()
        offset = self._buffer_offset
        held = self._take_buffer()
        if self._policy == "split":
            rest = self._emit_pieces(builder, held, self._unfinished_bytes_max)
            self._is_splitting = True
        else:
            rest = held[len(held) - len(held) % self._charset.unit_bytes :]
            known = self._long_line or _LongLine(b"", 0)
            is_first = self._long_line is None and self._policy == "truncate"
            body = self._piece_of(held, 0) if is_first else known.body
            self._long_line = _LongLine(body, known.size + len(held) - len(rest))
        self._set_buffer(rest, offset + len(held) - len(rest))

    def _emit_pieces(self, builder: LinesBuilder, line: bytes, rest_bytes_max: int) -> bytes:
        """Adds pieces of a line as events until the rest is short enough; returns the rest."""
        start = 0
        while len(line) - start > rest_bytes_max:
            piece = self._piece_of(line, start)
            builder.add(piece, len(piece))
            start += len(piece)
        return line[start:]

    def _piece_of(self, line: bytes, start: int) -> bytes:
        return self._charset.whole_characters(line[start : start + self._line_bytes_max])

    def _add_reduced(self, builder: LinesBuilder, rest_size: int) -> None:
        assert self._long_line is not None, "asked before"
        size = self._long_line.size + rest_size
        if self._policy == "truncate":
            builder.add(self._long_line.body, size)
        else:
            builder.skip(size)
        self._long_line = None

    def _count_long_line(self) -> None:
        if not self._is_splitting:
            self.long_line_count += 1


class _LongLine(NamedTuple):
    """The part of an unfinished line that is too long and no longer buffered; it precedes the buffer."""

    body: bytes
    size: int
