"""The write-ahead log: all segments of one channel."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest

from millrace_server.wal.format import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    Flags,
    Kind,
    RecordHead,
    payload_checksum,
)
from millrace_server.wal.scanning import SegmentScanner
from millrace_server.wal.segments import LogCorruptError, Segment, SegmentFiles
from millrace_server.wal.writer import Location, LogPosition, LogWriter, Submission

Record = tuple[Kind, Flags, Sequence[bytes]]

_REWRITE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record as replay finds it."""

    kind: Kind
    flags: Flags
    location: Location
    payload: memoryview
    """Valid until the next record is asked for."""


class WriteAheadLog:
    """Replay it to its end, start it, submit to it from the event loop, and close it.

    Args:
        files: Where its segments lie.
    """

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._segments: dict[int, Segment] = {}
        self._writer: LogWriter | None = None
        self._end = LogPosition(0, 0, 1)

    @property
    def first_segment_id(self) -> int:
        """The oldest segment's number; 0 where there is none."""
        return min(self._segments, default=0)

    def byte_count(self) -> int:
        """Bytes that all segments take."""
        # A list, since the writer's thread may add a segment meanwhile.
        return sum(segment.file.size() for segment in list(self._segments.values()))

    # Opening.

    def replay(self, start: LogPosition | None = None) -> Iterator[LogRecord]:
        """Reads the log's records in order, and cuts a torn tail off at the end.

        Args:
            start: Where to begin; everything before it is known to have been synced. None for the oldest record.

        Raises:
            LogCorruptError: Something that was synced is missing or is not what was written.
            UnknownVersionError: Another version of Millrace wrote a part of it; nothing was changed.
        """
        segments = self._files.find()
        self._segments = {segment.segment_id: segment for segment in segments}
        if start is not None and start.segment_id not in self._segments:
            raise LogCorruptError(f"segment {start.segment_id}, from which the log is to be read, is missing")
        unread = [segment for segment in segments if start is None or segment.segment_id >= start.segment_id]
        for segment, following in zip_longest(unread, unread[1:]):
            first = start if start is not None and segment.segment_id == start.segment_id else None
            yield from self._replay_segment(segment, following, first)

    def _replay_segment(
        self, segment: Segment, following: Segment | None, start: LogPosition | None
    ) -> Iterator[LogRecord]:
        position = start.position if start else SEGMENT_HEADER_BYTES
        write_number = start.write_number if start else segment.header.first_write_number
        # A segment gets its name once its first record is on the disk, so that one is not torn.
        synced_length = following.header.previous_length if following else max(position, SEGMENT_HEADER_BYTES + 1)
        if segment.file.size() < synced_length:
            raise LogCorruptError(
                f"{segment.path.name}: has {segment.file.size()} bytes; it was synced up to byte {synced_length}"
            )
        scanner = SegmentScanner(segment, synced_length, position)
        for record in scanner.records():
            if record.head.write_number != write_number:
                raise LogCorruptError(
                    f"{segment.path.name}: record {record.head.write_number} stands at byte {record.position}, where "
                    f"record {write_number} must be"
                )
            location = Location(segment.segment_id, record.position, record.head.payload_length)
            yield LogRecord(record.head.kind, record.head.flags, location, record.payload)
            write_number += 1
        if following is None:
            self._settle(segment, scanner)
        elif following.header.first_write_number != write_number:
            raise LogCorruptError(
                f"{following.path.name}: begins with record {following.header.first_write_number}, where record "
                f"{write_number} must be"
            )
        self._end = LogPosition(segment.segment_id, scanner.position, write_number)

    def _settle(self, segment: Segment, scanner: SegmentScanner) -> None:
        """Makes what was found last: it was perhaps only in the kernel's memory, and is going to be relied upon."""
        # Behind the hole may lie good records, which must not be found again once the hole is filled.
        segment.file.truncate(scanner.position)
        # After a sync that failed, the kernel may show bytes that it never wrote and owes no more: it is to owe them.
        for start in range(scanner.synced_position, scanner.position, _REWRITE_BYTES):
            length = min(_REWRITE_BYTES, scanner.position - start)
            segment.file.write([segment.file.read(length, start)], start)
        segment.file.sync()
        # Whoever was killed between a name's change and its sync left that to us.
        for directory in self._files.directories:
            self._files.disk.sync_directory(directory)

    def start(self) -> None:
        """Begins to take records, behind those that replay found."""
        last = self._segments.get(self._end.segment_id)
        self._writer = LogWriter(self._files, last, self._end, self._add_segment)
        self._writer.start()

    def _add_segment(self, segment: Segment) -> None:
        self._segments[segment.segment_id] = segment

    # Use.

    def submit(
        self, records: Sequence[Record], *, needs_sync: bool, begins_segment: bool = False
    ) -> "asyncio.Future[Submission]":
        """Appends records behind those submitted before: all of them, or none where they are refused.

        A crash may leave the first of them without the others, so the one that makes the others count comes last.

        Args:
            records: For each its kind, flags and payload in pieces. None at all is a barrier.
            needs_sync: Answer only once they, and all before them, are on the disk.
            begins_segment: Put them at the start of a new segment. A log's first records must, and there must be some.

        Returns:
            A future of the submission with its records' locations. It ends with LogFullError where the disk has no
            room, and with LogFailedError where the log has failed.
        """
        assert self._writer is not None, "replay and start the log first"
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Submission] = loop.create_future()

        def on_written(submission: Submission, error: Exception | None) -> None:
            # A loop that was closed meanwhile has nobody who waits; the writer is to go on and mark the end.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future, submission, error)

        self._writer.submit(Submission(records, needs_sync, begins_segment, on_written))
        return future

    def read(self, location: Location) -> tuple[Flags, bytes]:
        """Reads a record's payload back, with one system call. Any thread may, also while its segment is removed.

        Raises:
            LogCorruptError: It is not what was written.
        """
        segment = self._segments[location.segment_id]
        record = segment.file.read(RECORD_HEAD_BYTES + location.payload_length, location.position)
        head = RecordHead.decode(record[:RECORD_HEAD_BYTES], segment.header.seed(location.position))
        payload = record[RECORD_HEAD_BYTES:]
        if head is None or len(payload) != head.payload_length or payload_checksum([payload]) != head.payload_checksum:
            raise LogCorruptError(f"{segment.path.name}: the record at byte {location.position} is damaged")
        return head.flags, payload

    def remove_before(self, segment_id: int) -> int:
        """Removes the segments before one; returns how many.

        To be called once a checkpoint is on the disk that needs none of them, and once `segment_id` begins with its
        state, so that what remains tells all without them.

        Raises:
            OSError: Some may be removed; the rest is to be removed by another call.
        """
        removed = [old for old in sorted(self._segments) if old < segment_id]
        assert len(removed) < max(1, len(self._segments)), "the segment that is written to stays"
        for old in removed:
            path = self._segments[old].path
            # In order, each name gone for good before the next: a crash leaves no gap in the chain, nor does an error.
            with suppress(FileNotFoundError):
                self._files.disk.unlink(path)
            self._files.disk.sync_directory(path.parent)
            # Its file closes when the last who reads it is done.
            del self._segments[old]
        return len(removed)

    def close(self) -> None:
        """Writes what was submitted and closes the files."""
        if self._writer is not None:
            self._writer.close()
        for segment in self._segments.values():
            segment.file.close()


def _resolve(future: "asyncio.Future[Submission]", submission: Submission, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(submission)
    else:
        future.set_exception(error)
