"""Reading a segment from one record to the next, and telling where it ends from where it is damaged."""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace_server.wal.format import (
    HEAD_SHAPE,
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordHead,
    UnknownVersionError,
    payload_checksum,
)
from millrace_server.wal.segments import LogCorruptError, Segment

_READ_BYTES = 2 << 20
"""Read at once. The C library reuses blocks of this size; much larger ones the kernel would clear page by page."""


@dataclass(frozen=True, slots=True)
class ScannedRecord:
    """A record whose checksums are right."""

    position: int
    head: RecordHead
    payload: memoryview
    """Sealed as it lies on the disk; valid until the next record is asked for."""


class SegmentScanner:
    """Reads a segment's records in order.

    Args:
        segment: What to read.
        synced_length: How much of it is known to have been synced, from elsewhere: the next segment's header, or a
            checkpoint. Damage below it is rot.
        position: Where to begin: the position of a record.
    """

    def __init__(self, segment: Segment, synced_length: int, position: int = SEGMENT_HEADER_BYTES) -> None:
        self._segment = segment
        self._synced_length = synced_length
        self.position = position
        """One past the last good record read so far; at the end, where the segment ends."""
        self.synced_position = position
        """All below it is on the disk, as far as the records read so far tell."""

    def records(self) -> Iterator[ScannedRecord]:
        """The records up to the end.

        The end is the first place where no good record lies, unless that place was synced once: then it is damage.

        Raises:
            LogCorruptError: Something that was synced is not what was written.
        """
        window = _Window(self._segment)
        while (record := self._record_at(window, self.position)) is not None:
            yield record
            self.position += record.head.record_length
            self.synced_position = max(self.synced_position, record.head.synced_position)
        evidence = max(self._synced_length, self._synced_position_behind(window))
        if evidence > self.position:
            raise LogCorruptError(
                f"{self._segment.path.name}: is damaged at byte {self.position}; it was synced up to byte {evidence}"
            )

    def _record_at(self, window: "_Window", position: int) -> ScannedRecord | None:
        encoded = window.read(position, RECORD_HEAD_BYTES).tobytes()
        try:
            head = RecordHead.decode(encoded, self._segment.header.seed(position))
        except UnknownVersionError as error:
            raise UnknownVersionError(f"{self._segment.path.name}: {error}") from None
        if head is None:
            return None
        payload = window.read(position + RECORD_HEAD_BYTES, head.payload_length)
        if len(payload) < head.payload_length or payload_checksum([payload]) != head.payload_checksum:
            return None
        return ScannedRecord(position, head, payload)

    def _synced_position_behind(self, window: "_Window") -> int:
        """The furthest synced position that any good record behind the end tells of; 0 where there is none.

        A crash may leave good records behind a hole: then they were all written before the hole was synced, and say
        so. One that says otherwise proves that the hole is rot.
        """
        furthest = 0
        for candidate in window.find_heads(self.position + 1):
            record = self._record_at(window, candidate)
            if record is not None:
                furthest = max(furthest, record.head.synced_position)
        return furthest


class _Window:
    """A part of the file in memory, which moves on as it is read."""

    def __init__(self, segment: Segment) -> None:
        self._file = segment.file
        self._size = segment.file.size()
        self._start = 0
        self._bytes = b""

    def read(self, position: int, length: int) -> memoryview:
        end = position + length
        if position < self._start or end > self._start + len(self._bytes):
            # A length that lies may ask for more than there is.
            wanted = min(max(length, _READ_BYTES), max(self._size - position, 0))
            self._start = position
            self._bytes = self._file.read(wanted, position)
        offset = position - self._start
        return memoryview(self._bytes)[offset : offset + length]

    def find_heads(self, position: int) -> Iterator[int]:
        """Places from a position on that look like a record's head."""
        while position < self._size:
            some = bytes(self._file.read(_READ_BYTES + RECORD_HEAD_BYTES, position))
            if some.count(0) < len(some):
                for match in HEAD_SHAPE.finditer(some):
                    if match.start() < _READ_BYTES:
                        yield position + match.start()
            position += _READ_BYTES
