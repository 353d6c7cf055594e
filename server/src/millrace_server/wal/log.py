"""The write-ahead log: all segments of one channel."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

from millrace_server.histograms import Histograms
from millrace_server.wal.format import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, Flags, Kind
from millrace_server.wal.payload_codec import Payload, PayloadCodec
from millrace_server.wal.reading import RecordReader, SegmentScanner
from millrace_server.wal.records import Location, LogPosition
from millrace_server.wal.segments import LogCorruptError, Segment, SegmentFiles
from millrace_server.wal.submitting import CallSoon, Submitting
from millrace_server.wal.writer import Allocating, LogWriter, always_allocating
from millrace_server.wal.writer_threads import WriterThreads

_REWRITE_BYTES = 8 << 20
_EMPTY = LogPosition(0, 0, 1)
"""The end of a log without segments: the first segment gets the id 1, and the first record LSN 1."""


class LogRecord(NamedTuple):
    """A record that replay read."""

    kind: Kind
    flags: Flags
    """How its payload is encoded on the disk."""
    location: Location
    decode: Callable[[], Payload]

    @property
    def payload(self) -> Payload:
        """What was submitted. Each access decodes it, since most payloads are not needed.

        A record that is kept holds some MiB of its segment in memory; its location does not.

        Raises:
            LogCorruptError: It cannot be decoded.
        """
        return self.decode()


class WriteAheadLog(Submitting[LogWriter]):
    """A channel's log. Replay it to its end, start it, submit to it from the event loop, and close it.

    Args:
        files: Its segments.
        codec: Encodes and decodes payloads.
        follows: The end of the log that it replaces: where it continues if it has no segments.
    """

    def __init__(
        self, files: SegmentFiles, codec: PayloadCodec | None = None, *, follows: LogPosition = _EMPTY
    ) -> None:
        super().__init__(codec or PayloadCodec())
        self._files = files
        self._follows = follows
        # Shared with the writer's thread, which adds, and with readers on any thread. Single dict operations are
        # atomic, so no lock is needed; code that iterates copies it first.
        self._segments: dict[int, Segment] = {}
        self._reader = RecordReader(self._segments, self._codec)
        self._end = follows
        self._is_writable = False
        # Whether the last record, or else a checkpoint, says of all before it that it was synced.
        self._ends_with_sync_point = False

    @property
    def first_segment_id(self) -> int:
        """The oldest segment's id; 0 if there is none."""
        return min(self._segments, default=0)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def end(self) -> LogPosition:
        """The log's end as replay found it. Each later submission carries its own end."""
        return self._end

    @property
    def newest_segment_id(self) -> int:
        """The id of the segment that is written to; 0 if there is none."""
        return max(self._segments, default=0)

    def byte_count(self) -> int:
        """Returns the size of all segments."""
        # A copy, since the writer's thread may add a segment in the meantime.
        return sum(segment.file.size() for segment in list(self._segments.values()))

    def byte_count_behind(self, start: LogPosition | None) -> int:
        """Returns how many bytes a replay from `start` reads; before the start, with space preallocated at the end."""
        first_id, position, _ = start or _EMPTY
        end = self._follows if self._writer is None else self._writer.end
        byte_count = 0
        # A copy, since the writer's thread may add a segment in the meantime.
        for segment_id, segment in list(self._segments.items()):
            if segment_id >= first_id:
                byte_count += end.position if segment_id == end.segment_id else segment.file.size()
        return byte_count - position

    # Opening.

    def replay(
        self, start: LogPosition | None = None, *, first_needed: int = 0, read_only: bool = False
    ) -> Iterator[LogRecord]:
        """Yields the log's records in order, and truncates a torn tail at the end.

        If it raises, it has changed nothing, unless the disk failed while the tail was being truncated. It may be
        called again, also with another start.

        Args:
            start: Where to begin; everything before it is known to have been synced. None: the oldest record.
            first_needed: The oldest segment that must exist, because a checkpoint refers to it; 0: none.
            read_only: Whether to change nothing and open files for reading only. The log cannot be started then.

        Raises:
            KeyMissingError: A record is encrypted with a key that was not given.
            LogCorruptError: Something that was synced is missing or damaged. If the first segment to be read is
                missing, this is raised before any record.
            UnknownVersionError: Another version of Millrace wrote a part of the log.
        """
        assert self._writer is None, "a log that was started is not replayed"
        # Headers first: before any record is used, they show whether all segments exist and have their full length.
        segments = self._files.find(writable=not read_only)
        self._end, self._is_writable = self._follows, False
        # Updated in place, since the reader shares the dict. A replay that failed may have left segments in it.
        self._segments.clear()
        self._segments.update({segment.segment_id: segment for segment in segments})
        if start is not None and start.segment_id not in self._segments:
            raise LogCorruptError(f"segment {start.segment_id}, where replay begins, is missing")
        if 0 < first_needed < self.first_segment_id:
            # The records to be replayed may all be there; the events that the checkpoint has as queued are not.
            raise LogCorruptError(f"segment {first_needed}, which holds events of a checkpoint, is missing")
        # Segments before the start stay readable by location; their records are checked when they are read.
        unread = [segment for segment in segments if start is None or segment.segment_id >= start.segment_id]
        for segment, following in zip_longest(unread, unread[1:]):
            first = start if start is not None and segment.segment_id == start.segment_id else None
            yield from self._replay_segment(segment, following, first, read_only=read_only)
        self._is_writable = not read_only

    def _replay_segment(
        self, segment: Segment, following: Segment | None, start: LogPosition | None, *, read_only: bool
    ) -> Iterator[LogRecord]:
        position = start.position if start else SEGMENT_HEADER_BYTES
        lsn = start.lsn if start else segment.header.first_lsn
        # A segment gets its name only after its first record was synced, so that record is never a torn tail. What
        # is before a checkpoint's position was synced before the checkpoint was written.
        synced_length = following.header.previous_length if following else max(position, SEGMENT_HEADER_BYTES + 1)
        if segment.file.size() < synced_length:
            raise LogCorruptError(
                f"{segment.path.name}: has {segment.file.size()} bytes; it was synced up to byte {synced_length}"
            )
        scanner = SegmentScanner(segment.file, segment.header)
        synced_position = position
        last = None
        for record in scanner.records(position):
            # Unpacked, since this runs for every record.
            last = record
            start_position, (_, length, kind, flags, found_lsn, stated_position), _ = record
            if found_lsn != lsn:
                # Its checksum matches, so this is no torn tail: records were removed or exchanged.
                raise LogCorruptError(
                    f"{segment.path.name}: the record at byte {start_position} has LSN {found_lsn}; it must be {lsn}"
                )
            location = Location(segment.segment_id, start_position, length)
            # Yielded before the end of the log was checked: the caller trusts nothing before the generator has ended.
            yield LogRecord(kind, flags, location, self._reader.decoder(segment, record))
            position = start_position + RECORD_HEAD_BYTES + length
            synced_position = max(synced_position, stated_position)
            lsn += 1
        # After all records of the segment and before anything is changed: damage ends the opening here.
        scanner.check_end(position, synced_length)
        if following is None and not read_only:
            self._truncate_tail(segment, position, synced_position)
        elif following is not None and following.header.first_lsn != lsn:
            raise LogCorruptError(
                f"{following.path.name}: begins with LSN {following.header.first_lsn}; it must be {lsn}"
            )
        if last is None:
            # Nothing follows the checkpoint, which says the same.
            self._ends_with_sync_point = start is not None
        else:
            self._ends_with_sync_point = (last.head.kind, last.head.synced_position) == (Kind.SYNC_POINT, last.position)
        # The writer continues here, with the next LSN.
        self._end = LogPosition(segment.segment_id, position, lsn)

    def _truncate_tail(self, segment: Segment, end: int, synced_position: int) -> None:
        """Truncates the last segment to its last record and makes that record and all before it durable."""
        # Valid records may be after the hole. Once new records fill the hole, replay would reach the old ones.
        segment.file.truncate(end)
        # Rewritten, not only synced: after a failed sync the kernel may show pages that it never wrote and no longer
        # considers dirty. What any record states as synced is durable and need not be rewritten.
        for start in range(synced_position, end, _REWRITE_BYTES):
            length = min(_REWRITE_BYTES, end - start)
            segment.file.write([segment.file.read(length, start)], start)
        # Before the log accepts records: the truncation must not be lost once the hole is filled, nor may records
        # that replay returned still be lost.
        segment.file.sync()
        # A process killed between a rename and the directory's sync leaves a name that a power cut may still remove.
        for directory in self._files.directories:
            self._files.disk.sync_directory(directory)

    def start(
        self,
        call_soon: CallSoon | None = None,
        threads: WriterThreads | None = None,
        histograms: Histograms | None = None,
        allocating: Allocating = always_allocating,
    ) -> None:
        """Starts to accept records after those that replay found.

        Args:
            call_soon: Schedules callbacks; called on the writer's thread, once for each group. By default callbacks go
                to the event loop of the first caller that submits.
            threads: The threads that logs of the same disk share; by default its own.
            histograms: Where its writes and syncs are counted.
            allocating: Whether this many bytes may be preallocated; entered while they are. By default always.
        """
        assert self._is_writable, "a log is replayed to its end before it is started"
        self._call_soon = call_soon
        self._writer = LogWriter(self._files, self._segments, self._end, self._codec, self._complete)
        self._writer.count_in(histograms or Histograms())
        self._writer.allocating = allocating
        self._writer.start(threads or WriterThreads(), ends_with_sync_point=self._ends_with_sync_point)

    # Use.

    def read_run(self, locations: Sequence[Location], *, cached_only: bool = False) -> list[Payload] | None:
        """Reads records' payloads, neighbours with one system call.

        Any thread may call it, also while segments are removed.

        Args:
            locations: Preferably in the order in which they are in the log.
            cached_only: Whether to return None rather than wait for the disk, as far as the system can tell. The event
                loop may call it then.

        Raises:
            KeyMissingError: One is encrypted with a key that was not given.
            LogCorruptError: One is damaged, or its segment was removed.
        """
        return self._reader.read_run(locations, cached_only=cached_only)

    def read_puts(self, location: Location, *, cached_only: bool = False) -> list[Payload] | None:
        """Reads the payloads of all PUT records in a place with one system call; otherwise like `read_run`.

        Args:
            location: The place: from the first of these records to the last, as if it were one record.
            cached_only: Whether to return None rather than wait for the disk.
        """
        return self._reader.read_puts(location, cached_only=cached_only)

    def remove_before(self, segment_id: int) -> int:
        """Removes the segments before one and returns their number.

        Call it once a checkpoint is durable that needs none of them, and once `segment_id` begins with its STATE: what
        remains must suffice without them and without the checkpoint.

        Raises:
            OSError: Some may have been removed; another call removes the rest.
        """
        # Sorting makes a copy, so the writer's thread may add a segment in the meantime.
        removed = [old for old in sorted(self._segments) if old < segment_id]
        assert len(removed) < max(1, len(self._segments)), "the segment that is written to stays"
        for old in removed:
            path = self._segments[old].path
            # The oldest first, each name gone durably before the next: neither a crash nor an error leaves a gap. An
            # earlier call that failed in the sync has already removed the name.
            with suppress(FileNotFoundError):
                self._files.disk.unlink(path)
            self._files.disk.sync_directory(path.parent)
            # Not closed here: a reader on another thread may hold the file, which closes with its last reference.
            del self._segments[old]
        return len(removed)

    def close(self) -> None:
        """Writes what was submitted and closes the files."""
        if self._writer is not None:
            self._writer.close()
        # After the writer has ended, which writes to them until then.
        for segment in self._segments.values():
            segment.file.close()
