"""What is on its way into a channel's log."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace_server.channels.batches import StoredBatch, StoredColumns, Window
from millrace_server.channels.commits import ClaimNote, CommitEnd
from millrace_server.channels.contents import BegunChange, Change, Contents, Receipt
from millrace_server.channels.log_columns import LogColumns
from millrace_server.channels.records import claim_record, commit_records
from millrace_server.errors import MillraceError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.writer import Location, LogPosition, Record


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

    needs_sync = True
    is_urgent = False
    has_puts = False

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self.records = records
        self.is_settled = False
        self.submitted_at = 0.0

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


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """What is to be committed."""

    change: Change
    txn_ids: Sequence[str]
    end: CommitEnd


class PendingCommit(Pending):
    """A commit."""

    def __init__(
        self, contents: Contents, columns: LogColumns, order: CommitOrder, future: "asyncio.Future[Receipt]"
    ) -> None:
        super().__init__()
        self._contents = contents
        self._columns = columns
        self._order = order
        self._change = order.change
        if not all(put.is_whole for put in order.change.puts):
            # A part of some columns becomes columns of its own: a PUT record is kept whole, or not at all.
            self._change = replace(order.change, puts=[_made_whole(put) for put in order.change.puts])
        self._begun: BegunChange
        self._is_repeat = False
        self.future = future
        self.has_puts = bool(self._change.puts)
        self.writes_nothing = not (order.txn_ids or self._change.puts or self._change.takes)
        """Whether it only repeats what was committed before."""

    @property
    def put_raw_bytes(self) -> int:
        """Bytes of columns that it puts."""
        return sum(put.stored.raw_bytes for put in self._change.puts)

    def begin(self) -> None:
        self._begun = self._contents.begin(self._change)
        self.records = [] if self.writes_nothing else commit_records(self._begun, self._order.txn_ids)

    def finish_at_once(self) -> Receipt:
        """Finishes what writes nothing, and has nothing before it that is not on the disk."""
        self._contents.finish(self._begun)
        self._order.end.made(self._begun.receipt)
        return self._begun.receipt

    def finish(self, locations: Sequence[Location], _end: LogPosition) -> None:
        # The PUT records come first.
        puts = locations[: len(self._begun.batches)]
        for batch, location in zip(self._begun.batches, puts, strict=True):
            stored = batch.window.stored
            stored.found_at(location, self._columns)
            self._columns.add(stored)
        receipt = self.finish_at_once()
        # Whoever waited alone for it may have left.
        if not self.future.done():
            self.future.set_result(receipt)

    def undo(self) -> None:
        self._contents.undo(self._begun)

    def fail(self, error: MillraceError) -> None:
        self._order.end.refused()
        _refuse(self.future, error)

    def again(self) -> Pending | None:
        # What a stamp showed to be stored, or what this only repeats, may have been undone too: then it is not true any
        # more.
        may_be_untrue = self.writes_nothing or self._order.change.stamp is not None
        if self.has_puts or may_be_untrue or self._is_repeat:
            return None
        again = PendingCommit(self._contents, self._columns, self._order, self.future)
        again._is_repeat = True
        return again

    def ending_txns(self) -> Iterable[tuple[str, Receipt]]:
        return [(txn_id, self._begun.receipt) for txn_id in self._order.txn_ids]


class PendingRollback(Pending):
    """A rollback, which has happened already; that it is remembered after a crash is not worth a sync."""

    needs_sync = False

    def again(self) -> Pending:
        return PendingRollback(self.records)


@dataclass(slots=True)
class LastClaim:
    """The newest claim of a channel, as its log knows it or is about to."""

    note: ClaimNote | None


class PendingClaim(Pending):
    """A claim that begins or ends."""

    def __init__(self, last: LastClaim, note: ClaimNote, future: "asyncio.Future[None]") -> None:
        super().__init__([claim_record(note)])
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
    """All events that were queued or taken, in no order."""


class PendingSnapshot(Pending):
    """A barrier in the log, behind which it is seen how the channel stands."""

    is_urgent = True

    def __init__(self, contents: Contents, state: pb.State, future: "asyncio.Future[Snapshot]") -> None:
        super().__init__()
        self._contents = contents
        self._state = state
        self.future = future

    def finish(self, _locations: Sequence[Location], end: LogPosition) -> None:
        # All that was submitted before is finished, and nothing that was submitted later: the events are those of the
        # state, which was taken when this was submitted.
        self.future.set_result(Snapshot(end, self._state, self._contents.held_batches()))

    def fail(self, error: MillraceError) -> None:
        _refuse(self.future, error)


class PendingSync(Pending):
    """A sync of what was written without one."""

    is_urgent = True


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
