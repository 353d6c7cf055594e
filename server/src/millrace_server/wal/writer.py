"""Writes the log's records and syncs them, one group at a time.

While one group is being synced, the next one forms: commits that wait at the same time share one sync (group commit).
FORMAT.md, "Writing", describes the protocol; "The crash argument" says why it is safe.
"""

import errno
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Never

from millrace_server.histograms import Histogram, Histograms
from millrace_server.wal.format import (
    SEGMENT_HEADER_BYTES,
    Kind,
    SegmentHeader,
)
from millrace_server.wal.groups import encode_group
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogFailedError, LogFullError, LogPosition, Submission
from millrace_server.wal.segments import NameUnsyncedError, Segment, SegmentFiles
from millrace_server.wal.writer_threads import WriterThreads

# With space allocated ahead of the end, a sync need not journal a new file length and takes half the time.
PREALLOCATE_BYTES_MIN = 1 << 20
# A segment that grows preallocates as much as it has by then: few calls when large, little waste when small.
PREALLOCATE_BYTES_MAX = 32 << 20

GROUP_BYTES_MAX = 16 << 20
"""Bytes that one write and sync takes together, unless a single submission is larger."""

COMMIT_DELAY_SECONDS = 0.004
"""How long the next group waits for the callers of the previous one to submit again: about as long as they take."""

# In a larger group the write takes the time, not the fixed cost of each group, so waiting for more gains nothing.
COMMIT_DELAY_BYTES_MAX = 1 << 20

SYNC_POINT_DELAY_SECONDS = 0.05
"""How long after the last sync an idle log writes a SYNC_POINT; see FORMAT.md, "Corruption and torn tails"."""

_NONE_AWAITED = sys.maxsize
_FOREVER = -1

# These errors pass once somebody frees space or descriptors. All others fail the log.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}


class LogWriter:
    """Writes at the end of the log, from one thread at a time, which it has only while there is something to write.

    Callers do not wait for an answer before they submit what builds on it. When a group is refused, all later
    submissions of its generation or an earlier one are therefore refused too; those of later generations are written.

    Args:
        files: Creates new segments.
        segments: All segments by id. The writer's thread adds the segments that it creates, before any caller learns a
            location in one of them.
        end: The end of the log.
        codec: Encodes payloads.
        answer: Called on the writer's thread with each group that was written, refused or failed, and its error.
    """

    _threads: WriterThreads
    _sync_times: Histogram
    _group_sizes: Histogram

    def __init__(
        self,
        files: SegmentFiles,
        segments: dict[int, Segment],
        end: LogPosition,
        codec: PayloadCodec,
        answer: Callable[[Sequence[Submission], Exception | None], None],
    ) -> None:
        self._files = files
        self._segments = segments
        self._segment = segments.get(end.segment_id)
        self.codec = codec
        self._answer = answer
        self._end = end
        # Invariant: never beyond `_end`. Replay has synced all up to there.
        self._synced_position = end.position
        # Behind which sync a SYNC_POINT was last attempted. 0: none yet.
        self._sync_point_position = 0
        self._preallocated_position = end.position
        self._pending: deque[Submission] = deque()
        # Guards `_pending`, `_awaited_count`, `_has_thread` and `_is_closing`; everything else belongs to the thread.
        # Reentrant, so that a test can hold it and let the thread find several submissions at once.
        self._lock = threading.RLock()
        # How many pending submissions the sleeping thread waits for; _NONE_AWAITED while it is awake.
        self._awaited_count = _NONE_AWAITED
        # Held except between a wake-up's release and the thread's acquire. A threading.Condition would do the same in
        # Python code and take several times as long.
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self._expected_count = 0
        self._is_closing = False
        self._failure: LogFailedError | None = None
        self._refusal: LogFullError | None = None
        self._refused_generation = -1
        # Whether a thread runs `_run`, or will. It stays so at the end, so that none begins again.
        self._has_thread = False
        # Whether the thread was given back before the SYNC_POINT was due, because others needed it.
        self._owes_sync_point = False
        self._has_ended = threading.Event()

    @property
    def end(self) -> LogPosition:
        """The end of what was written."""
        return self._end

    def count_in(self, histograms: Histograms) -> None:
        """Sets where its syncs and the sizes of its groups are counted; call it before any other method."""
        self._sync_times, self._group_sizes = histograms.syncs.of(), histograms.groups.of()

    def start(self, threads: WriterThreads, *, ends_with_sync_point: bool) -> None:
        """Begins on threads that it shares with other logs; with a SYNC_POINT, unless the log ends with one."""
        self._threads = threads
        if ends_with_sync_point:
            self._sync_point_position = self._end.position
        else:
            self._threads.run(self._run_if_idle, is_urgent=False)

    def submit(self, submission: Submission) -> None:
        """Queues records behind all that were submitted before. A closing log fails them."""
        with self._lock:
            is_closing, has_thread = self._is_closing, self._has_thread
            if not is_closing:
                self._has_thread = True
                self._pending.append(submission)
                # Only the submission that completes the awaited count wakes the thread: the others would wake it for
                # nothing, and each wake-up is a system call on the event loop.
                if len(self._pending) >= self._awaited_count:
                    self._wake()
        if is_closing:
            # Outside the lock, since the answer may submit again.
            self._answer([submission], LogFailedError("the log is closed"))
        elif not has_thread:
            self._threads.run(self._run)

    def close(self) -> None:
        """Writes what is pending and a last SYNC_POINT, on this thread if the log has none."""
        with self._lock:
            self._is_closing = True
            if self._awaited_count != _NONE_AWAITED:
                self._wake()
        self._run_if_idle()
        self._has_ended.wait()

    def _run_if_idle(self) -> None:
        with self._lock:
            has_thread, self._has_thread = self._has_thread, True
        if not has_thread:
            self._run()

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            if group:
                error = self._write_or_refuse(group)
                if error is None:
                    self._group_sizes.observe(len(group))
                # Before the answer: a caller that submits again right after it is already pending then, and would be
                # counted twice.
                self._expected_count = len(self._pending) + _sibling_count(group)
                self._answer(group, error)
            else:
                self._write_sync_point()

    def _next_group(self) -> list[Submission] | None:
        """Returns the next group; an empty one when a SYNC_POINT is due; None once the thread is given back."""
        delayed_until = time.monotonic() + COMMIT_DELAY_SECONDS
        expected_count, self._expected_count = self._expected_count, 0
        while not self._pending:
            # While the log is open, a SYNC_POINT is due only behind a new sync: what the caller left unsynced stays
            # so. A closing log syncs everything. Each later record makes the same statement, so under load none is
            # written.
            is_closing = self._is_closing
            due_position = self._end.position if is_closing else self._synced_position
            has_sync_point = self._failure is not None or self._sync_point_position >= due_position
            if not has_sync_point and (is_closing or self._owes_sync_point):
                return []
            if not has_sync_point and self._threads.may_linger():
                # The next commit of a busy log finds the thread here, and needs no other.
                is_woken = self._wait_for(1, SYNC_POINT_DELAY_SECONDS)
                self._threads.end_lingering()
                if not is_woken:
                    return []
            elif self._has_left(is_closing=is_closing, owes_sync_point=not has_sync_point):
                return None
        self._owes_sync_point = False
        # Callers who were answered together usually submit again together. Without this delay the first one back
        # would get a sync of its own and the others would wait for two. A lone caller never waits.
        if len(self._pending) < expected_count:
            self._wait_for(expected_count, delayed_until - time.monotonic())
        return self._take_group()

    def _take_group(self) -> list[Submission]:
        """Removes the first pending submissions that one write and sync can take."""
        with self._lock:
            group = [self._pending.popleft()]
            generation, byte_count = group[0].generation, group[0].byte_count
            # A submission that begins a segment starts a group: one group goes into one file with one write. Nor does
            # a group span generations: it is refused as a whole, and only the older one may have to be.
            while self._pending and not (following := self._pending[0]).begins_segment:
                byte_count += following.byte_count
                if byte_count > GROUP_BYTES_MAX or following.generation != generation:
                    break
                group.append(self._pending.popleft())
            return group

    def _has_left(self, *, is_closing: bool, owes_sync_point: bool) -> bool:
        """Gives the thread back, unless there is something to do by now."""
        with self._lock:
            if self._pending or self._is_closing != is_closing:
                return False
            self._owes_sync_point = owes_sync_point
            self._has_thread = is_closing
        if is_closing:
            self._has_ended.set()
        elif owes_sync_point:
            self._threads.run(self._run_if_idle, is_urgent=False)
        return True

    def _wait_for(self, count: int, seconds: float | None) -> bool:
        """Waits until `count` submissions are pending or the log is closing; returns False on a timeout."""
        with self._lock:
            if len(self._pending) >= count or self._is_closing:
                return True
            self._awaited_count = count
        if self._sleep.acquire(timeout=_FOREVER if seconds is None else max(seconds, 0)):
            return True
        with self._lock:
            is_too_late = self._awaited_count == count
            self._awaited_count = _NONE_AWAITED
        # Between the timeout and the lock, `_wake` may have released `_sleep`. That release must be consumed, or the
        # next wait would return at once.
        return not is_too_late and self._sleep.acquire()

    def _wake(self) -> None:
        """Wakes the waiting thread. The caller holds the lock."""
        # Reset first, so that each wait is woken at most once: releasing an unlocked lock raises.
        self._awaited_count = _NONE_AWAITED
        self._sleep.release()

    def _write_sync_point(self) -> None:
        # Outside any generation: nothing builds on it, and a refusal of it refuses nothing else.
        self._try_to_write([Submission([(Kind.SYNC_POINT, [])], True, False, 0, _ignore)])
        # Also when there was no room for it. It is optional evidence: the next sync is followed by the next attempt,
        # rather than a full disk by one every 50 ms.
        self._sync_point_position = self._synced_position

    def _write_or_refuse(self, group: list[Submission]) -> LogFullError | LogFailedError | None:
        # A new exception for each group: raising the same object again and again makes its traceback longer.
        if self._failure is not None:
            return LogFailedError(*self._failure.args)
        if self._refusal is not None and group[0].generation <= self._refused_generation:
            # There may be room again, but this group builds on records that are not in the log.
            return LogFullError(*self._refusal.args)
        error = self._try_to_write(group)
        if isinstance(error, LogFullError):
            self._refusal, self._refused_generation = error, group[0].generation
        return error

    def _try_to_write(self, group: list[Submission]) -> LogFullError | LogFailedError | None:
        try:
            self._write(group)
        except LogFullError as refusal:
            return refusal
        except Exception as failure:  # noqa: BLE001 - the disk's or a bug of ours: the waiting callers must learn of it
            # Whatever it was, what the file holds now is unknown. Only a replay finds out, so no write may follow.
            self._failure = (
                failure if isinstance(failure, LogFailedError) else LogFailedError(f"the log failed: {failure!r}")
            )
            return self._failure
        return None

    def _write(self, group: list[Submission]) -> None:
        if group[0].begins_segment:
            # Order: the full segment is durable before its successor exists, so only the last one can be torn.
            self._finish_segment()
            self._begin_segment(group)
        else:
            self._append(group)
            # A group without records is a barrier: it writes nothing and still syncs all that was written before it.
            if any(map(_needs_sync, group)):
                self._sync()

    def _append(self, group: list[Submission]) -> None:
        assert self._segment is not None, "a log's first records begin a segment"
        encoded, end = encode_group(group, self.codec, self._segment.header, self._end, self._synced_position)
        if not encoded:
            return
        try:
            # A SYNC_POINT, a head alone, allocates nothing: an idle log holds no room that it does not use.
            if len(encoded) > 1:
                self._preallocate(end.position)
            self._segment.file.write(encoded, self._end.position)
        except OSError as error:
            self._undo_write(error)
        # Only now: until the write has succeeded, the next group would overwrite its place.
        self._end = end

    def _preallocate(self, position: int) -> None:
        """Allocates space on the disk up to a position and some more."""
        assert self._segment is not None
        if position <= self._preallocated_position:
            return
        ahead = min(PREALLOCATE_BYTES_MAX, max(PREALLOCATE_BYTES_MIN, position))
        length = position - self._preallocated_position + ahead
        # An almost full disk, or a file system without fallocate: the file then grows with each write. Whether there
        # is room for the records themselves, the write finds out.
        with suppress(OSError):
            self._segment.file.reserve(self._preallocated_position, length)
            self._preallocated_position += length

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
            self._preallocated_position = self._end.position
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
        self._preallocated_position = self._end.position
        self._sync()

    def _begin_segment(self, group: list[Submission]) -> None:
        start = LogPosition(self._end.segment_id + 1, SEGMENT_HEADER_BYTES, self._end.lsn)
        header = SegmentHeader(self._files.channel_id, start.segment_id, start.lsn, self._end.position)
        # Synced position 0: nothing of the new segment was synced before these records were written.
        encoded, end = encode_group(group, self.codec, header, start, 0)
        assert encoded, "a segment begins with a record"
        try:
            segment = self._files.create(header, encoded)
        except OSError as error:
            raise _refusal("a new segment could not be created", error) from error
        except NameUnsyncedError as error:
            # The new segment must take no records, since a crash may remove its name; nor may the old one, since the
            # name may survive and the old one's length would no longer match. No file is left to write to.
            raise LogFailedError(f"the sync of a new segment's name failed: {error}") from error
        # Before the answer: a caller may read a location in this segment as soon as it has one.
        self._segments[segment.segment_id] = segment
        self._segment, self._end = segment, end
        self._synced_position = self._preallocated_position = end.position
        self._sync_point_position = 0


_needs_sync = attrgetter("needs_sync")


def _sibling_count(group: Sequence[Submission]) -> int:
    """Returns how many callers of a group the next group should wait for."""
    if len(group) == 1:
        return 0
    byte_count = sum([submission.byte_count for submission in group])
    is_worth_it = byte_count <= COMMIT_DELAY_BYTES_MAX and any(map(_needs_sync, group))
    return len(group) if is_worth_it else 0


def _refusal(what: str, error: OSError) -> LogFullError | LogFailedError:
    kind = LogFullError if error.errno in _NO_ROOM else LogFailedError
    return kind(f"{what}: {error.strerror}")


def _ignore(_submission: Submission, _error: Exception | None) -> None:
    """No caller waits for a SYNC_POINT."""
