"""Groups of records in a stream: each is its own small segment, whose id is the sequence of its first message."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from millrace_server.replication.chain import Chain
from millrace_server.replication.messages import Message, MessageKind
from millrace_server.wal.disk import File
from millrace_server.wal.format import SegmentHeader
from millrace_server.wal.payload_codec import Payload, PayloadCodec
from millrace_server.wal.reading import RecordReader
from millrace_server.wal.records import Location
from millrace_server.wal.segments import LogCorruptError, Segment

_CACHED_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """The bytes of a group, in the place of a segment's file; positions count from the segment's beginning."""

    start: int
    content: memoryview

    @classmethod
    def of(cls, segment: Segment) -> Self:
        assert isinstance(segment.file, cls), "a group is in memory"
        return segment.file

    def size(self) -> int:
        """Returns the position after the last byte."""
        return self.start + len(self.content)

    def read(self, length: int, position: int) -> bytes | memoryview:
        """Returns up to `length` bytes from a position on."""
        offset = max(position - self.start, 0)
        found = self.content[offset : offset + length]
        # A view keeps the whole group in memory, so it is worth it only if it is most of it.
        return found if 2 * len(found) >= len(self.content) else bytes(found)

    read_cached = read


def segment_of(sequence: int, parts: Sequence[Message]) -> Segment:
    """Returns a group, whose first part has this sequence, as a segment."""
    first = parts[0]
    header = SegmentHeader(first.channel_id, sequence, first.position.lsn, 0)
    body = first.body if len(parts) == 1 else b"".join([part.body for part in parts])
    content: File = GroupBytes(first.position.position, memoryview(body))  # type: ignore[assignment] # it is only read
    return Segment(Path(f"message {sequence}"), header, content)


class GroupAssembler:
    """Puts the parts of groups together; a group without its last part has no effect."""

    def __init__(self) -> None:
        self._first = 0
        self._parts: list[Message] = []

    def add(self, sequence: int, message: Message) -> Segment | None:
        """Returns the group that a message completes."""
        if message.part == 0:
            self._first, self._parts = sequence, []
        elif sequence != self._first + len(self._parts) or message.part != len(self._parts):
            raise LogCorruptError(
                f"message {sequence}: is part {message.part} of a group whose other parts are missing"
            )
        self._parts.append(message)
        if len(self._parts) < message.part_count:
            return None
        return segment_of(self._first, self._parts)


class GroupReader:
    """Reads records by location, from any thread; what was read last is kept."""

    def __init__(self, chain: Chain, codec: PayloadCodec) -> None:
        self._chain = chain
        self._codec = codec
        self._lock = threading.Lock()
        self._cached: OrderedDict[int, Segment] = OrderedDict()
        self._cached_bytes = 0

    def read_run(self, locations: Sequence[Location], *, cached_only: bool) -> list[Payload] | None:
        """Implements `Log.read_run`."""
        groups = self._groups({location.segment_id for location in locations}, cached_only=cached_only)
        return None if groups is None else RecordReader(groups, self._codec).read_run(locations, cached_only=False)

    def read_puts(self, location: Location, *, cached_only: bool) -> list[Payload] | None:
        """Implements `Log.read_puts`."""
        groups = self._groups({location.segment_id}, cached_only=cached_only)
        return None if groups is None else RecordReader(groups, self._codec).read_puts(location, cached_only=False)

    def keep(self, segments: Iterable[Segment]) -> None:
        """Keeps groups until newer ones need the space."""
        with self._lock:
            for segment in segments:
                if segment.segment_id not in self._cached:
                    self._cached[segment.segment_id] = segment
                    self._cached_bytes += len(GroupBytes.of(segment).content)
            while self._cached_bytes > _CACHED_BYTES_MAX:
                _, oldest = self._cached.popitem(last=False)
                self._cached_bytes -= len(GroupBytes.of(oldest).content)

    def _groups(self, sequences: set[int], *, cached_only: bool) -> Mapping[int, Segment] | None:
        with self._lock:
            groups = {sequence: self._cached[sequence] for sequence in sequences if sequence in self._cached}
        missing = sorted(sequences - groups.keys())
        if missing and cached_only:
            return None
        fetched = dict(self._fetched(missing)) if missing else {}
        self.keep(fetched.values())
        return groups | fetched

    def _fetched(self, sequences: Sequence[int]) -> Iterator[tuple[int, Segment]]:
        for sequence, first in zip(sequences, self._chain.fetch(sequences), strict=True):
            if first is None or first.kind is not MessageKind.GROUP or first.part:
                raise LogCorruptError(f"message {sequence}, which holds a record to be read, is missing")
            rest = self._chain.fetch(range(sequence + 1, sequence + first.part_count)) if first.part_count > 1 else []
            parts = [first, *(part for part in rest if part is not None)]
            if len(parts) < first.part_count:
                raise LogCorruptError(f"message {sequence}: its other parts are missing")
            yield sequence, segment_of(sequence, parts)
