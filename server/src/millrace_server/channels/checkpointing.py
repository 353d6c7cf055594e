"""Writes a channel's checkpoints, and removes the segments that they make unnecessary."""

import asyncio
import random
import time
from itertools import islice

import structlog

from millrace_server.channels.journal import Journal, Snapshot
from millrace_server.channels.records import batches_message, first_needed_segment
from millrace_server.channels.recovery import Recovered
from millrace_server.errors import MillraceError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import Checkpoint, CheckpointFiles
from millrace_server.wal.log import WriteAheadLog

_log = structlog.stdlib.get_logger(__name__)

_SLICE_BATCHES = 500
"""Batches that are encoded at once: for about half a millisecond, in which the event loop may have to wait."""

_PAUSE_SECONDS = 0.001


class Checkpointing:
    """Writes checkpoints at an interval and with each new segment, if anything has changed.

    Replay therefore reads little more than one segment, however many events are queued.
    """

    def __init__(
        self,
        name: str,
        journal: Journal,
        files: CheckpointFiles,
        log: WriteAheadLog,
        recovered: Recovered,
    ) -> None:
        self._name = name
        self._journal = journal
        self._files = files
        self._log = log
        # The oldest segment that the newest checkpoint needs, which is the previous one after the next write.
        self._needed_before = recovered.first_needed_segment
        # The journal's change count in the newest checkpoint. -1 differs from every count.
        self._seen_count = journal.change_count if recovered.is_checkpointed else -1
        # Whether only the previous checkpoint still needs the oldest segments. Then another checkpoint frees them,
        # though nothing has changed.
        self._holds_back = log.first_segment_id < self._needed_before
        self._is_failing = False
        self._nudge = asyncio.Event()
        # One at a time: both write the same temporary file, and the second must know what the first has removed.
        self._making = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._journal.on_new_segment = self._nudge.set
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stops the schedule; a checkpoint that is being written is finished."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        # The task was cancelled, but not the checkpoint that it waited for.
        async with self._making:
            pass

    async def _run(self) -> None:
        # The first is made earlier, so that channels that were opened together do not write theirs together.
        phase = random.random()  # noqa: S311 - spreads load, guards no secret
        loop = asyncio.get_running_loop()
        while True:
            # Not a timeout: its exception would be most of what an idle channel costs.
            due = loop.call_later(self._seconds_to_next() * phase, self._nudge.set)
            try:
                await self._nudge.wait()
            finally:
                due.cancel()
            self._nudge.clear()
            phase = 1.0
            if self._journal.fault:
                # A failed log takes no barrier, so no snapshot can be proven to be on the disk.
                return
            if self._is_due:
                # Shielded: a stop must not abandon a checkpoint between its renames and the removal of segments.
                await asyncio.shield(asyncio.ensure_future(self.make()))

    @property
    def _is_due(self) -> bool:
        return self._holds_back or self._journal.change_count != self._seen_count

    def _seconds_to_next(self) -> float:
        interval_seconds = self._journal.config.checkpoint_interval_seconds
        # A full disk waits for the segments that the previous checkpoint holds back, so the next one follows at once.
        had_room_for = asyncio.get_running_loop().time() - self._journal.disk_full_at
        return 0.0 if self._holds_back and had_room_for < interval_seconds else interval_seconds

    async def make(self) -> None:
        """Writes a checkpoint if anything has changed since the last one, or can be freed. Logs a failure."""
        async with self._making:
            if not self._is_due:
                return
            # Read before the snapshot: a change in between leads to one more checkpoint, not to one too few.
            count = self._journal.change_count
            try:
                # Once this returns, the log is synced up to the snapshot's position. A checkpoint must never be ahead
                # of its log: replay takes its position as proof of a sync.
                snapshot = await self._journal.snapshot()
                # On a thread, from an immutable snapshot: the channel continues meanwhile.
                await asyncio.to_thread(self._write, snapshot)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one must be tried
                if not self._is_failing:
                    _log.warning(
                        "no checkpoint could be made; it is tried again",
                        channel=self._name,
                        error=str(error),
                        exc_info=not isinstance(error, MillraceError | OSError),
                    )
                self._is_failing = True
                # Tried again at the next interval, not at once: what failed now will fail in the next moment too.
                self._holds_back, self._seen_count = False, -1
                return
            self._seen_count = count
            self._is_failing = False

    def _write(self, snapshot: Snapshot) -> None:
        """Writes a checkpoint, then removes the segments that neither it nor the previous one needs."""
        state, needed = _encoded(snapshot)
        # Durable once this returns. Only then may segments go that the older checkpoints needed.
        self._files.write(Checkpoint(snapshot.position, state))
        # The previous checkpoint is of use only with its segments, in case the newest is damaged.
        needed_by_both = min(needed, self._needed_before) if self._journal.config.backup_checkpoint else needed
        self._needed_before = needed
        self._log.remove_before(needed_by_both)
        self._holds_back = self._log.first_segment_id < needed


def _encoded(snapshot: Snapshot) -> tuple[bytes, int]:
    """Returns the message of a snapshot, and the oldest segment that it refers to."""
    pieces = [pb.Checkpoint(state=snapshot.state).SerializeToString()]
    needed = snapshot.position.segment_id
    batches, last = snapshot.batches_in_log(), None
    while batches_now := list(islice(batches, _SLICE_BATCHES)):
        message = pb.Checkpoint(batches=batches_message(batches_now, last))
        pieces.append(message.SerializeToString())
        needed, last = min(needed, first_needed_segment(message, snapshot.position)), batches_now[-1]
        if len(batches_now) == _SLICE_BATCHES:
            # Gives the interpreter to the event loop. Without it, each call would have to wait several times until it
            # is taken away from this thread, each time for 5 ms.
            time.sleep(_PAUSE_SECONDS)
    return b"".join(pieces), needed
