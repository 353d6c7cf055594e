"""Writes the log's records to segments and syncs them; see FORMAT.md, "Writing" and "The crash argument"."""

import errno
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Never

from millrace_server.histograms import Histogram, Histograms
from millrace_server.wal.disk import NO_SPACE, allocate
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, Kind, SegmentHeader
from millrace_server.wal.group_writer import GroupWriter, OnDone, needs_sync
from millrace_server.wal.groups import encode_group
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogFailedError, LogFullError, LogPosition, Submission
from millrace_server.wal.segments import NameUnsyncedError, Segment, SegmentFiles
from millrace_server.wal.writer_threads import WriterThreads

# With space allocated ahead of the end, a sync need not journal a new file length and takes half the time.
PREALLOCATE_BYTES_MIN = 1 << 20
# A segment that grows preallocates as much as it has by then: few calls when large, little waste when small.
PREALLOCATE_BYTES_MAX = 32 << 20

RESERVE_BYTES = 128 << 10
"""Space that puts leave allocated behind them, so that records without puts are still written on a full disk."""

GROUP_BYTES_MAX = 16 << 20
"""Bytes that one write and sync takes together, unless a single submission is larger."""

# These errors pass once someone frees space or descriptors. All others fail the log.
_PASSING = NO_SPACE | {errno.EMFILE, errno.ENFILE}

Allocating = Callable[[int], AbstractContextManager[bool]]


class LogWriter(GroupWriter):
    """Writes groups to segments; a SYNC_POINT follows while the log is idle.

    Args:
        files: Creates new segments.
        segments: All segments by id. The writer's thread adds the segments that it creates, before any caller learns a
            location in one of them.
        end: The end of the log.
        codec: Encodes payloads.
        response: Called on the writer's thread with each group that was written, refused or failed, and its error.

    Attributes:
        allocating: Whether this many bytes may be preallocated; entered while they are. Set it before the start.
    """

    _sync_times: Histogram

    def __init__(
        self,
        files: SegmentFiles,
        segments: dict[int, Segment],
        end: LogPosition,
        codec: PayloadCodec,
        on_done: OnDone,
    ) -> None:
        super().__init__(end, codec, on_done, GROUP_BYTES_MAX)
        self._files = files
        self._segments = segments
        self._segment = segments.get(end.segment_id)
        # Invariant: never beyond `_end`. Replay has synced all up to there.
        self._synced_position = end.position
        # Behind which sync a SYNC_POINT was last attempted. 0: none yet.
        self._sync_point_position = 0
        self._allocated_position = end.position
        self.allocating: Allocating = always_allocating

    def count_in(self, histograms: Histograms) -> None:
        """Sets where its syncs and the sizes of its groups are counted; call it before any other method."""
        super().count_in(histograms)
        self._sync_times = histograms.syncs.of()

    def start(self, threads: WriterThreads, *, ends_with_sync_point: bool) -> None:
        """Begins on threads that it shares with other logs; with a SYNC_POINT, unless the log ends with one."""
        self._threads = threads
        if self._segment is not None:
            # Opening the log has truncated the segment, and other files may have taken the space it had reserved.
            with suppress(OSError):
                self._allocate_to(self._end.position + RESERVE_BYTES)
        if ends_with_sync_point:
            self._sync_point_position = self._end.position
        else:
            self._threads.run(self._run_if_idle, is_urgent=False)

    def _has_sync_point(self, *, is_closing: bool) -> bool:
        return self._sync_point_position >= (self._end.position if is_closing else self._synced_position)

    def _write_sync_point(self) -> None:
        # Outside any generation: nothing builds on it, and a refusal of it refuses nothing else.
        nobody_waits = Submission([(Kind.SYNC_POINT, [])], True, False, 0, lambda _submission, _error: None)
        self._try_to_write([nobody_waits])
        # Also when there was no space for it. It is optional evidence: the next sync is followed by the next attempt,
        # rather than a full disk by one every 50 ms.
        self._sync_point_position = self._synced_position

    def _write(self, group: list[Submission]) -> None:
        if group[0].begins_segment:
            # Order: the full segment is durable before its successor exists, so only the last one can be torn.
            self._finish_segment()
            self._begin_segment(group)
        else:
            self._append(group)
            # A group without records is a barrier: it writes nothing and still syncs all that was written before it.
            if any(map(needs_sync, group)):
                self._sync()

    def _append(self, group: list[Submission]) -> None:
        assert self._segment is not None, "a log's first records begin a segment"
        encoded, end = encode_group(group, self.codec, self._segment.header, self._end, self._synced_position)
        if not encoded:
            return
        try:
            # A SYNC_POINT, a head alone, allocates nothing: an idle log holds no space that it does not use.
            if len(encoded) > 1:
                self._allocate(group, end.position)
            self._segment.file.write(encoded, self._end.position)
        except OSError as error:
            self._undo_write(error)
        # Only now: until the write has succeeded, the next group would overwrite its place.
        self._end = end

    def _allocate(self, group: list[Submission], position: int) -> None:
        """Allocates space for a group that ends at a position, and some more.

        Raises:
            LogFullError: There is none for puts and the reserve behind them; nothing was written.
        """
        if position + RESERVE_BYTES <= self._allocated_position:
            return
        needed = position + _reserve_behind(group)
        if needed <= self._allocated_position:
            return
        ahead = min(PREALLOCATE_BYTES_MAX, max(PREALLOCATE_BYTES_MIN, position))
        # An almost full disk: the file then grows with each group. Whether there is space for records without puts, the
        # write finds out.
        with suppress(OSError), self.allocating(position + ahead - self._allocated_position) as is_allowed:
            # Many logs that preallocate would take what puts leave free for takes and checkpoints.
            if is_allowed:
                self._allocate_to(position + ahead)
        if position < needed:
            try:
                self._allocate_to(needed)
            except OSError as error:
                raise LogFullError(f"space could not be allocated for the log: {error.strerror}") from error

    def _allocate_to(self, position: int) -> None:
        assert self._segment is not None
        if position > self._allocated_position:
            allocate(self._segment.file, self._allocated_position, position - self._allocated_position)
            self._allocated_position = position

    def _undo_write(self, error: OSError) -> Never:
        """Removes what a failed write left behind, so that no later replay finds a refused commit."""
        assert self._segment is not None
        refusal = _refusal("a write to the log failed", error)
        if isinstance(refusal, LogFullError):
            try:
                self._segment.file.truncate(self._end.position)
            except OSError as second:
                raise LogFailedError(
                    f"the log could not be truncated after a failed write: {second.strerror}"
                ) from second
            self._allocated_position = self._end.position
            # Before the caller learns of the refusal: otherwise a crash could bring the refused records back after the
            # caller has acted on their absence.
            self._sync()
        raise refusal from error

    def _sync(self) -> None:
        assert self._segment is not None
        started = time.monotonic()
        try:
            self._segment.file.sync()
        except OSError as error:
            # Never retried: the kernel may have dropped the pages that it could not write, and report success the next
            # time. Only a replay shows what is on the disk. That holds for a full disk (ENOSPC) as well.
            raise LogFailedError(f"a sync of the log failed: {error.strerror}") from error
        self._synced_position = self._end.position
        self._sync_times.observe(time.monotonic() - started)

    def _finish_segment(self) -> None:
        """Truncates the segment to its last record and syncs it. If no successor can be created, it stays in use."""
        if self._segment is None:
            return
        try:
            # Preallocated zeros must go: the successor's header states the exact length, and replay compares it.
            self._segment.file.truncate(self._end.position)
        except OSError as error:
            raise _refusal("a full segment could not be truncated", error) from error
        self._allocated_position = self._end.position
        self._sync()

    def _begin_segment(self, group: list[Submission]) -> None:
        start = LogPosition(self._end.segment_id + 1, SEGMENT_HEADER_BYTES, self._end.lsn)
        header = SegmentHeader(self._files.channel_id, start.segment_id, start.lsn, self._end.position)
        # Synced position 0: nothing of the new segment was synced before these records were written.
        encoded, end = encode_group(group, self.codec, header, start, 0)
        assert encoded, "a segment begins with a record"
        reserve = _reserve_behind(group)
        try:
            segment = self._files.create(header, encoded, reserve)
        except OSError as error:
            if self._segment is not None:
                # It is used further, and has lost what was allocated ahead.
                with suppress(OSError):
                    self._allocate_to(self._end.position + RESERVE_BYTES)
            raise _refusal("a new segment could not be created", error) from error
        except NameUnsyncedError as error:
            # The new segment must take no records, since a crash may remove its name; nor may the old one, since the
            # name may survive and the old one's length would no longer match. No file is left to write to.
            raise LogFailedError(f"the sync of a new segment's name failed: {error}") from error
        # Before the callback: a caller may read a location in this segment as soon as it has one.
        self._segments[segment.segment_id] = segment
        self._segment, self._end = segment, end
        self._synced_position, self._allocated_position = end.position, end.position + reserve
        self._sync_point_position = 0


def _reserve_behind(group: list[Submission]) -> int:
    """Returns how much space must be allocated behind a group."""
    has_puts = any(kind is Kind.PUT for submission in group for kind, _ in submission.records)
    return RESERVE_BYTES if has_puts else 0


def _refusal(what: str, error: OSError) -> LogFullError | LogFailedError:
    kind = LogFullError if error.errno in _PASSING else LogFailedError
    return kind(f"{what}: {error.strerror}")


def always_allocating(_byte_count: int) -> AbstractContextManager[bool]:
    """Allows a log to preallocate any number of bytes."""
    return nullcontext(enter_result=True)
