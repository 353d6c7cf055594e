"""The write-ahead log: all segments of one channel."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

from millrace_server.wal.format import PAYLOAD_BYTES_MAX, SEGMENT_HEADER_BYTES, Flags, Kind
from millrace_server.wal.payload_codec import Payload, PayloadCodec
from millrace_server.wal.reading import RecordReader
from millrace_server.wal.records import Done, Location, LogPosition, Record, Submission
from millrace_server.wal.scanning import SegmentScanner
from millrace_server.wal.segments import LogCorruptError, Segment, SegmentFiles
from millrace_server.wal.writer import LogWriter

Deliver = Callable[[Callable[[], None]], object]
"""Has something called where answers are awaited."""

_REWRITE_BYTES = 8 << 20
_NOWHERE = LogPosition(0, 0, 1)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record as replay finds it."""

    kind: Kind
    flags: Flags
    """How its payload is sealed on the disk."""
    location: Location
    _open: Callable[[], Payload]

    @property
    def payload(self) -> Payload:
        """What was submitted. It is opened whenever it is asked for, since most payloads need not be.

        A record that is kept keeps some MiB of its segment in memory; its location does not.

        Raises:
            LogCorruptError: It does not open.
        """
        return self._open()


class WriteAheadLog:
    """Replay it to its end, start it, submit to it from the event loop, and close it.

    Args:
        files: Where its segments lie.
        codec: How payloads are sealed.
    """

    def __init__(self, files: SegmentFiles, codec: PayloadCodec | None = None) -> None:
        self._files = files
        self._codec = codec or PayloadCodec()
        self._segments: dict[int, Segment] = {}
        self._reader = RecordReader(self._segments, self._codec)
        self._writer: LogWriter | None = None
        self._deliver: Deliver | None = None
        self._end = _NOWHERE
        self._is_settled = False
        self._generation = 0

    @property
    def first_segment_id(self) -> int:
        """The oldest segment's number; 0 where there is none."""
        return min(self._segments, default=0)

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    @property
    def end(self) -> LogPosition:
        """Where the log ended when it was replayed; each submission tells where it ended behind that."""
        return self._end

    def byte_count(self) -> int:
        """Bytes that all segments take."""
        # A list, since the writer's thread may add a segment meanwhile.
        return sum(segment.file.size() for segment in list(self._segments.values()))

    def byte_count_behind(self, start: LogPosition | None) -> int:
        """About how many bytes a replay from there reads: what is set aside behind the log's end counts too."""
        if start is None:
            return self.byte_count()
        behind = [segment for segment in self._segments.values() if segment.segment_id >= start.segment_id]
        return sum(segment.file.size() for segment in behind) - start.position

    # Opening.

    def replay(self, start: LogPosition | None = None, *, needed: int = 0, settles: bool = True) -> Iterator[LogRecord]:
        """Reads the log's records in order, and cuts a torn tail off at the end.

        Where it raises it has changed nothing, unless the disk failed while the tail was cut. It may be tried again,
        from elsewhere.

        Args:
            start: Where to begin; everything before it is known to have been synced. None for the oldest record.
            needed: The oldest segment that must be there, since something in it is still to be read; 0 where none is.
            settles: Whether the end is made ready to be written behind. Else nothing is changed, nor opened for
                writing, and the log can only be read.

        Raises:
            KeyMissingError: A record is encrypted with a key that was not given.
            LogCorruptError: Something that was synced is missing or is not what was written. Where the first segment
                to read is missing, this comes before any record.
            UnknownVersionError: Another version of Millrace wrote a part of it.
        """
        assert self._writer is None, "a log that was started is not replayed"
        segments = self._files.find(writable=settles)
        self._end, self._is_settled = _NOWHERE, False
        self._segments.clear()
        self._segments.update({segment.segment_id: segment for segment in segments})
        if start is not None and start.segment_id not in self._segments:
            raise LogCorruptError(f"segment {start.segment_id}, from which the log is to be read, is missing")
        if 0 < needed < self.first_segment_id:
            raise LogCorruptError(f"segment {needed}, whose events a checkpoint has as queued, is missing")
        unread = [segment for segment in segments if start is None or segment.segment_id >= start.segment_id]
        for segment, following in zip_longest(unread, unread[1:]):
            first = start if start is not None and segment.segment_id == start.segment_id else None
            yield from self._replay_segment(segment, following, first, settles=settles)
        self._is_settled = settles

    def _replay_segment(
        self, segment: Segment, following: Segment | None, start: LogPosition | None, *, settles: bool
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
            head = record.head
            if head.write_number != write_number:
                raise LogCorruptError(
                    f"{segment.path.name}: record {head.write_number} stands at byte {record.position}, where "
                    f"record {write_number} must be"
                )
            location = Location(segment.segment_id, record.position, head.payload_length)
            yield LogRecord(head.kind, head.flags, location, self._reader.opener(segment, record))
            write_number += 1
        if following is None and settles:
            self._settle(segment, scanner)
        elif following is not None and following.header.first_write_number != write_number:
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

    def start(self, deliver: Deliver | None = None) -> None:
        """Begins to take records, behind those that replay found.

        Args:
            deliver: How answers get to who submits; called on the writer's thread, once for each group. By default
                they are called on the event loop of the first who does.
        """
        assert self._is_settled, "a log is replayed to its end before it is started"
        self._deliver = deliver
        self._writer = LogWriter(self._files, self._segments, self._end, self._codec, self._answer)
        self._writer.start()

    def _answer(self, group: Sequence[Submission], error: Exception | None) -> None:
        assert self._deliver is not None, "who is answered has submitted"
        # A loop that was closed meanwhile has nobody who waits; the writer is to go on and mark the end.
        with suppress(RuntimeError):
            self._deliver(partial(_answer_all, group, error))

    # Use.

    def compress(self, *, compresses: bool) -> None:
        """Compresses what is submitted from now on, or does not; what was written stays readable."""
        assert self._writer is not None, "start the log first"
        self._writer.codec = replace(self._codec, compresses=compresses)

    def submit(self, records: Sequence[Record], *, needs_sync: bool, begins_segment: bool = False, done: Done) -> int:
        """Appends records behind those submitted before: all of them, or none where they are refused.

        A crash may leave the first of them without the others, so the one that makes the others count comes last.
        Records are sealed later, so their payloads must not change.

        Args:
            records: For each its kind and payload in pieces. None at all is a barrier.
            needs_sync: Answer only once they, and all before them, are on the disk.
            begins_segment: Put them at the start of a new segment. A log's first records must, and there must be some.
            done: Called on the event loop, in the order of submissions, with the submission, which knows its records'
                locations and their end, and with None, or with LogFullError where the disk has no room (see `resume`),
                or with LogFailedError where the log has failed.

        Returns:
            How many bytes they take in a segment, before they are sealed.

        Raises:
            ValueError: A payload is longer than PAYLOAD_BYTES_MAX; nothing was submitted.
        """
        assert self._writer is not None, "replay and start the log first"
        if self._deliver is None:
            self._deliver = asyncio.get_running_loop().call_soon_threadsafe
        submission = Submission(records, needs_sync, begins_segment, self._generation, done)
        if submission.byte_count > PAYLOAD_BYTES_MAX:
            _check_lengths(records)
        self._writer.submit(submission)
        return submission.byte_count

    def resume(self) -> None:
        """Has submissions written again after one ended with LogFullError.

        Until then all that come behind it are refused as well, since they may be built on it. Those that were
        submitted before this call and are not answered yet still are.
        """
        self._generation += 1

    def read(self, location: Location) -> Payload:
        """Reads a record's payload back, with one system call. Any thread may, also while its segment is removed.

        Raises:
            KeyMissingError: It is encrypted with a key that was not given.
            LogCorruptError: It is not what was written, or its segment is not there any more.
        """
        return self._reader.read(location)

    def read_run(self, locations: Sequence[Location], *, cached_only: bool = False) -> list[Payload] | None:
        """Reads many records' payloads back, those of neighbours with one system call; like `read` otherwise.

        Args:
            locations: Best in the order in which they lie.
            cached_only: Answer None where the disk would have to be waited for, as far as the system can tell; so the
                event loop may ask.
        """
        return self._reader.read_run(locations, cached_only=cached_only)

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


def _check_lengths(records: Sequence[Record]) -> None:
    longest = max(sum(map(len, pieces)) for _, pieces in records)
    if longest > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a record's payload may have {PAYLOAD_BYTES_MAX} bytes; one has {longest}")


def _answer_all(group: Sequence[Submission], error: Exception | None) -> None:
    failures = []
    for submission in group:
        try:
            submission.done(submission, error)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the others are to hear their answers
            failures.append(failure)
    if failures:
        raise ExceptionGroup("answers of the log could not be taken", failures)
