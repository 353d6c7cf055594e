"""Writes a channel's checkpoints, and removes the segments that they make unnecessary."""

import asyncio
import math
import random
import time
from contextlib import suppress

import structlog

from millrace_server.channels.disk_space import DISK_RETRY_DELAY_SECONDS, FREE_BYTES_SECONDS
from millrace_server.channels.journal import Journal
from millrace_server.channels.journal_entries import Snapshot
from millrace_server.channels.records import batches_message, first_needed_segment, slices
from millrace_server.channels.recovery import Recovered
from millrace_server.errors import DiskFullError, MillraceError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.disk import NO_SPACE
from millrace_server.wal.interfaces import Checkpoints, Log

KEPT_BYTES = 1 << 20
"""A segment without events is used further up to this size: less space than the next events get ahead of their need."""

FULL_DISK_KEPT_BYTES = 64 << 10
"""The same where puts lack space."""

_log = structlog.stdlib.get_logger(__name__)


class Checkpointing:
    """Writes checkpoints at an interval and with each new segment, if anything has changed.

    Replay therefore reads little more than one segment, however many events are queued.
    """

    def __init__(
        self,
        name: str,
        journal: Journal,
        files: Checkpoints,
        log: Log,
        recovered: Recovered,
    ) -> None:
        self._name = name
        self._journal = journal
        self._files = files
        self._log = log
        # The oldest segment that the newest checkpoint needs, which is the previous one after the next write.
        self._needed_before = recovered.first_needed_segment
        self._position = recovered.checkpoint  # Of the newest one; None without any.
        # The journal's change count in the newest checkpoint. -1 differs from every count.
        self._seen_count = journal.change_count if recovered.is_checkpointed else -1
        self.made_at = 0.0  # When the newest one was made; 0 if not since the start.
        # Whether only the previous checkpoint still needs the oldest segments. Then another checkpoint frees them,
        # though nothing has changed.
        self._holds_back = log.first_segment_id < self._needed_before
        self._is_failing = False
        self._clock = asyncio.get_running_loop().time
        self._disk_waiters = journal.context.contents.disk_waiters
        self._tried_at = self._clock()
        self._freed_at = self._frees_again_at = -math.inf
        # The first is made earlier, so that channels that were opened together do not write theirs together.
        self._phase = random.random()  # noqa: S311 - spreads load, guards no secret
        self._timer: asyncio.TimerHandle | None = None
        self._is_nudged = self._is_stopped = False
        # One at a time: both write the same temporary file, and the second must know what the first has removed.
        self._making = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def replay_bytes(self) -> int:
        """Bytes of the log after the newest checkpoint, which a restart would read."""
        return self._log.byte_count_behind(self._position)

    def start(self) -> None:
        self._journal.on_new_segment = self._journal.on_full_disk = self._nudge
        self._schedule()

    async def stop(self) -> None:
        """Stops the schedule; a checkpoint that is being written is finished."""
        self._is_stopped = True
        self._cancel_timer()
        if self._task is not None:
            # Not cancelled: it must not abandon a checkpoint between its renames and the removal of segments.
            await asyncio.wait({self._task})
        async with self._making:
            pass

    @property
    def _has_ended(self) -> bool:
        # A failed log takes no barrier, so no snapshot can be proven to be on the disk.
        return self._is_stopped or self._journal.fault is not None

    def _schedule(self) -> None:
        """Sets the time of the next checkpoint, once there is a reason for one: an idle channel has no timer."""
        self._cancel_timer()
        if self._has_ended:
            return
        if self._is_due or self._journal.disk_space.is_short:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds_to_next() * self._phase, self._nudge)
        else:
            self._journal.on_first_change = self._schedule

    def _cancel_timer(self) -> None:
        self._journal.on_first_change = None
        if self._timer is not None:
            self._timer.cancel()

    def _nudge(self) -> None:
        """Makes what is due, now or after what is being made."""
        self._is_nudged = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        self._cancel_timer()
        self._phase = 1.0
        while self._is_nudged and not self._has_ended:
            self._is_nudged = False
            if self._is_due or self._journal.disk_space.is_short:
                await self._make_due()
        self._task = None
        self._schedule()

    @property
    def _is_due(self) -> bool:
        return self._holds_back or self._begins_anew or self._journal.change_count != self._seen_count

    @property
    def _begins_anew(self) -> bool:
        is_short = self._journal.disk_space.is_short
        return self._journal.can_begin_anew(FULL_DISK_KEPT_BYTES if is_short else KEPT_BYTES)

    def _seconds_to_next(self) -> float:
        interval_seconds = self._journal.config.checkpoint_interval_seconds
        if not self._journal.disk_space.is_short:
            return interval_seconds
        return min(interval_seconds, FREE_BYTES_SECONDS if self._disk_waiters else DISK_RETRY_DELAY_SECONDS)

    async def _make_due(self) -> None:
        is_short = self._journal.disk_space.is_short
        if is_short:
            # However many puts are refused.
            await asyncio.sleep(self._freed_at + FREE_BYTES_SECONDS - self._clock())
            await self._free_space()
            self._freed_at = self._clock()
        if not is_short or self._clock() >= self._tried_at + self._journal.config.checkpoint_interval_seconds:
            await self.make()

    async def _free_space(self) -> None:
        """Frees what nothing needs any more where puts lack space, and wakes those that wait for it."""
        space, bytes_before = self._journal.disk_space, self._log.byte_count()
        await self._journal.measure()
        while space.lacks_space and self._may_free():
            byte_count = self._log.byte_count()
            await self.make()
            await self._journal.measure()
            if self._log.byte_count() >= byte_count and not self._holds_back:
                self._frees_again_at = self._clock() + DISK_RETRY_DELAY_SECONDS
        self._journal.report_space()
        if not space.is_short or self._log.byte_count() < bytes_before:
            self._disk_waiters.wake_all()

    def _may_free(self) -> bool:
        """Whether a checkpoint may free segments; it is not worth its space and its syncs otherwise."""
        if self._clock() < self._frees_again_at:
            return False
        if self._holds_back or self._begins_anew:
            return True
        if self._journal.change_count == self._seen_count:
            return False
        return self._journal.oldest_segment() > self._log.first_segment_id

    async def make(self) -> None:
        """Writes a checkpoint if anything has changed since the last one, or can be freed. Logs a failure.

        A log that holds no event begins a new segment, so that the former one can go.
        """
        async with self._making:
            self._tried_at = self._clock()
            if not self._is_due:
                return
            # Read before the snapshot: a change in between leads to one more checkpoint, not to one too few.
            count, begins_anew = self._journal.change_count, self._begins_anew
            try:
                # Once this returns, the log is synced up to the snapshot's position. A checkpoint must never be ahead
                # of its log: replay takes its position as proof of a sync.
                snapshot = await self._snapshot(begins_anew=begins_anew)
                # On a thread, from an immutable snapshot: the channel continues in the meantime.
                await asyncio.to_thread(self._write, snapshot)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one must be tried
                self._note_failure(error)
                return
            self._seen_count = count
            self.made_at = time.time()
            self._note_success()

    async def _snapshot(self, *, begins_anew: bool) -> Snapshot:
        if begins_anew:
            # A refusal changes nothing. The previous checkpoint has more space than the new segment needs.
            with suppress(DiskFullError):
                return await self._journal.snapshot(begins_segment=True)
            if await asyncio.to_thread(self._files.remove_previous):
                with suppress(DiskFullError):
                    return await self._journal.snapshot(begins_segment=True)
        return await self._journal.snapshot()

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            _log.warning(
                "a checkpoint could not be written; the server will retry",
                channel=self._name,
                error=str(error),
                exc_info=not isinstance(error, MillraceError | OSError),
            )
        self._is_failing = True
        # Tried again later, not at once: what failed now will fail in the next moment too.
        self._holds_back, self._seen_count = False, -1
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            medium = self._journal.disk_space.medium
            self._journal.report_checkpoints(
                f"the {medium.name} has no space for checkpoints, so the log only grows; {medium.remedy}"
            )

    def _note_success(self) -> None:
        self._is_failing = False
        self._journal.report_checkpoints("")

    def _write(self, snapshot: Snapshot) -> None:
        """Writes a checkpoint, then removes the segments that neither it nor the previous one needs."""
        state, needed = _encoded(snapshot)
        # Durable once this returns. Only then may segments go that the older checkpoints needed.
        self._files.write(Checkpoint(snapshot.position, state))
        self._position = snapshot.position
        # The previous checkpoint is of use only with its segments, in case the newest is damaged.
        needed_by_both = min(needed, self._needed_before) if self._journal.config.keeps_previous_checkpoint else needed
        self._needed_before = needed
        self._log.remove_before(needed_by_both)
        self._holds_back = self._log.first_segment_id < needed


def _encoded(snapshot: Snapshot) -> tuple[bytes, int]:
    """Returns the message of a snapshot, and the oldest segment that it refers to."""
    pieces = list(snapshot.state.encoded_in_field())
    needed, last = snapshot.position.segment_id, None
    for batches_now in slices(snapshot.batches_in_log()):
        message = pb.Checkpoint(batches=batches_message(batches_now, last))
        pieces.append(message.SerializeToString())
        needed, last = min(needed, first_needed_segment(message, snapshot.position)), batches_now[-1]
    return b"".join(pieces), needed
