"""What of a spillable channel is in memory only, and what must not be called stored because of it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from millrace_server.channels.batches import StoredBatch, StoredColumns
from millrace_server.channels.config import SpillableChannelConfig
from millrace_server.channels.contents import BegunChange, Change
from millrace_server.channels.stamps import Acceptance, StampLedger
from millrace_server.channels.transactions import Outcome

RESERVED_AHEAD = 1 << 20
"""Sequences that are reserved at once, or four of the largest commits where those are more."""

_COMMITS_AHEAD = 4


@dataclass(slots=True, eq=False)
class _Held:
    """A commit whose events are in memory only, as long as one of them is in the channel."""

    acceptance: Acceptance | None
    txn_ids: Sequence[str]
    event_counts: Counter[StoredColumns]
    """Of which columns how many events are in the channel yet; none of those that have none."""


class MemoryTier:
    """Counts what is in memory only and what is in the log, and knows which commits a crash would undo.

    A commit whose events are in memory only is not to be found in the log, nor are its stamp and its transactions,
    until its last event has left the channel, or was written to the log after all. Then it is true for ever.

    Sequences are given to events in memory out of a reserve, of which the log knows: so a log that was read back after
    a crash goes on behind all that were ever given.

    Attributes:
        event_count: Events that are in memory only: queued, taken, or about to be queued.
        body_bytes: Bytes of their bodies.
        log_event_count: Events that are in the log, likewise.
        reserved_sequence: Sequences below it may be given to events in memory, since that is on the disk.
        reserving_sequence: The same as it will be once all that is under way is on the disk.
    """

    def __init__(self, config: SpillableChannelConfig, log_event_count: int) -> None:
        self.enforce(config)
        self.event_count = 0
        self.body_bytes = 0
        self.log_event_count = log_event_count
        self.reserved_sequence = 0
        self.reserving_sequence = 0
        self._has_ended = False
        self._held: dict[StoredColumns, _Held] = {}

    def enforce(self, config: SpillableChannelConfig) -> None:
        """From now on has the limits of a new configuration; what is in memory may be above them."""
        self._events_max = config.memory_capacity
        self._body_bytes_max = config.memory_body_bytes_max
        self._reserved_ahead = max(RESERVED_AHEAD, _COMMITS_AHEAD * config.transaction_capacity)

    def end(self) -> None:
        """Takes in nothing more, and needs no reserve."""
        self._has_ended = True

    # Sequences.

    def is_low(self, next_sequence: int) -> bool:
        """Whether it is time to reserve more."""
        return self.reserving_sequence - next_sequence < self._reserved_ahead // 2 and not self._has_ended

    def reservation(self, next_sequence: int) -> int:
        """What is to be reserved now; 0 where nothing more comes to memory."""
        if self._has_ended:
            return 0
        return next_sequence + self._reserved_ahead if self.is_low(next_sequence) else self.reserving_sequence

    # Commits.

    def admits(self, change: Change, next_sequence: int) -> bool:
        """Whether the puts of a change, which takes nothing from the log, can go to memory."""
        if self._has_ended or next_sequence + change.put_count > self.reserved_sequence:
            return False
        return (change.event_count <= 0 or self.event_count + change.event_count <= self._events_max) and (
            change.body_bytes <= 0 or self.body_bytes + change.body_bytes <= self._body_bytes_max
        )

    def begin(self, begun: BegunChange, txn_ids: Sequence[str], *, in_memory: bool) -> None:
        """Counts what has begun to be put."""
        change = begun.change
        if not in_memory:
            self.log_event_count += change.put_count
            return
        self.event_count += change.put_count
        self.body_bytes += change.put_body_bytes
        if change.puts and (begun.acceptance or txn_ids):
            event_counts = Counter[StoredColumns]()
            for batch in begun.batches:
                event_counts[batch.window.stored] += batch.count
            self._held.update(dict.fromkeys(event_counts, _Held(begun.acceptance, txn_ids, event_counts)))

    def undo(self, begun: BegunChange, *, in_memory: bool) -> None:
        """Has what had begun never have been put."""
        change = begun.change
        if not in_memory:
            self.log_event_count -= change.put_count
            return
        self.event_count -= change.put_count
        self.body_bytes -= change.put_body_bytes
        for batch in begun.batches:
            self._held.pop(batch.window.stored, None)

    def finish(self, takes: Iterable[StoredBatch]) -> None:
        """Counts what has left the channel."""
        for batch in takes:
            if batch.is_in_log:
                self.log_event_count -= batch.count
            else:
                self._leave(batch)

    def keep(self, batches: Iterable[StoredBatch]) -> None:
        """Counts what is in the log from now on, and was in memory only."""
        for batch in batches:
            self._leave(batch)
            self.log_event_count += batch.count

    def _leave(self, batch: StoredBatch) -> None:
        self.event_count -= batch.count
        self.body_bytes -= batch.window.body_bytes
        stored = batch.window.stored
        if (held := self._held.get(stored)) is not None:
            held.event_counts[stored] -= batch.count
            if not held.event_counts[stored]:
                # Nothing of it is kept any longer than it must be: it may be large.
                del held.event_counts[stored], self._held[stored]

    # What lasts.

    def lasting_ledger(self, ledger: StampLedger) -> StampLedger:
        """What was accepted, but for what a crash would lose."""
        acceptances = [held.acceptance for held in self._distinct() if held.acceptance]
        return ledger.without(acceptances) if acceptances else ledger

    def lasting_txns(self, ended: Iterable[tuple[str, Outcome]]) -> Iterator[tuple[str, Outcome]]:
        """How transactions ended, but for those whose events a crash would lose."""
        lost = {txn_id for held in self._distinct() for txn_id in held.txn_ids}
        return ((txn_id, outcome) for txn_id, outcome in ended if txn_id not in lost)

    def _distinct(self) -> Iterable[_Held]:
        return {id(held): held for held in self._held.values()}.values()
