"""The part of a spillable channel that is in memory only, and the commits that a crash would undo."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from millrace_server.channels.batches import StoredBatch, StoredColumns
from millrace_server.channels.commit import Commit
from millrace_server.channels.config import SpillableChannelConfig
from millrace_server.channels.stamps import Acceptance, StampLedger
from millrace_server.channels.transaction import Outcome

RESERVED_AHEAD = 1 << 20
"""Sequences that are reserved at once, or four of the largest commits if those are more."""
_COMMITS_AHEAD = 4


@dataclass(slots=True, eq=False)
class _UnloggedCommit:
    """A commit whose events are in memory only, while one of them is in the channel."""

    acceptance: Acceptance | None
    txn_ids: Sequence[str]
    event_counts: Counter[StoredColumns]  # Events of each of its columns that are still in the channel, above 0.


class MemoryTier:
    """Counts the events in memory and those in the log, and knows which commits a crash would undo.

    A commit whose events are in memory only must not be found in the log, nor its stamp and its transactions, until its
    last event has left the channel or was written to the log. From then on they are true whatever happens.

    Events in memory get their sequences from a reserve that the log stores: so a log that is replayed after a crash
    continues behind all sequences that were ever given.

    Attributes:
        event_count: Events that are in memory only: queued, taken, or in flight.
        body_bytes: Bytes of their bodies.
        log_event_count: Events that are in the log: queued, taken, or in flight.
        reserved_sequence: Events in memory may get sequences below it; the log on the disk stores it.
        reserving_sequence: The same once everything in flight is on the disk.
    """

    def __init__(self, config: SpillableChannelConfig, log_event_count: int) -> None:
        self.enforce(config)
        self.event_count = 0
        self.body_bytes = 0
        self.log_event_count = log_event_count
        self.reserved_sequence = 0
        self.reserving_sequence = 0
        self._has_ended = False
        self._unlogged: dict[StoredColumns, _UnloggedCommit] = {}
        self._spilling = Counter[StoredColumns]()  # Events of each columns that count as if the log had them.

    def enforce(self, config: SpillableChannelConfig) -> None:
        self._events_max = config.memory_capacity
        self._body_bytes_max = config.memory_body_bytes_max
        self._reserved_ahead = max(RESERVED_AHEAD, _COMMITS_AHEAD * config.transaction_capacity)

    def end(self) -> None:
        """Admits nothing more, and needs no reserve."""
        self._has_ended = True

    # Sequences.

    def is_low(self, next_sequence: int) -> bool:
        return self.reserving_sequence - next_sequence < self._reserved_ahead // 2 and not self._has_ended

    def reservation(self, next_sequence: int) -> int:
        """The sequence up to which to reserve now; 0 where memory admits nothing more."""
        if self._has_ended:
            return 0
        return next_sequence + self._reserved_ahead if self.is_low(next_sequence) else self.reserving_sequence

    # Commits.

    def admits(self, commit: Commit, next_sequence: int) -> bool:
        """Whether the puts of a commit that takes nothing from the log can go to memory."""
        if self._has_ended or next_sequence + commit.put_count > self.reserved_sequence:
            return False
        return (commit.event_count <= 0 or self.event_count + commit.event_count <= self._events_max) and (
            commit.body_bytes <= 0 or self.body_bytes + commit.body_bytes <= self._body_bytes_max
        )

    def prepare(self, commit: Commit) -> None:
        if not commit.is_in_memory:
            self.log_event_count += commit.put_count
            return
        self.event_count += commit.put_count
        self.body_bytes += commit.put_body_bytes
        if commit.puts and (commit.acceptance or commit.txn_ids):
            event_counts = Counter[StoredColumns]()
            for batch in commit.batches:
                event_counts[batch.window.stored] += batch.count
            unlogged = _UnloggedCommit(commit.acceptance, commit.txn_ids, event_counts)
            self._unlogged.update(dict.fromkeys(event_counts, unlogged))

    def abort(self, commit: Commit) -> None:
        if not commit.is_in_memory:
            self.log_event_count -= commit.put_count
            return
        self.event_count -= commit.put_count
        self.body_bytes -= commit.put_body_bytes
        for batch in commit.batches:
            self._unlogged.pop(batch.window.stored, None)

    def remove(self, takes: Iterable[StoredBatch]) -> None:
        for batch in takes:
            if batch.is_in_log:
                self.log_event_count -= batch.count
            else:
                self._leave(batch)

    def spill(self, batches: Iterable[StoredBatch]) -> None:
        """Counts events that were written from memory to the log."""
        for batch in batches:
            self._leave(batch)
            self.log_event_count += batch.count

    @contextmanager
    def as_spilled(self, batches: Iterable[StoredBatch]) -> Iterator[None]:
        """Within the block, these events count as written to the log when durable stamps are listed."""
        for batch in batches:
            self._spilling[batch.window.stored] += batch.count
        try:
            yield
        finally:
            self._spilling.clear()

    def unit_of(self, batch: StoredBatch) -> object:
        """What must be written from memory to the log together: a commit, or else the columns of a request."""
        stored = batch.window.stored
        return self._unlogged.get(stored, stored)

    def _leave(self, batch: StoredBatch) -> None:
        self.event_count -= batch.count
        self.body_bytes -= batch.window.body_bytes
        stored = batch.window.stored
        if (commit := self._unlogged.get(stored)) is not None:
            commit.event_counts[stored] -= batch.count
            if not commit.event_counts[stored]:
                # The columns may be large: they must not be kept any longer.
                del commit.event_counts[stored], self._unlogged[stored]

    # What survives a crash.

    def forget_producer(self, producer_id: str) -> None:
        """Drops a producer's numbers, which the log must not subtract from those that it may store from now on."""
        for commit in self._unlogged_commits():
            if commit.acceptance and commit.acceptance.producer_id == producer_id:
                commit.acceptance = None

    def durable_ledger(self, ledger: StampLedger) -> StampLedger:
        """Returns the accepted stamps that a crash would not lose."""
        acceptances = [commit.acceptance for commit in self._unlogged_commits() if commit.acceptance]
        return ledger.without(acceptances) if acceptances else ledger

    def durable_txns(self, ended: Iterable[tuple[str, Outcome]]) -> Iterator[tuple[str, Outcome]]:
        """Returns the ended transactions whose events a crash would not lose."""
        lost = {txn_id for commit in self._unlogged_commits() for txn_id in commit.txn_ids}
        return ((txn_id, outcome) for txn_id, outcome in ended if txn_id not in lost)

    def _unlogged_commits(self) -> Iterable[_UnloggedCommit]:
        commits = {id(commit): commit for commit in self._unlogged.values()}.values()
        return [commit for commit in commits if commit.event_counts - self._spilling]
