"""Reading records back, one or many, from any thread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from millrace_server.wal.format import RECORD_HEAD_BYTES, RecordHead, payload_checksum
from millrace_server.wal.payload_codec import Payload, PayloadCodec
from millrace_server.wal.records import Location
from millrace_server.wal.scanning import ScannedRecord
from millrace_server.wal.segments import LogCorruptError, Segment

RUN_BYTES_MAX = 1 << 20
"""Bytes that one system call reads, unless a single record has more. Much more would not stay in a cache meanwhile."""

GAP_BYTES_MAX = 16 << 10
"""What may lie between two records that are read together: reading it costs less than another system call."""


class RecordReader:
    """Reads records back and opens their payloads.

    Args:
        segments: The log's segments by their numbers; some may come and go while others are read.
        codec: Opens payloads.
    """

    def __init__(self, segments: Mapping[int, Segment], codec: PayloadCodec) -> None:
        self._segments = segments
        self._codec = codec

    def read(self, location: Location) -> Payload:
        """What `WriteAheadLog.read` does."""
        segment = self._segment(location)
        encoded = segment.file.read(RECORD_HEAD_BYTES + location.payload_length, location.position)
        return self._payload(segment, location, memoryview(encoded))

    def read_run(self, locations: Sequence[Location], *, cached_only: bool) -> list[Payload] | None:
        """What `WriteAheadLog.read_run` does."""
        payloads: list[Payload] = []
        for run in _runs(locations):
            segment = self._segment(run[0])
            start = run[0].position
            read = segment.file.read_cached if cached_only else segment.file.read
            encoded = read(_end(run[-1]) - start, start)
            if encoded is None:
                return None
            window = memoryview(encoded)
            found = [
                self._payload(segment, location, window[location.position - start : _end(location) - start])
                for location in run
            ]
            # As views they keep all that was read in memory, so only where they are most of it.
            payloads += found if 2 * sum(map(len, found)) >= len(encoded) else map(bytes, found)
        return payloads

    def opener(self, segment: Segment, record: ScannedRecord) -> Callable[[], Payload]:
        """What opens a record that was scanned.

        Raises:
            KeyMissingError: Its key was not given. This comes at once, though it is opened later.
            LogCorruptError: It does not say which key it needs.
        """
        if record.head.flags:
            with _place_named(segment, record.position):
                self._codec.check_key(record.head.flags, record.payload)
        return lambda: self._open(segment, record.position, record.head, record.payload)

    def _segment(self, location: Location) -> Segment:
        segment = self._segments.get(location.segment_id)
        if segment is None:
            raise LogCorruptError(f"segment {location.segment_id}, in which a record is to be read, is not there")
        return segment

    def _payload(self, segment: Segment, location: Location, encoded: memoryview) -> Payload:
        head = RecordHead.decode(bytes(encoded[:RECORD_HEAD_BYTES]), segment.header.seed(location.position))
        payload = encoded[RECORD_HEAD_BYTES:]
        if head is None or len(payload) != head.payload_length or payload_checksum([payload]) != head.payload_checksum:
            raise LogCorruptError(f"{segment.path.name}: the record at byte {location.position} is damaged")
        return self._open(segment, location.position, head, payload)

    def _open(self, segment: Segment, position: int, head: RecordHead, payload: memoryview) -> Payload:
        if not head.flags:
            return payload
        with _place_named(segment, position):
            return self._codec.open(head.kind, head.flags, payload, segment.header.place(position))


@contextmanager
def _place_named(segment: Segment, position: int) -> Iterator[None]:
    """Says of damage where it lies."""
    try:
        yield
    except LogCorruptError as error:
        raise LogCorruptError(f"{segment.path.name}: the record at byte {position} is damaged: {error}") from None


def _end(location: Location) -> int:
    return location.position + RECORD_HEAD_BYTES + location.payload_length


def _runs(locations: Sequence[Location]) -> Iterator[Sequence[Location]]:
    """Cuts locations into runs that are read with one system call each."""
    first = 0
    for index in range(1, len(locations) + 1):
        if index == len(locations) or not _is_neighbour(locations[first], locations[index - 1], locations[index]):
            yield locations[first:index]
            first = index


def _is_neighbour(first: Location, before: Location, location: Location) -> bool:
    gap_bytes = location.position - _end(before)
    return (
        location.segment_id == first.segment_id
        and 0 <= gap_bytes <= GAP_BYTES_MAX
        and _end(location) - first.position <= RUN_BYTES_MAX
    )
