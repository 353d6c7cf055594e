"""The journal: makes a channel's commits durable by writing them to its log, in order.

All entries in flight are prepared, so that later commits build on them, and no reader sees them before they are on
the disk. When the disk has no space, they are all aborted, the last entry first; those without puts are then
submitted again.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

from millrace_server.channels.commit import Commit, JournalEntry
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.config import ChannelConfig, LogChannelConfig
from millrace_server.channels.disk_space import DISK_RETRY_DELAY_SECONDS, DiskSpace
from millrace_server.channels.journal_entries import (
    ClaimEntry,
    LogContext,
    RollbackEntry,
    SegmentStart,
    Snapshot,
    SnapshotEntry,
    SyncEntry,
    fail_future,
)
from millrace_server.channels.records import State, is_small_append
from millrace_server.channels.transaction import Outcome, TxnState
from millrace_server.errors import ChannelLogFailedError, DiskFullError, MillraceError, NotOwnerError
from millrace_server.histograms import Histogram
from millrace_server.wal.interfaces import Log
from millrace_server.wal.records import LogFullError, LogTakenOverError, Mergeable, Submission

STALL_SECONDS = 2.0
"""After this long without a response from the disk the channel counts as stalled."""

_STALL_CHECK_SECONDS_MIN = 0.1

_ROTATION_PAUSE_SECONDS = 1.0
"""How long a full segment continues after the disk had no space for a new one."""


_TAKEN_OVER_SECONDS = 0.2


class Journal:
    """The committer of a file channel: writes commits to the log in their order, and applies them in that order."""

    def __init__(
        self,
        context: LogContext,
        log: Log,
        disk_space: DiskSpace,
        config: LogChannelConfig,
        commit_times: Histogram,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.context = context
        self._log = log
        self.disk_space = disk_space
        self._commit_times = commit_times
        self._measuring: asyncio.Task[None] | None = None
        self._in_flight: deque[JournalEntry] = deque()
        self._generation = 0
        self._segment_bytes = self._former_segment_bytes = log.end.position
        self._state_bytes = 0
        self._must_rotate = False  # Whether the next entry begins a segment, however full this one is.
        self._is_rotating = False
        self._has_segment = log.end.segment_id > 0
        self._rotates_again_at = 0.0
        self._sync_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.is_stalled = False
        self._fault = ""
        self._is_taken_over = False
        self.config = config
        disk_space.min_free_bytes = config.reserved_bytes
        self.change_count = 0  # Grows with each change since the last checkpoint.
        self.disk_full_at = -math.inf  # When the disk last had no space, on the event loop's clock.
        self.before_snapshot: Callable[[], None] = lambda: None
        self.on_new_segment: Callable[[], None] = lambda: None
        self.on_first_change: Callable[[], None] | None = None  # Called once, with the next change.
        self.on_full_disk: Callable[[], None] = lambda: None
        # Called with a sentence when the log fails, or the disk stalls, is full, or recovers.
        self.on_change: Callable[[str], None] = lambda _: None

    @property
    def fault(self) -> MillraceError | None:
        return self._fault_error() if self._fault else None

    @property
    def memory_event_count(self) -> int:
        return 0

    @property
    def disk_trouble(self) -> str:
        return self.disk_space.trouble

    def enforce(self, config: ChannelConfig) -> None:
        log_config = config.log
        assert log_config is not None, "a channel's type never changes"
        if log_config.compression != self.config.compression:
            self._log.compress(compresses=log_config.compression == "zstd")
        self.config = log_config
        self.disk_space.min_free_bytes = log_config.reserved_bytes

    # Entries.

    def refuse_unfit(self, commit: Commit) -> None:
        self.refuse_after_fault()
        if commit.puts:
            self._with_free_space(self.disk_space.refuse_above_free, commit.put_raw_bytes)

    def submit(self, commit: Commit) -> None:
        # Checked here too: without a fault it saves each commit a call.
        if self._fault:
            self.refuse_after_fault()
        commit.context = self.context
        commit.needs_record = not commit.is_repeat
        # Where nothing is in flight, the log writes it at once and alone: then its records are made here, and the log's
        # thread, for whose end the caller waits, has less to do.
        commit.is_mergeable = bool(self._in_flight) and commit.needs_record and is_small_append(commit)
        if commit.puts:
            if not commit.puts_whole_columns:
                commit.cut_puts()
            self._with_free_space(self.disk_space.reserve, commit.put_raw_bytes)
        if not commit.needs_record and not self._in_flight:
            self.commit_now(commit)
        else:
            self.enqueue(commit)

    def commit_now(self, commit: Commit) -> None:
        """Prepares and applies a commit without records, which no earlier abort can affect."""
        self.context.prepare(commit)
        self.context.apply(commit, ())
        commit.complete()

    def _with_free_space(self, use: Callable[[int], None], byte_count: int) -> None:
        if self.disk_space.is_outdated and (self._measuring is None or self._measuring.done()):
            self._measuring = self._loop.create_task(self.measure())
        try:
            use(byte_count)
        except DiskFullError:
            self.disk_full_at = self._loop.time()
            self.on_full_disk()
            raise

    def report_checkpoints(self, trouble: str) -> None:
        """Tells once that checkpoints have no space, `trouble`, and once that they have again, an empty string."""
        before, self.disk_space.checkpoint_trouble = self.disk_space.checkpoint_trouble, trouble
        if before != trouble:
            self.on_change(trouble or "checkpoints have space again")

    async def measure(self) -> None:
        """Measures the free space of the directories; where that fails, the last measurement stays."""
        with suppress(OSError):
            await asyncio.to_thread(self.disk_space.measure)

    def report_space(self) -> None:
        """Tells once that the disk has no space for puts, and once that it has again."""
        space, was_full = self.disk_space, self.disk_space.is_full
        if space.lacks_space:
            space.is_full = True
            if not was_full:
                self.on_change(space.trouble)
        elif space.is_short:
            space.end_shortage()
            if was_full:
                self.on_change(f"the {space.medium.name} has space for puts again")

    def record_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        if not self._fault:
            self.enqueue(RollbackEntry(txn_id, has_expired=has_expired))

    def record_claim(self, claim: ClaimRecord) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        if claim.has_ended and self._fault:
            fail_future(future, self._fault_error())
            return future
        self.refuse_after_fault()
        self.enqueue(ClaimEntry(self.context, claim, future))
        return future

    async def snapshot(self, *, begins_segment: bool = False) -> Snapshot:
        """Returns the channel at a position of the log that is synced by then; commits continue in the meantime.

        `begins_segment`: in a new segment, which has all that is needed of the log where this holds no events. Raises
        DiskFullError where there is no space for it; the former segment is then used further.
        """
        self.refuse_after_fault()
        self._must_rotate = begins_segment
        change_count = self.change_count
        self.before_snapshot()
        future: asyncio.Future[Snapshot] = self._loop.create_future()
        self.enqueue(SnapshotEntry(self.context, self.state(), future))
        self._must_rotate = False
        # A snapshot alone is not a change.
        self.change_count = change_count
        return await asyncio.shield(future)

    def can_begin_anew(self, kept_bytes: int) -> bool:
        """Whether the log holds no events, and a new segment would free more than `kept_bytes`."""
        # The state may also follow as the MEMORY_STATE of a checkpoint, and as what has changed it since.
        return not self.context.log_event_count and self._segment_bytes > kept_bytes + 3 * self._state_bytes

    def oldest_segment(self) -> int:
        """Returns the oldest segment that the channel's events need, the newest where it has none."""
        return self.context.oldest_segment() or self._log.newest_segment_id

    def state(self) -> State:
        """Returns the channel's state without its events, once everything in flight is applied."""
        return self.context.state(
            (txn_id, Outcome(TxnState.COMMITTED, receipt))
            for entry in self._in_flight
            for txn_id, receipt in entry.ending_txns()
        )

    async def drain(self, timeout_seconds: float | None) -> None:
        """Does nothing: all that a file channel has committed is durable."""

    def close(self) -> None:
        """Stops the timers."""
        for timer in (self._sync_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    # The way through the log.

    def note_change(self) -> None:
        """Counts a change that the next checkpoint must have."""
        self.change_count += 1
        if self.on_first_change is not None:
            self.on_first_change()

    def enqueue(self, entry: JournalEntry) -> None:
        """Prepares an entry behind all others, and submits it to the log."""
        begins_segment = self._needs_segment()
        # A segment begins with the state to which its first commit is applied: it is taken before that one is prepared.
        state = self.state() if begins_segment else None
        entry.prepare()
        mergeable: Mergeable | None = entry if entry.is_mergeable else None
        if state is not None:
            mergeable = SegmentStart(state, entry)
            self._former_segment_bytes, self._segment_bytes = self._segment_bytes, 0
            self._is_rotating = True
        entry.submitted_at = monotonic()
        self._in_flight.append(entry)
        self.note_change()
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(STALL_SECONDS, self._check_stall)
        # The log must accept it: an entry that it refused here would block all later ones. Requests are small enough.
        self._segment_bytes += self._log.submit(
            entry.records,
            needs_sync=begins_segment or self._needs_sync(entry),
            begins_segment=begins_segment,
            done=partial(self._done, entry, self._generation, int(begins_segment)),
            mergeable=mergeable,
        )

    def _needs_segment(self) -> bool:
        # An unused channel has no segment; its first entry begins one.
        if self._is_rotating or self._must_rotate or not self._has_segment:
            return not self._is_rotating
        # A segment has at least as many bytes of commits as of the state that it begins with, which may be large.
        return (
            self._segment_bytes >= self.config.segment_bytes_max
            and self._segment_bytes >= 2 * self._state_bytes
            and self._loop.time() >= self._rotates_again_at
        )

    def _needs_sync(self, entry: JournalEntry) -> bool:
        if entry.is_urgent or not entry.needs_sync or (interval_seconds := self.config.sync_interval_seconds) is None:
            return entry.needs_sync
        if self._sync_timer is None:
            self._sync_timer = self._loop.call_later(interval_seconds, self._sync)
        return False

    def _sync(self) -> None:
        self._sync_timer = None
        if not self._fault:
            self.enqueue(SyncEntry())

    def _check_stall(self) -> None:
        self._stall_timer = None
        if not self._in_flight:
            self._set_stalled(is_stalled=False)
            return
        waited_seconds = monotonic() - self._in_flight[0].submitted_at
        self._set_stalled(is_stalled=waited_seconds >= STALL_SECONDS)
        self._stall_timer = self._loop.call_later(
            max(STALL_SECONDS - waited_seconds, _STALL_CHECK_SECONDS_MIN), self._check_stall
        )

    def _set_stalled(self, *, is_stalled: bool) -> None:
        if self.is_stalled != is_stalled:
            self.is_stalled = is_stalled
            medium = self.disk_space.medium
            self.on_change(medium.silence if is_stalled else f"the {medium.keeper} responds again")

    def _done(
        self,
        entry: JournalEntry,
        generation: int,
        state_records: int,
        submission: Submission,
        error: Exception | None,
    ) -> None:
        """Called by the log at the end of each submission, in their order.

        A `generation` older than the current one marks an entry that was aborted together with an earlier one.
        `state_records` is 1 where a segment's STATE precedes the entry's own records.
        """
        if generation != self._generation:
            return
        if isinstance(error, LogFullError):
            self._abort_on_full_disk()
        elif error is not None:
            self._fail(error)
        else:
            assert submission.end is not None
            first = self._in_flight.popleft()
            assert first is entry, "the log responds in order"
            if state_records:
                self._state_bytes = submission.locations[0].payload_length
                self._segment_bytes += self._state_bytes
            if not self._in_flight:
                # Until now an estimate, since the log may compress what it is given.
                self._segment_bytes = submission.end.position
            entry.apply(submission.locations[state_records:], submission.end)
            if entry.is_timed:
                self._commit_times.observe(monotonic() - entry.submitted_at)
            if entry.has_puts:
                self.disk_space.note_stored(entry.put_raw_bytes)
            if state_records:
                self._is_rotating = False
                if self._has_segment:
                    self.on_new_segment()
                self._has_segment = True

    def _abort_on_full_disk(self) -> None:
        """Aborts everything in flight: the log has refused the first entry, on which the others build."""
        self.disk_full_at = self._loop.time()
        aborted = self._abort_all()
        if refused_bytes := max(map(_record_bytes, aborted)):
            self.disk_space.refuse_written(refused_bytes)
            self.on_full_disk()
        # Without puts, or without a new segment, there may be space.
        may_fit = self._is_rotating or any(entry.has_puts for entry in aborted)
        if self._is_rotating:
            # The full segment is used further, as far as its space goes.
            self._is_rotating = False
            self._segment_bytes = self._former_segment_bytes
            self._rotates_again_at = self._loop.time() + _ROTATION_PAUSE_SECONDS
        self._log.resume()
        for entry in aborted:
            if may_fit and entry.use_retry():
                self.enqueue(entry)
            else:
                entry.fail(
                    DiskFullError(
                        f"the {self.disk_space.medium.name} has no space for the channel's log; nothing was changed",
                        retry_delay_seconds=DISK_RETRY_DELAY_SECONDS,
                    )
                )

    def _fail(self, error: Exception) -> None:
        """Refuses everything from now on: only the next opening of the log shows its contents."""
        self._fault = "the channel's log has failed and takes no more commits until the server opens it again"
        self._is_taken_over = isinstance(error, LogTakenOverError)
        self.is_stalled = False
        for entry in self._abort_all():
            entry.fail(self._fault_error())
        self.on_change(str(error))

    def _fault_error(self) -> MillraceError:
        if self._is_taken_over:
            return NotOwnerError(
                "another server has taken the channel over; it is unknown whether it has the last commits sent here",
                retry_delay_seconds=_TAKEN_OVER_SECONDS,
                address="",
            )
        return ChannelLogFailedError(self._fault)

    def _abort_all(self) -> Sequence[JournalEntry]:
        """Aborts everything in flight, the last entry first, since each builds on those before it."""
        aborted = list(self._in_flight)
        self._in_flight.clear()
        self._generation += 1
        for entry in reversed(aborted):
            entry.abort()
            if entry.has_puts:
                self.disk_space.settle(entry.put_raw_bytes)
        return aborted

    def refuse_after_fault(self) -> None:
        if self._fault:
            raise self._fault_error()


def _record_bytes(entry: JournalEntry) -> int:
    return sum(len(piece) for _, pieces in entry.records for piece in pieces)
