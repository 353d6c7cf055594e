"""What the journal writes besides commits, and where the commits of a channel with a log take effect."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.commit import Commit, JournalEntry
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.contents import Contents
from millrace_server.channels.log_columns import LogColumns
from millrace_server.channels.records import claim_record, commit_records, rollback_record, state_message
from millrace_server.channels.transaction import EndedTxns, Outcome
from millrace_server.errors import MillraceError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.records import Location, LogPosition, Record


class LogContext:
    """A channel whose commits are all in its log.

    Args:
        contents: The channel's contents.
        columns: Reads stored columns from the log.
        ended: How transactions ended.
        claim: The newest claim in the log.

    Attributes:
        claim: The newest claim that the log has, or will have once everything in flight is written.
    """

    def __init__(
        self, contents: Contents, columns: LogColumns, ended: EndedTxns, claim: ClaimRecord | None = None
    ) -> None:
        self.contents = contents
        self.columns = columns
        self.claim = claim
        self._ended = ended

    def prepare(self, commit: Commit) -> None:
        """Prepares the commit's contents and encodes its records."""
        self.contents.prepare(commit)
        commit.records = commit_records(commit) if commit.needs_record else ()

    def apply(self, commit: Commit, locations: Sequence[Location]) -> None:
        """Applies the commit's contents; its columns are in the log at these locations."""
        # The PUT records come first. A commit that is in memory only has none.
        for batch, location in zip(commit.batches, locations, strict=False):
            stored = batch.window.stored
            stored.locate(location, self.columns)
            self.columns.add(stored)
        self.contents.apply(commit)

    def abort(self, commit: Commit) -> None:
        """Aborts the commit's contents."""
        self.contents.abort(commit)

    def state(self, ending: Iterable[tuple[str, Outcome]]) -> pb.State:
        """The channel's state without its events, once everything in flight is applied.

        Args:
            ending: The transactions that end with what is in flight.
        """
        contents = self.contents
        return state_message(contents.assigned_sequence, contents.ledger, self._all_ended(ending), self.claim)

    def _all_ended(self, ending: Iterable[tuple[str, Outcome]]) -> Iterator[tuple[str, Outcome]]:
        return chain(self._ended.items(), ending)

    def batches_in_log(self) -> Sequence[StoredBatch]:
        """All committed events that the log stores, queued or taken, in no order."""
        return self.contents.held_batches()


class RollbackEntry(JournalEntry):
    """A rollback. It has taken effect already, and remembering it after a crash is not worth a sync."""

    needs_sync = False

    def __init__(self, txn_id: str, *, has_expired: bool) -> None:
        self.records: Sequence[Record] = [rollback_record(txn_id, has_expired=has_expired)]

    def may_retry(self) -> bool:
        return True


class ClaimEntry(JournalEntry):
    """A claim that begins or ends."""

    def __init__(self, context: LogContext, claim: ClaimRecord, future: "asyncio.Future[None]") -> None:
        self.records: Sequence[Record] = [claim_record(claim)]
        self.needs_sync = not claim.has_ended
        self._context = context
        self._claim = claim
        self._claim_before: ClaimRecord | None = None
        self._future = future

    def prepare(self) -> None:
        self._claim_before, self._context.claim = self._context.claim, self._claim

    def apply(self, _locations: Sequence[Location], _end: LogPosition) -> None:
        self._future.set_result(None)

    def abort(self) -> None:
        # The end of a claim has taken effect, whether the log stores it or not.
        if not self._claim.has_ended:
            self._context.claim = self._claim_before

    def fail(self, error: MillraceError) -> None:
        fail_future(self._future, error)

    def may_retry(self) -> bool:
        return self._claim.has_ended


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A channel as it was at a position of its log, which is synced up to there."""

    position: LogPosition
    state: pb.State
    """All but its events."""
    batches: Sequence[StoredBatch]
    """All committed events that the log stores, queued or taken, in no order."""


class SnapshotEntry(JournalEntry):
    """A barrier in the log; the channel's events are collected when it is applied."""

    is_urgent = True

    def __init__(self, context: LogContext, state: pb.State, future: "asyncio.Future[Snapshot]") -> None:
        self._context = context
        self._state = state
        self._future = future

    def apply(self, _locations: Sequence[Location], end: LogPosition) -> None:
        # All earlier entries are applied and no later one is: the events match the state, which was taken when this
        # entry was submitted.
        self._future.set_result(Snapshot(end, self._state, self._context.batches_in_log()))

    def fail(self, error: MillraceError) -> None:
        fail_future(self._future, error)


class SyncEntry(JournalEntry):
    """An fsync of what was written without one."""

    is_urgent = True


def fail_future(future: "asyncio.Future[Any]", error: MillraceError) -> None:
    """Ends a future with an error, also where its caller has left."""
    if not future.done():
        future.set_exception(error)
        # Marks the error as retrieved: no caller is obliged to wait.
        future.exception()
