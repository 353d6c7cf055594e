"""Reading segments: record by record in order (`SegmentScanner`), and single records by location (`RecordReader`).

The scanner serves replay, which stops at damage, and the log tools, which continue behind it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from millrace_server.wal.disk import File
from millrace_server.wal.format import (
    CHECKSUM_BYTES,
    FLAGS,
    HEAD_SHAPE,
    KINDS,
    RECORD_HEAD,
    RECORD_HEAD_BYTES,
    RECORD_START,
    SEGMENT_HEADER_BYTES,
    Flags,
    Kind,
    RecordHead,
    SegmentHeader,
    UnknownVersionError,
    payload_checksum,
)
from millrace_server.wal.payload_codec import Payload, PayloadCodec
from millrace_server.wal.records import Location
from millrace_server.wal.segments import LogCorruptError, Segment, segment_name

# Larger blocks do not read faster: the C library reuses blocks of this size, and the kernel clears larger ones page by
# page.
_READ_BYTES = 2 << 20

# One system call reads at most this much, unless a single record is larger. More would not stay in the CPU's cache
# until the payloads are used.
RUN_BYTES_MAX = 1 << 20

# Records this close are read together: reading the gap costs less than another system call.
GAP_BYTES_MAX = 16 << 10


class ScannedRecord(NamedTuple):
    """A valid record: its checksums match."""

    position: int
    head: RecordHead
    payload: memoryview
    """Encoded as on the disk. It keeps the block that was read in memory."""

    @property
    def end(self) -> int:
        """One past its last byte."""
        return self.position + self.head.record_length


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes between valid records that are no valid record."""

    position: int
    end: int | None
    """Position of the next valid record; None if there is none."""


class SegmentScanner:
    """Reads the records of one segment in order.

    Each call sees the file as it is at that moment, which matters when a server is writing to it.

    Args:
        file: The segment.
        identity: Which channel's segment it is. Only its ids are used, so the log tools can read a segment whose
            header is damaged.
    """

    def __init__(self, file: File, identity: SegmentHeader) -> None:
        self._file = file
        self._identity = identity

    def record_at(self, position: int) -> ScannedRecord | None:
        """Returns the valid record at a position, or None.

        Raises:
            UnknownVersionError: Another version of Millrace wrote it.
        """
        return self._record_in(_Window(self._file), position)

    def records(self, position: int = SEGMENT_HEADER_BYTES) -> Iterator[ScannedRecord]:
        """Yields the records from a position on, up to the first place without a valid record."""
        # One window for the whole scan: neighbouring records come from the same read.
        window = _Window(self._file)
        while (record := self._record_in(window, position)) is not None:
            yield record
            # Only a valid record says where the next one begins. Behind an invalid one its length is not to be trusted.
            position += record.head.record_length
            if found := records_in(window.block_from(position), position, self._identity.seeder()):
                yield from found
                position = found[-1].end

    def records_behind(self, position: int) -> Iterator[ScannedRecord]:
        """Yields all valid records at or behind a position, whatever lies between them.

        A body may contain a copy of a record, but its checksum belongs to another position.
        """
        window = _Window(self._file)
        # At every byte, not at every record: behind damage, record boundaries are unknown.
        for candidate in window.find_heads(position):
            if (record := self._record_in(window, candidate)) is not None:
                yield record

    def records_and_gaps(self, position: int, end: int) -> Iterator[ScannedRecord | Gap]:
        """Yields the records from a position on, and each gap that begins before `end`."""
        while True:
            for record in self.records(position):
                yield record
                position = record.end
            if position >= end:
                return
            # Behind the position itself, which was just found invalid.
            following = next(self.records_behind(position + 1), None)
            yield Gap(position, following.position if following else None)
            if following is None:
                return
            position = following.position

    def synced_position_behind(self, position: int) -> int:
        """Returns the highest synced position that any valid record at or behind a position states, or 0."""
        return max((record.head.synced_position for record in self.records_behind(position)), default=0)

    def check_end(self, position: int, synced_length: int) -> None:
        """Decides whether the first place without a valid record is the torn end of the log or damage.

        Args:
            position: That place.
            synced_length: How much of the segment was synced according to other files: the next segment's header, or a
                checkpoint.

        Raises:
            LogCorruptError: It was synced once, so it is damage.
        """
        # A crash may keep valid records after a hole, since a disk writes sectors in any order. They were all written
        # before the hole was synced, and say so. Only a record written after that sync proves that the hole is damage.
        evidence = max(synced_length, self.synced_position_behind(position + 1))
        if evidence > position:
            raise LogCorruptError(
                f"{segment_name(self._identity.segment_id)}: is damaged at byte {position}; it was synced up to byte "
                f"{evidence}"
            )

    def context(self, position: int) -> bytes:
        """Returns the context that a record's payload was encoded with."""
        return self._identity.context(position)

    def _record_in(self, window: "_Window", position: int) -> ScannedRecord | None:
        encoded = window.read(position, RECORD_HEAD_BYTES).tobytes()
        try:
            head = RecordHead.decode(encoded, self._identity.seed(position))
        except UnknownVersionError as error:
            raise UnknownVersionError(f"{segment_name(self._identity.segment_id)}: {error}") from None
        if head is None:
            return None
        payload = window.read(position + RECORD_HEAD_BYTES, head.payload_length)
        # A torn record may have its head and not all of its payload, or the payload's length and not its content.
        if len(payload) < head.payload_length or payload_checksum([payload]) != head.payload_checksum:
            return None
        return ScannedRecord(position, head, payload)


def records_in(block: memoryview, position: int, seed: Callable[[int], int] | None) -> list[ScannedRecord]:
    """Returns the records that lie whole in a block, up to one that may be invalid, or of another version.

    Args:
        block: A part of a segment.
        position: Where it begins.
        seed: Initial values of the records' checksums by their positions; None: a checksum of the whole block has
            matched already, which says the same as theirs.
    """
    # As `SegmentScanner.record_at` does, with few calls: much of the time that a replay takes is spent here.
    found: list[ScannedRecord] = []
    unpack, start, length = RECORD_HEAD.unpack_from, 0, len(block)
    while (body := start + RECORD_HEAD_BYTES) <= length:
        checksum, payload_checksum, payload_length, kind, flags, lsn, synced = unpack(block, start)
        if seed is not None and checksum != crc32(block[start + CHECKSUM_BYTES : body], seed(position + start)):
            break
        payload = block[body : body + payload_length]
        if len(payload) < payload_length or kind not in KINDS or flags not in FLAGS:
            break
        if seed is not None and crc32(payload) != payload_checksum:
            break
        head = RecordHead(payload_checksum, payload_length, KINDS[kind], FLAGS[flags], lsn, synced)
        found.append(ScannedRecord(position + start, head, payload))
        start = body + payload_length
    return found


class _Window:
    """A block of the file in memory that moves on as it is read."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size()
        self._start = 0
        self._bytes = b""

    def read(self, position: int, length: int) -> memoryview:
        end = position + length
        if position < self._start or end > self._start + len(self._bytes):
            # A record torn at the file's end states more than there is; that must not allocate memory for it.
            wanted = min(max(length, _READ_BYTES), max(self._size - position, 0))
            self._start = position
            # Starts at the position, not at a block border: scans go forward, so what is before is not needed.
            self._bytes = self._file.read(wanted, position)
        offset = position - self._start
        return memoryview(self._bytes)[offset : offset + length]

    def block_from(self, position: int) -> memoryview:
        """Returns what was read from a position on."""
        return memoryview(self._bytes)[position - self._start :]

    def find_heads(self, position: int) -> Iterator[int]:
        """Yields the positions from one on that have the shape of a record's head."""
        while position < self._size:
            # Blocks overlap by a head, so that one across their border is found.
            block = bytes(self._file.read(_READ_BYTES + RECORD_HEAD_BYTES, position))
            # Preallocated zeros are the usual case, and counting is much faster than matching.
            if block.count(0) < len(block):
                for match in HEAD_SHAPE.finditer(block):
                    if match.start() < _READ_BYTES:
                        yield position + match.start()
            position += _READ_BYTES


class RecordReader:
    """Reads records by location and decodes their payloads, from any thread.

    Args:
        segments: The log's segments by id; other threads add and remove some.
        codec: Decodes payloads.
    """

    def __init__(self, segments: Mapping[int, Segment], codec: PayloadCodec) -> None:
        self._segments = segments
        self._codec = codec

    def read_run(self, locations: Sequence[Location], *, cached_only: bool) -> list[Payload] | None:
        """Implements `WriteAheadLog.read_run`."""
        payloads: list[Payload] = []
        for run in _runs(locations):
            segment = self._segment(run[0])
            start = run[0].position
            # The event loop may not wait for the disk; it falls back to a thread if this returns None.
            read = segment.file.read_cached if cached_only else segment.file.read
            encoded = read(_end(run[-1]) - start, start)
            if encoded is None:
                return None
            window = memoryview(encoded)
            found = [
                self._payload(segment, location, window[location.position - start : _end(location) - start])
                for location in run
            ]
            # Views keep the whole block in memory, so they are worth it only if they are most of it.
            payloads += found if 2 * sum(map(len, found)) >= len(encoded) else map(bytes, found)
        return payloads

    def read_puts(self, location: Location, *, cached_only: bool) -> list[Payload] | None:
        """Implements `WriteAheadLog.read_puts`."""
        segment = self._segment(location)
        read = segment.file.read_cached if cached_only else segment.file.read
        block = read(RECORD_HEAD_BYTES + location.payload_length, location.position)
        if block is None:
            return None
        encoded = bytes(block)
        # For each of up to a thousand records no object and few calls. Those of other kinds are passed over unchecked:
        # if the length of one is damaged, what follows is no record at its position.
        payloads: list[Payload] = []
        put, unpack_start, seed = int(Kind.PUT), RECORD_START.unpack_from, segment.header.seeder()
        start, length_read, first_position = 0, len(encoded) - RECORD_HEAD_BYTES, location.position
        while start <= length_read:
            checksum, payload_checksum, length, kind, flags = unpack_start(encoded, start)
            body = start + RECORD_HEAD_BYTES
            if kind == put:
                position = first_position + start
                payload: Payload = encoded[body : body + length]
                head = encoded[start + CHECKSUM_BYTES : body]
                if crc32(head, seed(position)) != checksum or crc32(payload) != payload_checksum:
                    raise LogCorruptError(f"{segment.path.name}: the record at byte {position} is damaged")
                if flags:
                    with _damage_located(segment, position):
                        context = segment.header.context(position)
                        payload = self._codec.decode(Kind.PUT, Flags(flags), memoryview(payload), context)
                payloads.append(payload)
            start = body + length
        return payloads

    def decoder(self, segment: Segment, record: ScannedRecord) -> Callable[[], Payload]:
        """Returns a function that decodes the payload of a scanned record.

        Raises:
            KeyMissingError: Its key was not given.
            LogCorruptError: It does not name its key.
        """
        payload = record.payload
        if not record.head.flags:
            return lambda: payload
        # The key is checked now, although the payload is decoded later: a missing key must end replay before
        # anything is changed.
        with _damage_located(segment, record.position):
            self._codec.check_key(record.head.flags, payload)
        # Bound to the scanned payload, so it need not be read again while the record is in memory.
        return lambda: self._decode(segment, record.position, record.head, payload)

    def _segment(self, location: Location) -> Segment:
        # One dict access is atomic. The segment's file stays open while this thread refers to it, even once removed.
        segment = self._segments.get(location.segment_id)
        if segment is None:
            raise LogCorruptError(f"segment {location.segment_id}, which holds a record to be read, is missing")
        return segment

    def _payload(self, segment: Segment, location: Location, encoded: memoryview) -> Payload:
        head = RecordHead.decode(bytes(encoded[:RECORD_HEAD_BYTES]), segment.header.seed(location.position))
        payload = encoded[RECORD_HEAD_BYTES:]
        # Checked again, although it was valid when it was written or replayed: disks lose bits at any time, and what a
        # checkpoint covers was not read at the opening.
        if head is None or len(payload) != head.payload_length or payload_checksum([payload]) != head.payload_checksum:
            raise LogCorruptError(f"{segment.path.name}: the record at byte {location.position} is damaged")
        return self._decode(segment, location.position, head, payload)

    def _decode(self, segment: Segment, position: int, head: RecordHead, payload: memoryview) -> Payload:
        if not head.flags:
            return payload
        with _damage_located(segment, position):
            return self._codec.decode(head.kind, head.flags, payload, segment.header.context(position))


@contextmanager
def _damage_located(segment: Segment, position: int) -> Iterator[None]:
    """Adds the location to a LogCorruptError."""
    try:
        yield
    except LogCorruptError as error:
        raise LogCorruptError(f"{segment.path.name}: the record at byte {position} is damaged: {error}") from None


def _end(location: Location) -> int:
    return location.position + RECORD_HEAD_BYTES + location.payload_length


def _runs(locations: Sequence[Location]) -> Iterator[Sequence[Location]]:
    """Splits locations into runs that one system call reads."""
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
