"""Commits of a channel with a log: each is written there, and made once it is on the disk."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.commits import ClaimNote, CommitEnd
from millrace_server.channels.config import ChannelConfig, LogChannelConfig
from millrace_server.channels.contents import Change, Contents, Receipt
from millrace_server.channels.disk_room import RETRY_DELAY_SECONDS, DiskRoom
from millrace_server.channels.log_columns import LogColumns
from millrace_server.channels.memory_tier import MemoryTier
from millrace_server.channels.pending import (
    CommitOrder,
    Holding,
    LastClaim,
    Pending,
    PendingClaim,
    PendingCommit,
    PendingKeep,
    PendingRollback,
    PendingSnapshot,
    PendingSync,
    Snapshot,
)
from millrace_server.channels.records import rollback_record, state_message, state_record
from millrace_server.channels.transactions import EndedTxns, Outcome, TxnState
from millrace_server.errors import ChannelLogFailedError, DiskFullError, MillraceError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.records import LogFullError, Record, Submission

STALL_SECONDS = 2.0
"""When the disk has not answered for so long, that is told."""

_ROTATION_PAUSE_SECONDS = 1.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """Where a journal writes."""

    log: WriteAheadLog
    """The channel's log, started."""
    columns: LogColumns
    """Reads back what was put."""
    room: DiskRoom
    """The log's disks."""
    share: MemoryTier | None = None
    """What of the channel is in memory only, and written nowhere; None where nothing ever is."""


class Journal:
    """Writes changes to a log in the order in which they begin, and finishes them in that order.

    What is under way has begun, so that what comes behind builds on it; nobody sees it before it is on the disk. Where
    the disk has no room, all that is under way is undone, the last first, and what puts nothing is tried once more.

    Args:
        contents: What is changed.
        ended: How transactions ended.
        claim: The newest claim that the log knows.
        files: Where it is written.
        config: How.
    """

    def __init__(
        self,
        contents: Contents,
        ended: EndedTxns,
        claim: ClaimNote | None,
        files: JournalFiles,
        config: LogChannelConfig,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.contents = contents
        self.share = files.share
        self._holding = Holding(contents, files.columns, files.share)
        self._ended = ended
        self._log = files.log
        self._room = files.room
        self._last_claim = LastClaim(claim)
        self._pending: deque[Pending] = deque()
        self._commit_count = 0
        self._segment_bytes = files.log.end.position
        self._state_bytes = 0
        self._is_rotating = False
        self._rotates_again_at = 0.0
        self._sync_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.is_stalled = False
        """Whether the disk has kept something waiting for longer than it should. Nothing is lost, but nothing moves."""
        self._fault = ""
        self.config = config
        self.submitted_count = 0
        """Submissions so far."""
        self.change_count = 0
        """Grows with whatever a new checkpoint would tell and the last one does not."""
        self.had_no_room_at = -math.inf
        """When the disk last had no room, on the event loop's clock."""
        self.on_new_segment: Callable[[], None] = _ignore
        """Called when a new segment has begun."""
        self.on_change: Callable[[str], None] = _ignore
        """Called with a sentence when the log has failed, or the disk stalls or answers again."""

    @property
    def fault(self) -> MillraceError | None:
        """Why nothing can be committed any more; None while all is well."""
        return ChannelLogFailedError(self._fault) if self._fault else None

    @property
    def has_commits_under_way(self) -> bool:
        """Whether some have begun and are not finished."""
        return self._commit_count > 0

    # What is to last.

    @property
    def memory_event_count(self) -> int:
        return 0 if self.share is None else self.share.event_count

    def enforce(self, config: ChannelConfig) -> None:
        assert isinstance(config, LogChannelConfig), "a channel's type never changes"
        if config.compression != self.config.compression:
            self._log.compress(compresses=config.compression == "zstd")
        self.config = config

    def make(self, change: Change, txn_ids: Sequence[str], end: CommitEnd) -> "Receipt | asyncio.Future[Receipt]":
        self._refuse_after_fault()
        commit = PendingCommit(self._holding, CommitOrder(change, txn_ids, end), self._loop.create_future())
        if commit.has_puts:
            self._spend(commit.put_raw_bytes)
        if commit.writes_nothing and not self._pending:
            commit.begin()
            return commit.finish_at_once()
        self._submit(commit)
        return commit.future

    def make_in_memory(
        self, change: Change, txn_ids: Sequence[str], end: CommitEnd
    ) -> "Receipt | asyncio.Future[Receipt]":
        """Makes a change of what is in memory only: at once, or behind the commits that are on their way to the disk.

        Also after the log has failed. Otherwise like `make`.
        """
        if self._commit_count:
            # One of them may be undone, and gives its sequences back then.
            order = CommitOrder(change, txn_ids, end, in_memory=True)
            commit = PendingCommit(self._holding, order, self._loop.create_future())
            self._submit(commit)
            return commit.future
        assert self.share is not None, "a channel without a share in memory writes all that it makes"
        begun = self.contents.begin(change)
        self.share.begin(begun, txn_ids, in_memory=True)
        self.contents.finish(begun)
        self.share.finish(change.takes)
        self.change_count += bool(txn_ids or change.has_new_numbers)
        end.made(begun.receipt)
        return begun.receipt

    def _spend(self, byte_count: int) -> None:
        try:
            self._room.spend(byte_count, self.config.min_free_bytes)
        except DiskFullError:
            self.had_no_room_at = self._loop.time()
            raise

    def note_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        if not self._fault:
            self._submit(PendingRollback([rollback_record(txn_id, has_expired=has_expired)]))

    def note_claim(self, note: ClaimNote) -> "asyncio.Future[None] | None":
        if note.has_ended and self._fault:
            return None
        self._refuse_after_fault()
        claim = PendingClaim(self._last_claim, note, self._loop.create_future())
        self._submit(claim)
        return claim.future

    async def snapshot(self) -> Snapshot:
        """How the channel stands, at a place of the log that is synced once this returns. Holds nobody up.

        Raises:
            DiskFullError, ChannelLogFailedError: The log could not be synced up to there.
        """
        self._refuse_after_fault()
        change_count = self.change_count
        if self.share is not None:
            # What the snapshot knows of commits in memory is then in the log too, which must do without checkpoints.
            self._submit(self._pending_keep([]))
        snapshot = PendingSnapshot(self._holding, self.state(), self._loop.create_future())
        self._submit(snapshot)
        self.change_count = change_count
        return await asyncio.shield(snapshot.future)

    def keep(self, batches: Sequence[StoredBatch] = ()) -> "asyncio.Future[None]":
        """Writes how a channel with events in memory only stands, and some of these events; reserves sequences.

        Returns:
            A future that ends once the events are in the log, or with DiskFullError or ChannelLogFailedError where they
            are not.
        """
        self._refuse_after_fault()
        keep = self._pending_keep(batches)
        self._submit(keep)
        return keep.future

    def _pending_keep(self, batches: Sequence[StoredBatch]) -> PendingKeep:
        return PendingKeep(self._holding, batches, self.state, self._loop.create_future())

    def state(self) -> pb.State:
        """How the channel will stand once all that is under way is finished, but for its events.

        What belongs to events that are in memory only is left out.
        """
        under_way = (
            (txn_id, Outcome(TxnState.COMMITTED, receipt))
            for pending in self._pending
            for txn_id, receipt in pending.ending_txns()
        )
        next_sequence, ledger = self.contents.assigned_sequence, self.contents.ledger
        ended: Iterator[tuple[str, Outcome]] = chain(self._ended.items(), under_way)
        if (share := self.share) is None:
            return state_message(next_sequence, ledger, ended, self._last_claim.note)
        lasting = share.lasting_ledger(ledger), share.lasting_txns(ended)
        return state_message(next_sequence, *lasting, self._last_claim.note, share.reserving_sequence)

    def close(self) -> None:
        """Submits nothing more by itself."""
        for timer in (self._sync_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    # The way through the log.

    def _submit(self, pending: Pending) -> None:
        begins_segment = self._needs_segment()
        segment_start: list[Record] = []
        if begins_segment:
            # Taken before the change begins: it is the state that the segment's first commit is applied to.
            segment_start = [state_record(self.state())]
        pending.begin()
        if begins_segment:
            self._segment_bytes = 0
            self._state_bytes = sum(len(piece) for _, pieces in segment_start for piece in pieces)
            self._is_rotating = True
        pending.submitted_at = self._loop.time()
        self._pending.append(pending)
        self._commit_count += isinstance(pending, PendingCommit)
        self.submitted_count += 1
        self.change_count += 1
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(STALL_SECONDS, self._look_for_stall)
        # Were it refused, what is pending would stand in the way of all that comes; requests are too small for that.
        self._segment_bytes += self._log.submit(
            [*segment_start, *pending.records],
            needs_sync=begins_segment or self._needs_sync(pending),
            begins_segment=begins_segment,
            done=partial(self._done, pending, int(begins_segment)),
        )

    @property
    def _full_bytes(self) -> int:
        """How many bytes a full segment has: no fewer of commits than of the state that it begins with.

        That may be large, and is written anew for each segment.
        """
        return max(self.config.segment_bytes_max, 2 * self._state_bytes)

    def _needs_segment(self) -> bool:
        if not self.submitted_count and self._log.end.segment_id == 0:
            return True
        if self._segment_bytes < self._full_bytes:
            return False
        return not self._is_rotating and self._loop.time() >= self._rotates_again_at

    def _needs_sync(self, pending: Pending) -> bool:
        if pending.is_urgent or not pending.needs_sync or self.config.fsync == "commit":
            return pending.needs_sync
        if self._sync_timer is None:
            self._sync_timer = self._loop.call_later(self.config.fsync_interval_seconds, self._sync)
        return False

    def _sync(self) -> None:
        self._sync_timer = None
        if not self._fault:
            self._submit(PendingSync())

    def _look_for_stall(self) -> None:
        self._stall_timer = None
        if not self._pending:
            self._tell_stall(is_stalled=False)
            return
        waited_seconds = self._loop.time() - self._pending[0].submitted_at
        self._tell_stall(is_stalled=waited_seconds >= STALL_SECONDS)
        self._stall_timer = self._loop.call_later(
            max(STALL_SECONDS - waited_seconds, _LOOK_SECONDS), self._look_for_stall
        )

    def _tell_stall(self, *, is_stalled: bool) -> None:
        if self.is_stalled != is_stalled:
            self.is_stalled = is_stalled
            self.on_change("the disk does not answer; commits wait for it" if is_stalled else "the disk answers again")

    def _done(self, pending: Pending, skipped: int, submission: Submission, error: Exception | None) -> None:
        """Learns of a submission's end, in the order of submissions.

        Args:
            pending: What was submitted.
            skipped: 1 where a segment's STATE went before it.
            submission: Where it is.
            error: Why it is not.
        """
        if pending.is_settled:
            # It was undone together with one before it.
            return
        if isinstance(error, LogFullError):
            self._take_back()
        elif error is not None:
            self._fail(str(error))
        else:
            assert submission.end is not None
            first = self._pending.popleft()
            assert first is pending, "the log answers in order"
            self._commit_count -= isinstance(pending, PendingCommit)
            if not self._pending:
                # So far it was an estimate, since the log may pack what it is given.
                self._segment_bytes = submission.end.position
            pending.is_settled = True
            pending.finish(submission.locations[skipped:], submission.end)
            if skipped:
                self._is_rotating = False
                self.on_new_segment()

    def _take_back(self) -> None:
        """Undoes all that is under way: the log has refused the first, and takes nothing that was built on it."""
        self.had_no_room_at = self._loop.time()
        refused = self._undo_all()
        # Without what puts, or without a new segment, there may be room.
        is_worth_a_try = self._is_rotating or any(pending.has_puts for pending in refused)
        if self._is_rotating:
            # The full segment goes on for a while, in what room it has.
            self._is_rotating = False
            self._segment_bytes = self._full_bytes
            self._rotates_again_at = self._loop.time() + _ROTATION_PAUSE_SECONDS
        self._log.resume()
        for pending in refused:
            again = pending.again() if is_worth_a_try else None
            if again is None:
                pending.fail(
                    DiskFullError(
                        "the disk has no room for the channel's log; nothing was changed",
                        retry_delay_seconds=RETRY_DELAY_SECONDS,
                    )
                )
            else:
                self._submit(again)

    def _fail(self, sentence: str) -> None:
        """Takes nothing more: what the log holds is known again once it was opened anew."""
        self._fault = "the channel's log has failed and takes no more commits until the server opens it anew"
        self.is_stalled = False
        for pending in self._undo_all():
            pending.fail(ChannelLogFailedError(self._fault))
        self.on_change(sentence)

    def _undo_all(self) -> list[Pending]:
        undone = list(self._pending)
        self._pending.clear()
        self._commit_count = 0
        for pending in reversed(undone):
            pending.is_settled = True
            pending.undo()
        return undone

    def _refuse_after_fault(self) -> None:
        if self._fault:
            raise ChannelLogFailedError(self._fault)


def _ignore(*_: object) -> None:
    """Nobody wants to know."""
