"""How much of a file channels have stored already."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.lines.splitter import LinesError, LineSplitter
from millrace_server.agent.sources.spooldir.config import AnyFormat, AvroFormat, BlobFormat, LinesFormat
from millrace_server.agent.sources.spooldir.content import BadFileError, Content


class StoredRanges:
    """What channels have stored of one producer whose numbers begin with 0.

    They differ only where a crash came between the commits of two channels. Then what one of them has and another has
    not is read again, in the same pieces.

    Args:
        ranges: For each channel the numbers that it has, as ascending ranges with both ends included.

    Attributes:
        position: All channels have the numbers before it.
    """

    def __init__(self, ranges: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.position = min((self._beginning(of_one) for of_one in ranges), default=0)
        borders = {border for of_one in ranges for first, last in of_one for border in (first, last + 1)}
        self._borders = sorted(border for border in borders if border > self.position)

    @staticmethod
    def _beginning(ranges: Sequence[tuple[int, int]]) -> int:
        return ranges[0][1] + 1 if ranges and ranges[0][0] == 0 else 0

    def next_border(self, position: int) -> int | None:
        """The first number after a position where what some channel has stored begins or ends: a batch must end there.

        Returns:
            None where there is none.
        """
        index = bisect_right(self._borders, position)
        return self._borders[index] if index < len(self._borders) else None


PIECE_BYTES = 1 << 20
"""About so many bytes of a file become one piece at most; an event that is larger, one of its own."""


@dataclass
class PieceLimits:
    """How large pieces may be; may change between them."""

    events_max: int
    """A piece has at most so many events."""
    body_bytes_max: int
    """Their bodies have at most so many bytes, unless it is a single one."""


class Piece(NamedTuple):
    """Some events of a file, and what they cover."""

    bodies: Sequence[bytes]
    """The events."""
    offsets: Sequence[int]
    """For each of them where it begins in the file."""
    first: int
    """The first number of the file that they cover."""
    last: int
    """The last one."""
    headers: Mapping[str, str] = {}
    """What all of the file's events have."""


class PieceReader(Protocol):
    """Reads a file piece by piece. The pieces cover all its numbers, one after another."""

    def next(self) -> Piece | None:
        """The next piece, None at the end. Blocks on the disk.

        Raises:
            BadFileError: The rest of the file cannot be used.
            OSError: It cannot be read now.
        """


def open_pieces(content: Content, file_format: AnyFormat, stored: StoredRanges, limits: PieceLimits) -> PieceReader:
    """Reads what channels do not all have of a file.

    Args:
        content: The file's, from its beginning.
        file_format: What is in it.
        stored: What channels have.
        limits: How large pieces may be.
    """
    match file_format:
        case LinesFormat():
            return _LinePieces(content, file_format, stored, limits)
        case BlobFormat():
            return _BlobPiece(content, file_format, stored)
        case AvroFormat():
            from millrace_server.agent.sources.spooldir.avro import AvroPieces

            return AvroPieces(content, file_format, stored, limits)


class _LinePieces:
    """Lines; their numbers are the bytes of the content."""

    def __init__(self, content: Content, config: LinesFormat, stored: StoredRanges, limits: PieceLimits) -> None:
        self._content = content
        self._config = config
        self._stored = stored
        self._limits = limits
        self._splitter = LineSplitter(config, stored.position, content.head)
        self._pieces: deque[Piece] = deque()
        self._is_at_end = False
        content.skip_to(stored.position)

    def next(self) -> Piece | None:
        while not self._pieces:
            if self._is_at_end:
                return None
            self._pieces.extend(self._cut(self._read_lines()))
        return self._pieces.popleft()

    def _read_lines(self) -> Lines:
        # Up to a multiple of the size, wherever it began, so that the same bytes come together each time: what lines
        # that are left out are counted to depends on that.
        data = self._content.read(PIECE_BYTES - self._content.position % PIECE_BYTES)
        try:
            if data:
                return self._splitter.feed(data)
            self._is_at_end = True
            return self._splitter.finish()
        except LinesError as error:
            raise BadFileError(str(error)) from None

    def _cut(self, lines: Lines) -> Iterator[Piece]:
        for between in self._cut_at_borders(lines):
            for part in self._parts(between):
                yield Piece(part.bodies, part.offsets, part.start, part.end - 1)

    def _cut_at_borders(self, lines: Lines) -> Iterator[Lines]:
        while (border := self._stored.next_border(lines.start)) is not None and border < lines.end:
            offsets = lines.offsets
            count = bisect_left(offsets, border)
            if count == len(offsets) or offsets[count] != border:
                raise BadFileError(
                    f"some of its channels have stored its first {border} bytes and others have not, and what is a "
                    "line was configured otherwise then"
                )
            yield lines.first(count)
            lines = Lines(border, 0, lines.bodies[count:], lines.sizes[count:])
        yield lines

    def _parts(self, lines: Lines) -> Iterator[Lines]:
        limits = self._limits
        ends = list(accumulate(map(len, lines.bodies)))
        if not ends or ends[-1] <= limits.body_bytes_max:
            yield from lines.parts(limits.events_max)
            return
        start = passed_bytes = 0
        while start < len(ends):
            fitting = bisect_right(ends, passed_bytes + limits.body_bytes_max)
            stop = max(min(start + limits.events_max, fitting), start + 1)
            part = lines.first(stop - start)
            yield part
            lines = Lines(part.end, 0, lines.bodies[stop - start :], lines.sizes[stop - start :])
            start, passed_bytes = stop, ends[stop - 1]


class _BlobPiece:
    """The whole file as one event, whose number is 0."""

    def __init__(self, content: Content, config: BlobFormat, stored: StoredRanges) -> None:
        self._content = content
        self._bytes_max = config.file_bytes_max
        self._is_at_end = stored.position > 0

    def next(self) -> Piece | None:
        if self._is_at_end:
            return None
        body = self._content.read(self._bytes_max + 1)
        if len(body) > self._bytes_max:
            raise BadFileError(f"it has more than {self._bytes_max} bytes")
        self._is_at_end = True
        return Piece([body], [0], 0, 0)
