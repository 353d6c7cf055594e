"""What a journal writes, in its order: commits with their contents, rollbacks, claims, and barriers."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.commit import Commit, JournalEntry
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.contents import Contents
from millrace_server.channels.log_columns import LogColumns
from millrace_server.channels.records import (
    State,
    claim_record,
    commit_records,
    merged_records,
    put_records,
    rollback_record,
    state_record,
)
from millrace_server.channels.transaction import EndedTxns, Outcome
from millrace_server.errors import MillraceError
from millrace_server.wal.records import Location, LogPosition, Record


class LogContext:
    """A channel whose commits are all in its log.

    `claim` is the newest claim that the log has, or will have once everything in flight is written.
    """

    def __init__(
        self, contents: Contents, columns: LogColumns, ended: EndedTxns, claim: ClaimRecord | None = None
    ) -> None:
        self.contents = contents
        self.columns = columns
        self.claim = claim
        self._ended = ended

    def prepare(self, commit: Commit) -> None:
        self.contents.prepare(commit)
        if commit.is_mergeable:
            commit.records = put_records([commit.batches[0].window.stored])
        else:
            commit.records = commit_records(commit) if commit.needs_record else ()

    def merge(self, commits: Sequence[Commit]) -> Iterable[tuple[int, Sequence[Record]]]:
        return merged_records(commits)

    def apply(self, commit: Commit, locations: Sequence[Location]) -> None:
        # The PUT records come first. A commit that is in memory only has none.
        batches = [commit.merged] if commit.merged else commit.batches
        for batch, location in zip(batches, locations, strict=False):
            stored = batch.window.stored
            # Commits that share a record share its columns.
            if stored.location != location:
                stored.locate(location, self.columns)
                self.columns.add(stored)
        self.contents.apply(commit)

    def abort(self, commit: Commit) -> None:
        self.contents.abort(commit)

    def state(self, ending: Iterable[tuple[str, Outcome]]) -> State:
        """Returns the state without events, once everything in flight, with the `ending` transactions, is applied."""
        contents = self.contents
        return State(
            contents.assigned_sequence,
            contents.ledger.snapshot(),
            self._all_ended(ending),
            self.claim,
            contents.last_commit_time,
        )

    def _all_ended(self, ending: Iterable[tuple[str, Outcome]]) -> list[tuple[str, Outcome]]:
        return [*self._ended.items(), *ending]

    @property
    def log_event_count(self) -> int:
        """Events that the log stores: queued, taken, or in flight."""
        return self.contents.capacity.event_count

    def oldest_segment(self) -> int | None:
        """Returns the segment of the oldest events in the log, as far as the front of the queue and the takes tell."""
        locations = (batch.window.stored.location for batch in self.contents.oldest_batches())
        return min((location.segment_id for location in locations if location is not None), default=None)


class SegmentStart:
    """The state that a segment begins with, and the entry behind it. The log's thread encodes the state."""

    def __init__(self, state: State, entry: JournalEntry) -> None:
        self._state = state
        self._entry = entry

    def merge(self, _neighbours: Sequence[Any]) -> Iterator[tuple[int, Sequence[Record]]]:
        """Yields the records, which nothing else shares."""
        records = self._entry.records
        if self._entry.is_mergeable:
            [(_, records)] = self._entry.merge([self._entry])
        yield 1, [state_record(self._state), *records]


class RollbackEntry(JournalEntry):
    """A rollback. It has taken effect already, and remembering it after a crash is not worth a sync."""

    needs_sync = False

    def __init__(self, txn_id: str, *, has_expired: bool) -> None:
        self.records: Sequence[Record] = [rollback_record(txn_id, has_expired=has_expired)]

    def use_retry(self) -> bool:
        return True


class ClaimEntry(JournalEntry):
    """A claim that begins or ends."""

    def __init__(self, context: LogContext, claim: ClaimRecord, future: "asyncio.Future[None]") -> None:
        self.records: Sequence[Record] = [claim_record(claim)]
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

    def use_retry(self) -> bool:
        return self._claim.has_ended


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A channel at a position of its log, which is synced up to there: its state, and its events."""

    position: LogPosition
    state: State
    batches: Iterable[StoredBatch]

    def batches_in_log(self) -> Iterator[StoredBatch]:
        """Yields the events in the log before the position, by sequence, once."""
        end = self.position[:2]
        for batch in self.batches:
            location = batch.window.stored.location
            # What was in memory only at that moment may have been written behind it since.
            if location is not None and location[:2] < end:
                yield batch


class SnapshotEntry(JournalEntry):
    """A barrier in the log; the channel's events are collected when it is applied."""

    is_urgent = True

    def __init__(self, context: LogContext, state: State, future: "asyncio.Future[Snapshot]") -> None:
        self._context = context
        self._state = state
        self._future = future

    def apply(self, _locations: Sequence[Location], end: LogPosition) -> None:
        # All earlier entries are applied and no later one is: the events match the state, which was taken when this
        # entry was submitted.
        self._future.set_result(Snapshot(end, self._state, self._context.contents.held_batches()))

    def fail(self, error: MillraceError) -> None:
        fail_future(self._future, error)


class SyncEntry(JournalEntry):
    """An fsync of what was written without one."""

    is_urgent = True


def fail_future(future: "asyncio.Future[Any]", error: MillraceError) -> None:
    """Sets the exception of a future, unless its caller has left."""
    if not future.done():
        future.set_exception(error)
        # Marks the error as retrieved: no caller is obliged to wait.
        future.exception()
