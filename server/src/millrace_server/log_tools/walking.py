"""Reading a segment's good records one after the other, and finding the next good one behind damage.

`wal.scanning` reads for a server, which stops at damage. Who looks into a damaged log goes on behind it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace_server.wal.disk import File
from millrace_server.wal.format import (
    HEAD_SHAPE,
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordHead,
    SegmentHeader,
    UnknownVersionError,
    payload_checksum,
)
from millrace_server.wal.segments import segment_name

_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class WalkedRecord:
    """A record whose checksums are right."""

    position: int
    head: RecordHead
    payload: memoryview
    """Sealed as it lies on the disk."""

    @property
    def end(self) -> int:
        """One past its last byte."""
        return self.position + self.head.record_length


class SegmentWalker:
    """Reads one segment. Its header is not needed: the name tells which segment it is.

    Each call sees the file as it is then, which counts where a server writes to it.

    Args:
        file: The segment.
        log_id: Whose log it is of, 16 bytes.
        segment_id: Its number.
    """

    def __init__(self, file: File, log_id: bytes, segment_id: int) -> None:
        self._file = file
        self._identity = SegmentHeader(log_id, segment_id, 0, 0)

    def place(self, position: int) -> bytes:
        """What a record's payload was sealed for."""
        return self._identity.place(position)

    def record_at(self, position: int) -> WalkedRecord | None:
        """The good record at a place; None where there is none.

        Raises:
            UnknownVersionError: Another version of Millrace wrote it.
        """
        return self._record_in(_Window(self._file), position)

    def records(self, position: int = SEGMENT_HEADER_BYTES) -> Iterator[WalkedRecord]:
        """The good records from a place on, up to where none lies."""
        window = _Window(self._file)
        while record := self._record_in(window, position):
            yield record
            position = record.end

    def good_ones_from(self, position: int) -> Iterator[WalkedRecord]:
        """All good records from a place on, whatever lies between them.

        Some bodies may look like records; their checksums are of another place.
        """
        window = _Window(self._file)
        for candidate in window.find_heads(position):
            if record := self._record_in(window, candidate):
                yield record

    def _record_in(self, window: "_Window", position: int) -> WalkedRecord | None:
        encoded = window.read(position, RECORD_HEAD_BYTES).tobytes()
        try:
            head = RecordHead.decode(encoded, self._identity.seed(position))
        except UnknownVersionError as error:
            raise UnknownVersionError(f"{segment_name(self._identity.segment_id)}: {error}") from None
        if head is None:
            return None
        payload = window.read(position + RECORD_HEAD_BYTES, head.payload_length)
        if len(payload) < head.payload_length or payload_checksum([payload]) != head.payload_checksum:
            return None
        return WalkedRecord(position, head, payload)


class _Window:
    """A part of the file in memory, which moves on as it is read."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size()
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
            some = self._file.read(_READ_BYTES + RECORD_HEAD_BYTES, position)
            if some.count(0) < len(some):
                for match in HEAD_SHAPE.finditer(some):
                    if match.start() < _READ_BYTES:
                        yield position + match.start()
            position += _READ_BYTES
