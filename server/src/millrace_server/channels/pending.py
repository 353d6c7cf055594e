"""What is on its way into a channel's log."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace_server.channels.batches import StoredBatch, StoredColumns, Window
from millrace_server.channels.commits import ClaimNote, CommitEnd
from millrace_server.channels.contents import BegunChange, Change, Contents, Receipt
from millrace_server.channels.log_columns import LogColumns
from millrace_server.channels.memory_tier import MemoryTier
from millrace_server.channels.records import claim_record, commit_records, memory_state_record, put_records
from millrace_server.errors import MillraceError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.records import Location, LogPosition, Record


class Pending:
    """Something that begins when it is submitted to the log, and is then finished, or undone and failed.

    Attributes:
        records: What is written of it.
        needs_sync: Whether it is finished only once it is on the disk.
        is_urgent: Whether that holds also where commits are not synced one by one.
        has_puts: Whether it needs room on the disk that something else would give back.
        is_settled: Whether its end is known.
        submitted_at: When it was submitted, on the event loop's clock.
    """

    records: Sequence[Record] = ()
    needs_sync = True
    is_urgent = False
    has_puts = False
    is_settled = False
    submitted_at = 0.0

    def begin(self) -> None:
        """Takes its place behind all that began before."""

    def finish(self, locations: Sequence[Location], end: LogPosition) -> None:
        """Is in the log now, at these places, behind which the log ended then."""

    def undo(self) -> None:
        """Gives its place up; all that began later has done so."""

    def fail(self, error: MillraceError) -> None:
        """Is not going to be in the log."""

    def again(self) -> "Pending | None":
        """The same once more, where that makes sense after it was undone."""
        return None

    def ending_txns(self) -> Iterable[tuple[str, Receipt]]:
        """The transactions that end with it."""
        return ()


@dataclass(slots=True)
class CommitOrder:
    """What is to be committed. It does not change."""

    change: Change
    txn_ids: Sequence[str]
    end: CommitEnd
    in_memory: bool = False
    """Whether nothing is written of it; it takes nothing then that the log has."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a commit changes."""

    contents: Contents
    columns: LogColumns
    """Reads back what was put."""
    share: MemoryTier | None
    """What of the contents is in memory only; None where nothing ever is."""


class PendingCommit(Pending):
    """A commit."""

    def __init__(self, holding: Holding, order: CommitOrder, future: "asyncio.Future[Receipt]") -> None:
        self._holding = holding
        self._order = order
        change = order.change
        if not order.in_memory and not change.puts_whole_columns:
            # A part of some columns becomes columns of its own: a PUT record is kept whole, or not at all.
            change = replace(change, puts=[_made_whole(put) for put in change.puts])
        self._change = change
        self.put_raw_bytes = change.put_raw_bytes
        """Bytes of columns that it puts."""
        self._begun: BegunChange
        self._is_repeat = False
        self.future = future
        self.has_puts = bool(change.puts) and not order.in_memory
        self.writes_nothing = not (order.txn_ids or change.puts or change.takes or change.has_new_numbers)
        """Whether it only repeats what was committed before."""
        self.needs_sync = not order.in_memory

    def begin(self) -> None:
        order = self._order
        self._begun = self._holding.contents.begin(self._change)
        if self._holding.share is not None:
            self._holding.share.begin(self._begun, order.txn_ids, in_memory=order.in_memory)
        is_written = not (self.writes_nothing or order.in_memory)
        self.records = commit_records(self._begun, order.txn_ids) if is_written else []

    def finish_at_once(self) -> Receipt:
        """Finishes what writes nothing, and has nothing before it that is not on the disk."""
        self._holding.contents.finish(self._begun)
        if self._holding.share is not None:
            self._holding.share.finish(self._begun.change.takes)
        self._order.end.made(self._begun.receipt)
        return self._begun.receipt

    def finish(self, locations: Sequence[Location], _end: LogPosition) -> None:
        # The PUT records come first; of what stays in memory there are none.
        for batch, location in zip(self._begun.batches, locations, strict=False):
            stored = batch.window.stored
            stored.found_at(location, self._holding.columns)
            self._holding.columns.add(stored)
        receipt = self.finish_at_once()
        # Whoever waited alone for it may have left.
        if not self.future.done():
            self.future.set_result(receipt)

    def undo(self) -> None:
        self._holding.contents.undo(self._begun)
        if self._holding.share is not None:
            self._holding.share.undo(self._begun, in_memory=self._order.in_memory)

    def fail(self, error: MillraceError) -> None:
        self._order.end.refused()
        _refuse(self.future, error)

    def again(self) -> Pending | None:
        # What a stamp showed to be stored, or what this only repeats, may have been undone too: then it is not true any
        # more.
        may_be_untrue = self.writes_nothing or self._order.change.stamp is not None
        if self.has_puts or may_be_untrue or self._is_repeat:
            return None
        again = PendingCommit(self._holding, self._order, self.future)
        again._is_repeat = True
        return again

    def ending_txns(self) -> Iterable[tuple[str, Receipt]]:
        return [(txn_id, self._begun.receipt) for txn_id in self._order.txn_ids]


class PendingRollback(Pending):
    """A rollback, which has happened already; that it is remembered after a crash is not worth a sync."""

    needs_sync = False

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records

    def again(self) -> Pending:
        return PendingRollback(self.records)


@dataclass(slots=True)
class LastClaim:
    """The newest claim of a channel, as its log knows it or is about to."""

    note: ClaimNote | None


class PendingClaim(Pending):
    """A claim that begins or ends."""

    def __init__(self, last: LastClaim, note: ClaimNote, future: "asyncio.Future[None]") -> None:
        self.records = [claim_record(note)]
        self.needs_sync = not note.has_ended
        self._last = last
        self._note = note
        self._note_before: ClaimNote | None = None
        self.future = future

    def begin(self) -> None:
        self._note_before, self._last.note = self._last.note, self._note

    def finish(self, _locations: Sequence[Location], _end: LogPosition) -> None:
        self.future.set_result(None)

    def undo(self) -> None:
        # A claim's end has happened, written or not.
        if not self._note.has_ended:
            self._last.note = self._note_before

    def fail(self, error: MillraceError) -> None:
        _refuse(self.future, error)

    def again(self) -> Pending | None:
        return PendingClaim(self._last, self._note, self.future) if self._note.has_ended else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a channel stood at a place in its log, which is synced up to there."""

    position: LogPosition
    state: pb.State
    """All but its events."""
    batches: Sequence[StoredBatch]
    """All events that were queued or taken and are in the log, in no order."""


class PendingSnapshot(Pending):
    """A barrier in the log, behind which it is seen how the channel stands."""

    is_urgent = True

    def __init__(self, holding: Holding, state: pb.State, future: "asyncio.Future[Snapshot]") -> None:
        self._holding = holding
        self._state = state
        self.future = future

    def finish(self, _locations: Sequence[Location], end: LogPosition) -> None:
        # All that was submitted before is finished, and nothing that was submitted later: the events are those of the
        # state, which was taken when this was submitted.
        batches = self._holding.contents.held_batches()
        if self._holding.share is not None:
            batches = [batch for batch in batches if batch.is_in_log]
        self.future.set_result(Snapshot(end, self._state, batches))

    def fail(self, error: MillraceError) -> None:
        _refuse(self.future, error)


class PendingSync(Pending):
    """A sync of what was written without one."""

    is_urgent = True


class PendingKeep(Pending):
    """How a channel with events in memory only stands, and some of these events, which are in the log from then on.

    Args:
        holding: The channel's contents, with a share in memory.
        batches: Events that are in memory only.
        state: Tells how the channel stands.
        future: Ends once it is on the disk.
    """

    is_urgent = True

    def __init__(
        self,
        holding: Holding,
        batches: Sequence[StoredBatch],
        state: Callable[[], pb.State],
        future: "asyncio.Future[None]",
    ) -> None:
        assert holding.share is not None, "a channel without a share in memory has nothing to keep"
        self._tier = holding.share
        self._holding = holding
        self._batches = batches
        # Queued or taken, some of one request's events may be apart from others: its columns are written once.
        self._stored = list({id(batch.window.stored): batch.window.stored for batch in batches}.values())
        self._state = state
        self._reserved_before = self._reserved = 0
        self.future = future
        self.has_puts = bool(batches)

    def begin(self) -> None:
        share = self._tier
        self._reserved_before = share.reserving_sequence
        self._reserved = share.reserving_sequence = share.reservation(self._holding.contents.assigned_sequence)
        self.records = [*put_records(self._stored), memory_state_record(self._state(), self._stored, self._batches)]

    def finish(self, locations: Sequence[Location], _end: LogPosition) -> None:
        for stored, location in zip(self._stored, locations, strict=False):
            stored.found_at(location, self._holding.columns)
        self._tier.keep(self._batches)
        self._tier.reserved_sequence = self._reserved
        if not self.future.done():
            self.future.set_result(None)

    def undo(self) -> None:
        self._tier.reserving_sequence = self._reserved_before

    def fail(self, error: MillraceError) -> None:
        _refuse(self.future, error)


def _refuse(future: "asyncio.Future[Any]", error: MillraceError) -> None:
    """Ends a future with an error, also where whoever waited for it has left."""
    if not future.done():
        future.set_exception(error)
        # So that nobody need ask for it.
        future.exception()


def _made_whole(window: Window) -> Window:
    if window.is_whole:
        return window
    return Window.whole(StoredColumns(window.columns(), window.count, window.body_bytes))
