"""Forms groups of submissions and writes one at a time, on a thread that the writer occupies only for that time.

While one group is being written, the next one forms: commits that wait at the same time share one write (group commit).
"""

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter

from millrace_server.histograms import Histogram, Histograms
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogFailedError, LogFullError, LogPosition, Submission
from millrace_server.wal.writer_threads import WriterThreads

COMMIT_DELAY_SECONDS = 0.004
"""How long the next group waits for the callers of the previous one to submit again: about as long as they take."""

# In a larger group the write takes the time, not the fixed cost of each group, so waiting for more gains nothing.
COMMIT_DELAY_BYTES_MAX = 1 << 20

SYNC_POINT_DELAY_SECONDS = 0.05
"""How long after the last sync an idle log writes a SYNC_POINT; see FORMAT.md, "Corruption and torn tails"."""

_NONE_AWAITED = sys.maxsize
_FOREVER = -1

OnDone = Callable[[Sequence[Submission], Exception | None], None]


class GroupWriter(ABC):
    """Writes at the end of a log, from one thread at a time, which it has only while there is something to write.

    Callers do not wait for the outcome of a submission before they submit what builds on it. When a group is refused,
    all later submissions of its generation or an earlier one are therefore refused too; those of later generations are
    written.

    Args:
        end: The end of the log.
        codec: Encodes payloads.
        on_done: Called on the writer's thread with each group that was written, refused or failed, and its error.
        group_bytes_max: Bytes that one write takes together, unless a single submission is larger.
    """

    _threads: WriterThreads
    _group_sizes: Histogram

    def __init__(self, end: LogPosition, codec: PayloadCodec, on_done: OnDone, group_bytes_max: int) -> None:
        self.codec = codec
        self._on_done = on_done
        self._group_bytes_max = group_bytes_max
        self._end = end
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
        # Whether a thread runs `_run`, or will, or something has taken its place. It stays so at the end, so that none
        # begins again.
        self._has_thread = False
        # Whether the thread was given back before the SYNC_POINT was due, because others needed it.
        self._owes_sync_point = False
        self._has_ended = threading.Event()

    @property
    def end(self) -> LogPosition:
        return self._end

    def count_in(self, histograms: Histograms) -> None:
        """Sets where the sizes of its groups are counted; call it before any other method."""
        self._group_sizes = histograms.groups.of()

    def submit(self, submission: Submission) -> None:
        """Queues records after all that were submitted before. A closing log fails them."""
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
            # Outside the lock, since the callback may submit again.
            self._on_done([submission], LogFailedError("the log is closed"))
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
                self._write_and_complete(group)
            else:
                self._write_sync_point()

    def _write_and_complete(self, group: list[Submission]) -> None:
        error = self._write_or_refuse(group)
        if error is None:
            self._group_sizes.observe(len(group))
        # Before the callback: a caller that submits again right after it is already pending then, and would be counted
        # twice.
        self._expected_count = len(self._pending) + _sibling_count(group)
        self._on_done(group, error)

    def _next_group(self) -> list[Submission] | None:
        """Returns the next group; an empty one when a SYNC_POINT is due; None once the thread is given back."""
        delayed_until = time.monotonic() + COMMIT_DELAY_SECONDS
        expected_count, self._expected_count = self._expected_count, 0
        while not self._pending:
            # While the log is open, a SYNC_POINT is due only behind a new sync: what the caller left unsynced stays
            # so. A closing log syncs everything. Each later record makes the same statement, so under load none is
            # written.
            is_closing = self._is_closing
            has_sync_point = self._failure is not None or self._has_sync_point(is_closing=is_closing)
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
        # Callers that were acknowledged together usually submit again together. Without this delay the first one back
        # would get its own sync and the others would wait for two. A lone caller never waits.
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
                if byte_count > self._group_bytes_max or following.generation != generation:
                    break
                group.append(self._pending.popleft())
            return group

    def _takes_place(self) -> bool:
        """Takes the place of a thread, where there is none yet and nothing to do; `_leave` gives it back."""
        with self._lock:
            is_free = not (self._has_thread or self._is_closing)
            self._has_thread |= is_free
        return is_free

    def _leave(self) -> None:
        if not self._has_left(is_closing=False, owes_sync_point=False):
            self._threads.run(self._run)

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

    def _write_or_refuse(self, group: list[Submission]) -> LogFullError | LogFailedError | None:
        if (known := self._known_error(group)) is not None:
            return known
        error = self._try_to_write(group)
        if isinstance(error, LogFullError):
            self._refusal, self._refused_generation = error, group[0].generation
        return error

    def _known_error(self, group: list[Submission]) -> LogFullError | LogFailedError | None:
        """Returns why a group cannot be written, where that is known before."""
        # A new exception for each group: raising the same object again and again makes its traceback longer.
        if self._failure is not None:
            return type(self._failure)(*self._failure.args)
        if self._refusal is not None and group[0].generation <= self._refused_generation:
            # There may be space again, but this group builds on records that are not in the log.
            return LogFullError(*self._refusal.args)
        return None

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

    @abstractmethod
    def _write(self, group: list[Submission]) -> None:
        """Writes a group; raises LogFullError, or anything else if it is unknown what of it was written."""

    def _has_sync_point(self, *, is_closing: bool) -> bool:  # noqa: ARG002 - logs in files need it
        """Whether the log says of all that was synced that it was, so that no SYNC_POINT is due."""
        return True

    def _write_sync_point(self) -> None:
        """Writes a SYNC_POINT, where one was due."""
        raise AssertionError("none is due")


needs_sync = attrgetter("needs_sync")


def _sibling_count(group: Sequence[Submission]) -> int:
    """Returns how many callers of a group the next group should wait for."""
    if len(group) == 1:
        return 0
    byte_count = sum([submission.byte_count for submission in group])
    is_worth_it = byte_count <= COMMIT_DELAY_BYTES_MAX and any(map(needs_sync, group))
    return len(group) if is_worth_it else 0
