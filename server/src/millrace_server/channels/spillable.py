"""The spillable channel: commits go to memory while the channel holds little, else to its log.

There is one queue, in the order of sequences, and each batch in it is in memory only or in the log. So there is one
capacity for both, and one take or transaction may take from both.

**Where a commit goes.** A commit is never split, since a crash must not lose half of it. It goes to memory where its
puts fit there and the log holds no event of the channel. Otherwise it goes to the log, and so do all later ones until
the last event of the log has been consumed: returning to memory as soon as one event has left it would scatter the
events that a crash loses over the whole queue, and the disk would start and stop for each handful of events. So the
queue is one part in memory, followed by one in the log, and a crash loses the oldest events and leaves no gap between
those that remain. Only where the disk has no space does memory take what it can hold, also behind the log.

A commit that takes events of the log is written to the log with its puts: in memory these would be lost by a crash, and
what was taken for them would be gone. A commit that takes from memory needs no record. So a commit that concerns memory
alone costs what it costs in a memory channel: no write, no sync.

**What a crash leaves.** Everything in the log, in order. Events in memory are lost with the process, with the stamps
and transactions that stored them (see `MemoryTier`): a producer or a source that sends them again stores them, and the
retry of a commit gets the error that the transaction is not known. The stamps of events that were consumed out of
memory are in the next checkpoint; what was consumed behind the last checkpoint before a crash is stored and delivered
once more if it is sent again. Claims and their epochs are always in the log. No sequence is given twice: those for
memory come from a reserve that the log stores, and a channel that was not stopped gracefully continues behind its
reserve.

**A graceful stop** writes the events in memory to the log, the oldest first, and so loses nothing.

**A failed log** takes no puts, like that of a file channel: in memory they would be lost by the restart that the
channel needs. But events in memory can still be taken, since they cannot leave it otherwise.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby

import structlog

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.commit import Commit, JournalEntry
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.config import ChannelConfig, SpillableChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.channels.journal import Journal
from millrace_server.channels.journal_entries import LogContext, fail_future
from millrace_server.channels.log_columns import LogColumns
from millrace_server.channels.memory_tier import MemoryTier
from millrace_server.channels.records import State, memory_state_record, put_records
from millrace_server.channels.transaction import EndedTxns, Outcome
from millrace_server.errors import DiskFullError, DrainingError, MillraceError
from millrace_server.wal.records import Location, LogPosition, Record

DISK_FULL_SECONDS = 10.0
"""For this long after the disk had no space, commits that fit go to memory without trying the disk."""

_RESERVING_PAUSE_SECONDS = 1.0
"""For this long after the disk had no space, no sequences are reserved."""

_SPILL_BYTES = 16 << 20
"""Bytes of columns that one write stores when the channel is closed."""

_log = structlog.stdlib.get_logger(__name__)


class TieredContext(LogContext):
    """A channel whose commits are in memory or in its log; counts those in flight."""

    def __init__(
        self,
        contents: Contents,
        columns: LogColumns,
        ended: EndedTxns,
        claim: ClaimRecord | None,
        config: SpillableChannelConfig,
    ) -> None:
        super().__init__(contents, columns, ended, claim)
        self.tier = MemoryTier(config, contents.capacity.event_count)
        self.in_flight_count = 0

    def prepare(self, commit: Commit) -> None:
        super().prepare(commit)
        self.tier.prepare(commit)
        self.in_flight_count += 1

    def apply(self, commit: Commit, locations: Sequence[Location]) -> None:
        super().apply(commit, locations)
        self.tier.remove(commit.takes)
        if commit.forgotten_producer:
            self.tier.forget_producer(commit.forgotten_producer)
        self.in_flight_count -= 1

    def abort(self, commit: Commit) -> None:
        super().abort(commit)
        self.tier.abort(commit)
        self.in_flight_count -= 1

    def state(self, ending: Iterable[tuple[str, Outcome]]) -> State:
        tier, contents = self.tier, self.contents
        return State(
            contents.assigned_sequence,
            tier.durable_ledger(contents.ledger).snapshot(),
            list(tier.durable_txns(self._all_ended(ending))),
            self.claim,
            contents.last_commit_time,
            tier.reserving_sequence,
        )

    @property
    def log_event_count(self) -> int:
        return self.tier.log_event_count


class MemoryStateEntry(JournalEntry):
    """The channel's state with a new reserve of sequences, and `batches` that are spilled from memory to the log."""

    is_urgent = True
    is_mergeable = True

    def __init__(
        self, context: TieredContext, journal: Journal, batches: Sequence[StoredBatch], future: "asyncio.Future[None]"
    ) -> None:
        self._context = context
        self._journal = journal
        self._batches = batches
        # Events of one request may be apart from each other, queued or taken: their columns are written once.
        self._stored = list({id(batch.window.stored): batch.window.stored for batch in batches}.values())
        self._reserved_before = self._reserved = 0
        self._state: State
        self._future = future
        self.has_puts = bool(batches)

    def prepare(self) -> None:
        tier = self._context.tier
        self._reserved_before = tier.reserving_sequence
        self._reserved = tier.reserving_sequence = tier.reservation(self._context.contents.assigned_sequence)
        with tier.as_spilled(self._batches):
            self._state = self._journal.state()
        self.records = put_records(self._stored)

    def merge(self, neighbours: "Sequence[MemoryStateEntry]") -> Iterator[tuple[int, Sequence[Record]]]:
        for entry in neighbours:
            yield 1, [*entry.records, entry.record()]

    def record(self) -> Record:
        """Returns the MEMORY_STATE record. The log's thread encodes it."""
        return memory_state_record(self._state, self._stored, self._batches)

    def apply(self, locations: Sequence[Location], _end: LogPosition) -> None:
        for stored, location in zip(self._stored, locations, strict=False):
            stored.locate(location, self._context.columns)
        # Their PUT records lie between those of commits, which therefore are no neighbours.
        self._context.contents.queue.end_run()
        self._context.tier.spill(self._batches)
        self._context.tier.reserved_sequence = self._reserved
        if not self._future.done():
            self._future.set_result(None)

    def abort(self) -> None:
        self._context.tier.reserving_sequence = self._reserved_before

    def fail(self, error: MillraceError) -> None:
        fail_future(self._future, error)


class SpillableCommitter:
    """The committer of a spillable channel: chooses between memory and the log for each commit."""

    def __init__(self, name: str, context: TieredContext, journal: Journal) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._context = context
        self._contents = context.contents
        self.tier = context.tier
        self._journal = journal
        self._is_draining = False
        # Commits in memory that a snapshot knows are then in the log too, so that it suffices without checkpoints.
        journal.before_snapshot = self._store_state

    @property
    def fault(self) -> MillraceError | None:
        return self._journal.fault

    @property
    def is_stalled(self) -> bool:
        return self._journal.is_stalled

    @property
    def disk_trouble(self) -> str:
        return self._journal.disk_trouble

    @property
    def memory_event_count(self) -> int:
        return self.tier.event_count

    def enforce(self, config: ChannelConfig) -> None:
        spillable = config.spillable
        assert spillable is not None, "a channel's type never changes"
        self._journal.enforce(config)
        self.tier.enforce(spillable)

    def refuse_unfit(self, commit: Commit) -> None:
        if self._is_draining:
            # Too late to be written.
            raise DrainingError(
                "the channel is being closed and accepts no new work; use another server or retry later"
            )
        if not self._fits_memory(commit):
            self._journal.refuse_unfit(commit)

    def submit(self, commit: Commit) -> None:
        if self._is_draining:
            self.refuse_unfit(commit)
        # What the log says of a producer must go from there.
        needs_log = bool(commit.forgotten_producer) or any(take.is_in_log for take in commit.takes)
        if not needs_log and self._belongs_in_memory(commit):
            self._submit_to_memory(commit)
        else:
            try:
                self._journal.submit(commit)
            except DiskFullError:
                if needs_log or not self._fits_memory(commit):
                    raise
                self._submit_to_memory(commit)
        if self.tier.is_low(self._contents.assigned_sequence):
            self._reserve_sequences()

    def _submit_to_memory(self, commit: Commit) -> None:
        """Commits at once, or behind the commits in flight. Also after the log has failed."""
        commit.keep_in_memory()
        commit.context = self._context
        if self._context.in_flight_count:
            # One of them may be aborted, and then frees its sequences.
            self._journal.enqueue(commit)
            return
        self._journal.commit_now(commit)
        if commit.txn_ids or commit.has_new_numbers:
            self._journal.note_change()

    def _belongs_in_memory(self, commit: Commit) -> bool:
        if not (commit.puts or commit.has_new_numbers):
            return True
        if self.fault is not None:
            return False
        is_its_turn = not self.tier.log_event_count or self._seconds_since_disk_full < DISK_FULL_SECONDS
        return is_its_turn and self._fits_memory(commit)

    def _fits_memory(self, commit: Commit) -> bool:
        return self.tier.admits(commit, self._contents.assigned_sequence)

    def _reserve_sequences(self) -> None:
        if self.fault is None and self._seconds_since_disk_full >= _RESERVING_PAUSE_SECONDS:
            # No caller waits for it: where it comes too late, or not at all, commits go to the log.
            self._store_state()

    def _store_state(self) -> None:
        _ = self._spill([])

    @property
    def _seconds_since_disk_full(self) -> float:
        return self._loop.time() - self._journal.disk_full_at

    def record_rollback(self, txn_id: str, *, has_expired: bool) -> None:  # noqa: ARG002 - as the protocol has it
        # It is in the next checkpoint: with a record for each, memory would wait for the disk.
        self._journal.note_change()

    def record_claim(self, claim: ClaimRecord) -> "asyncio.Future[None]":
        return self._journal.record_claim(claim)

    def _spill(self, batches: Sequence[StoredBatch]) -> "asyncio.Future[None]":
        """Writes the state and some events in memory to the log, and reserves sequences; returns the write's future."""
        self._journal.refuse_after_fault()
        future: asyncio.Future[None] = self._loop.create_future()
        self._journal.enqueue(MemoryStateEntry(self._context, self._journal, batches, future))
        return future

    async def drain(self, timeout_seconds: float | None) -> None:
        """Writes all events in memory to the log, the oldest first, before the last checkpoint.

        No commit is possible from now on. Events that could not be written in time are lost; the server's log says so.
        """
        self._is_draining = True
        self.tier.end()
        # A last checkpoint is due: it gives the rest of the reserve back, and stores what was consumed out of memory.
        self._journal.note_change()
        reason = "it took longer than the time limit for stopping"
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                try:
                    if self._context.in_flight_count:
                        # They may consume some of the events in memory: wait until they have ended.
                        await asyncio.shield(self._spill([]))
                    for batches in self._portions():
                        await asyncio.shield(self._spill(batches))
                except MillraceError as error:
                    reason = str(error)
        if self.tier.event_count:
            _log.error(
                "events that were only in memory are lost",
                channel=self._name,
                events=self.tier.event_count,
                reason=reason,
            )

    def _portions(self) -> Iterator[list[StoredBatch]]:
        """Yields the events in memory, in portions for one write each."""
        in_memory = (batch for batch in self._contents.held_batches() if not batch.is_in_log)
        portion: list[StoredBatch] = []
        portion_bytes = 0
        # Those of one commit are neighbours, and are written together with its stamp: then a kill loses all of it, or
        # nothing. Some events of a request may be gone, and its columns are written once.
        for _, unit in groupby(in_memory, key=self.tier.unit_of):
            batches = list(unit)
            portion += batches
            portion_bytes += sum({id(batch.window.stored): batch.window.stored.raw_bytes for batch in batches}.values())
            if portion_bytes >= _SPILL_BYTES:
                yield portion
                portion, portion_bytes = [], 0
        if portion:
            yield portion
