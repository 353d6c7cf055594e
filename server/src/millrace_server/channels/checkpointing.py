"""When a channel's checkpoints are made, and which segments may go then."""

import asyncio
from contextlib import suppress

import structlog

from millrace_server.channels.journal import Journal
from millrace_server.channels.journal_entries import Snapshot
from millrace_server.channels.records import batches_message, first_needed_segment
from millrace_server.errors import MillraceError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import Checkpoint, CheckpointFiles
from millrace_server.wal.log import WriteAheadLog

_log = structlog.stdlib.get_logger(__name__)


class Checkpointing:
    """Makes checkpoints at an interval and with each new segment, where anything has changed.

    So replay reads a little more than one segment, however many events are queued. The channel goes on meanwhile: it is
    seen at one moment how it stands, and all writing is another thread's.

    What was consumed goes once no checkpoint needs it, the one before included. So where that one holds anything back
    another one follows, though nothing has changed, and at once where the disk has no room.

    Args:
        name: The channel's name, for the server's log.
        journal: Tells how the channel stands.
        files: Where checkpoints go.
        log: The log, whose segments go when no checkpoint needs them.
        needed_before: The oldest segment that the checkpoint on the disk needs; 0 where there is none.
    """

    def __init__(
        self,
        name: str,
        journal: Journal,
        files: CheckpointFiles,
        log: WriteAheadLog,
        needed_before: int,
    ) -> None:
        self._name = name
        self._journal = journal
        self._files = files
        self._log = log
        self._needed_before = needed_before
        self._seen_count = -1
        self._holds_back = False
        self._is_failing = False
        self._nudge = asyncio.Event()
        self._making = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to make checkpoints."""
        self._journal.on_new_segment = self._nudge.set
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Makes none by itself any more. One that is being written is finished."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        async with self._making:
            pass

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_to_next()):
                    await self._nudge.wait()
            self._nudge.clear()
            if self._journal.fault:
                return
            await asyncio.shield(asyncio.ensure_future(self.make()))

    def _seconds_to_next(self) -> float:
        interval_seconds = self._journal.config.checkpoint_interval_seconds
        had_room_for = asyncio.get_running_loop().time() - self._journal.disk_full_at
        return 0.0 if self._holds_back and had_room_for < interval_seconds else interval_seconds

    async def make(self) -> None:
        """Makes a checkpoint where there is anything to tell or to free since the last one.

        A failure is logged, and no more.
        """
        async with self._making:
            count = self._journal.change_count
            if count == self._seen_count and not self._holds_back:
                return
            try:
                snapshot = await self._journal.snapshot()
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
                # Once more, but not at once: what could not be done now cannot be in the next moment.
                self._holds_back, self._seen_count = False, -1
                return
            self._seen_count = count
            self._is_failing = False

    def _write(self, snapshot: Snapshot) -> None:
        """Writes a checkpoint, then removes what neither it nor the one before needs."""
        batches = sorted(snapshot.batches, key=lambda batch: batch.first_sequence)
        message = pb.Checkpoint(state=snapshot.state, batches=batches_message(batches))
        self._files.write(Checkpoint(snapshot.position, message.SerializeToString()))
        needed = first_needed_segment(message, snapshot.position)
        needed_by_both = min(needed, self._needed_before) if self._journal.config.backup_checkpoint else needed
        self._needed_before = needed
        self._log.remove_before(needed_by_both)
        self._holds_back = self._log.first_segment_id < needed
