"""Chunks of a file's events, which are lines or a blob."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.lines.splitter import LinesError, LineSplitter
from millrace_server.agent.sources.spooldir.config import BlobFormat, LinesFormat
from millrace_server.agent.sources.spooldir.content import BadFileError, Content
from millrace_server.agent.sources.stored_ranges import StoredRanges

CHUNK_BYTES = 1 << 20
"""The approximate maximum size of a chunk; a larger event is a chunk of its own."""


@dataclass
class ChunkLimits:
    """The limits of chunks, which may change between chunks."""

    events_max: int
    body_bytes_max: int
    """The maximum size of the bodies, unless it is a single event."""


class Chunk(NamedTuple):
    """Consecutive events of a file, and the numbers that they cover."""

    bodies: Sequence[bytes]
    offsets: Sequence[int]
    """The position of each event in the file."""
    first: int
    last: int
    headers: Mapping[str, str] = {}
    """Headers that all events of the file have."""


def line_chunks(content: Content, config: LinesFormat, stored: StoredRanges, limits: ChunkLimits) -> Iterator[Chunk]:
    """Yields lines, numbered by the bytes of the content.

    Raises:
        BadFileError: The rest of the file cannot be used.
    """
    splitter = LineSplitter(config, stored.position, content.head)
    content.skip_to(stored.position)
    is_at_end = False
    while not is_at_end:
        # Reads up to a multiple of the chunk size, so that the same bytes are always read together: the assignment of
        # skipped lines to events depends on it.
        data = content.read(CHUNK_BYTES - content.position % CHUNK_BYTES)
        is_at_end = not data
        try:
            lines = splitter.feed(data) if data else splitter.finish()
        except LinesError as error:
            raise BadFileError(str(error)) from None
        for between in list(_split_at_boundaries(lines, stored)):
            for part in between.parts(limits.events_max, limits.body_bytes_max):
                yield Chunk(part.bodies, part.offsets, part.start, part.end - 1)


def _split_at_boundaries(lines: Lines, stored: StoredRanges) -> Iterator[Lines]:
    while (boundary := stored.next_boundary(lines.start)) is not None and boundary < lines.end:
        offsets = lines.offsets
        count = bisect_left(offsets, boundary)
        if count == len(offsets) or offsets[count] != boundary:
            raise BadFileError(
                f"some of its channels have stored its first {boundary} bytes and others have not, and the "
                "settings of lines were different then"
            )
        yield lines.first(count)
        lines = Lines(boundary, 0, lines.bodies[count:], lines.sizes[count:])
    yield lines


def blob_chunks(content: Content, config: BlobFormat, stored: StoredRanges) -> Iterator[Chunk]:
    """Yields the entire file as one event with the number 0; raises BadFileError if it is too large."""
    if stored.position > 0:
        return
    body = content.read(config.file_bytes_max + 1)
    if len(body) > config.file_bytes_max:
        raise BadFileError(f"it has more than {config.file_bytes_max} bytes")
    yield Chunk([body], [0], 0, 0)
