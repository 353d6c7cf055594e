"""Recovery: restores a channel from its checkpoint and its log."""

from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from millrace_server.channels.batches import ColumnsSource, StoredBatch, StoredColumns, Window
from millrace_server.channels.commit import Receipt
from millrace_server.channels.commit_runs import CommitRun, pairs_end
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.queue import EventQueue
from millrace_server.channels.records import (
    first_needed_segment,
    persisted_batches,
    restore_batches,
    restore_claim,
    restore_ended,
    restore_ledger,
    stamps_of,
)
from millrace_server.channels.replay import ContradictionError, Replay, last_time_of
from millrace_server.channels.stamps import StampLedger
from millrace_server.channels.transaction import EndedTxns, Outcome, TxnState
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.format import RECORD_HEAD_BYTES
from millrace_server.wal.interfaces import Checkpoints, Log
from millrace_server.wal.log import LogRecord
from millrace_server.wal.records import Location, LogPosition
from millrace_server.wal.segments import LogCorruptError

_LONG_REPLAY_RECORDS = 1_000
_PORTION_RECORDS = 1_000
_PORTION_BYTES = 1 << 20


@dataclass(slots=True)
class Recovered:
    """All that was acknowledged, except for events in memory only; open transactions are rolled back."""

    queue: EventQueue = field(default_factory=EventQueue)
    ledger: StampLedger = field(default_factory=StampLedger)
    ended: EndedTxns = field(default_factory=EndedTxns)
    claim: ClaimRecord | None = None
    next_sequence: int = 1  # Behind all that were assigned, also to events in memory only.
    last_commit_time: int = 0  # See `StoredBatch`; the next commit is not earlier.
    first_needed_segment: int = 0  # The oldest segment that the checkpoint refers to; 0 without one.
    checkpoint: LogPosition | None = None  # Where replay began; None: at the log's beginning.
    replayed_records: int = 0
    replayed_bytes: int = 0
    is_checkpointed: bool = True  # Whether the newest checkpoint has all of it; also where there is nothing yet.


@dataclass(slots=True)
class ReplayProgress:
    """The progress of a channel's recovery."""

    bytes_done: int = 0
    bytes_total: int = 0  # An estimate: preallocated space at the log's end is included.
    long_replays: AbstractContextManager[object] = field(default_factory=nullcontext)  # Entered for many records.

    @property
    def fraction(self) -> float:
        return min(self.bytes_done / self.bytes_total, 1.0) if self.bytes_total else 0.0


def recover(
    log: Log,
    checkpoints: Checkpoints,
    source: ColumnsSource,
    progress: ReplayProgress,
    *,
    read_only: bool = False,
) -> Recovered:
    """Restores a channel from its newest valid checkpoint and the log after it, or from the whole log.

    `source` reads columns later. With `read_only` nothing on the disk changes, and the log cannot be started.

    Raises:
        LogCorruptError: A synced record is missing or damaged.
        KeyMissingError: A record is encrypted with a key that is not configured.
        UnknownVersionError: Another version of Millrace wrote a part of it.
    """
    for checkpoint in checkpoints.valid_checkpoints():
        recovery = _Recovery(source, checkpoint)
        needed = recovery.recovered.first_needed_segment
        try:
            return _replay(recovery, log, progress, read_only=read_only)
        except LogCorruptError:
            # A channel that stops keeping the previous checkpoint leaves its file behind, and its segments go. Such a
            # stale checkpoint is passed over; any other that the log contradicts is damage.
            if not checkpoint.is_previous or needed >= log.first_segment_id:
                raise
    return _replay(_Recovery(source, None), log, progress, read_only=read_only)


def _replay(recovery: "_Recovery", log: Log, progress: ReplayProgress, *, read_only: bool) -> Recovered:
    recovered = recovery.recovered
    start = recovered.checkpoint
    records = log.replay(start, first_needed=recovered.first_needed_segment, read_only=read_only)
    for portion in _within(progress.long_replays, _portions(records)):
        recovery.apply_all(portion)
        recovered.replayed_records += len(portion)
        recovered.replayed_bytes += sum([RECORD_HEAD_BYTES + record.location.payload_length for record in portion])
        progress.bytes_done = recovered.replayed_bytes
        if not progress.bytes_total:
            progress.bytes_total = log.byte_count_behind(start)
    # A log that was closed ends with a SYNC_POINT behind its last checkpoint, or behind the STATE that began it.
    recovered.is_checkpointed &= recovered.replayed_records <= (1 if start else 2)
    # Behind it there may be PUT records without a commit, which the next commit does not overwrite.
    recovered.queue.end_run()
    # Which of the reserved sequences a crashed process gave to events in memory, no record says, so all are skipped.
    recovered.next_sequence = max(recovery.next_sequence, recovery.reserved_sequence)
    return recovered


def _portions(records: Iterator[LogRecord]) -> Iterator[list[LogRecord]]:
    """Yields the records in lists that are not long, as each record keeps a part of its segment in memory."""
    portion: list[LogRecord] = []
    byte_count = 0
    for record in records:
        portion.append(record)
        byte_count += record.location.payload_length
        if len(portion) == _PORTION_RECORDS or byte_count >= _PORTION_BYTES:
            yield portion
            portion, byte_count = [], 0
    if portion:
        yield portion


def _within(
    long_replays: AbstractContextManager[object], portions: Iterator[list[LogRecord]]
) -> Iterator[list[LogRecord]]:
    """Yields the records: if they are many, those after the first within `long_replays`."""
    count = 0
    for portion in portions:
        count += len(portion)
        yield portion
        if count >= _LONG_REPLAY_RECORDS:
            break
    for portion in portions:
        with long_replays:
            yield portion
            yield from portions


class StateRecovery(Replay[Location]):
    """Recovers all of a channel but its events, which subclasses account for."""

    def __init__(self) -> None:
        super().__init__()
        self.recovered = Recovered()

    def restore_state(self, state: pb.State) -> None:
        recovered = self.recovered
        recovered.ledger = restore_ledger(state.producers)
        recovered.ended = EndedTxns()
        restore_ended(state.ended_txns, recovered.ended)
        recovered.claim = restore_claim(state.claim) if state.HasField("claim") else None

    def on_put(self, record: LogRecord) -> Location:
        # Its payload is neither read nor decoded here: most events are consumed before they are needed.
        return record.location

    def on_state(self, state: pb.State) -> None:
        self.note_time(state.last_commit_time)
        # A later STATE says what the records before it have led to already.
        if not self.has_state:
            self.restore_state(state)

    def on_memory_state(self, message: pb.MemoryState, puts: Sequence[Location], problem: str) -> None:
        self.note_time(message.state.last_commit_time)
        if not problem:
            # Unlike a later STATE it has news: stamps and transactions of commits that were in memory only.
            self.restore_state(message.state)
            self.persist_events(message, puts)

    def on_rollback(self, rollback: pb.Rollback) -> None:
        state = TxnState.EXPIRED if rollback.has_expired else TxnState.ROLLED_BACK
        self.recovered.ended.add(rollback.txn_id, Outcome(state))

    def on_claim(self, claim: pb.Claim) -> None:
        self.recovered.claim = restore_claim(claim)

    def on_commit(self, commit: pb.Commit, puts: Sequence[Location], takes: Sequence[pb.Take], problem: str) -> None:
        if problem:
            return
        self.commit_events(commit, puts, takes)
        commit_time = last_time_of(commit)
        for stamp in stamps_of(commit):
            self.recovered.ledger.accept(stamp, commit_time)
        if commit.forgotten_producer_id in self.recovered.ledger:
            self.recovered.ledger.forget(commit.forgotten_producer_id)
        self.note_time(commit_time)
        self._end_txns(commit)

    def note_time(self, commit_time: int) -> None:
        """Notes the time of a commit: no later one has an earlier time."""
        self.recovered.last_commit_time = max(self.recovered.last_commit_time, commit_time)

    def _end_txns(self, commit: pb.Commit) -> None:
        if not commit.txn_ids:
            return
        # Transactions that committed together share one receipt object.
        receipt = Receipt.of(
            commit.first_sequence,
            sum(commit.put_counts),
            commit.commit_time,
            is_deduplicated=commit.is_deduplicated,
        )
        for txn_id in commit.txn_ids:
            self.recovered.ended.add(txn_id, Outcome(TxnState.COMMITTED, receipt))

    @abstractmethod
    def commit_events(self, commit: pb.Commit, puts: Sequence[Location], takes: Sequence[pb.Take]) -> None:
        """Adds what a commit puts, and removes what it takes."""

    @abstractmethod
    def persist_events(self, message: pb.MemoryState, puts: Sequence[Location]) -> None:
        """Adds the events that a MEMORY_STATE has persisted."""


class _Recovery(StateRecovery):
    """Builds a channel's state from a checkpoint and the records after it."""

    def __init__(self, source: ColumnsSource, checkpoint: Checkpoint | None) -> None:
        super().__init__()
        self._source = source
        if checkpoint is not None:
            self._restore_checkpoint(checkpoint)

    def _restore_checkpoint(self, checkpoint: Checkpoint) -> None:
        message = pb.Checkpoint.FromString(checkpoint.state)
        self.has_state = True
        self.next_sequence = message.state.next_sequence
        self.reserved_sequence = message.state.reserved_sequence
        self.restore_state(message.state)
        recovered = self.recovered
        recovered.last_commit_time = message.state.last_commit_time
        recovered.checkpoint = checkpoint.position
        recovered.is_checkpointed = not checkpoint.is_previous
        recovered.first_needed_segment = first_needed_segment(message, checkpoint.position)
        for batch in restore_batches(message.batches, self._source):
            recovered.queue.append(batch)
            # PUT records without a commit may lie between two batches; the checkpoint does not say.
            recovered.queue.end_run()

    def apply_all(self, records: Sequence[LogRecord]) -> None:
        """Applies the next records; raises LogCorruptError where one contradicts itself or earlier ones."""
        start = 0
        while start < len(records):
            stop = pairs_end(records, start) if self.is_between_commits else start
            run = CommitRun.of(records[start:stop], self.next_sequence) if stop > start else None
            if run is not None:
                self._apply_run(run)
            else:
                # At least one, with which the next pairs may begin.
                stop = max(stop, start + 1)
                for record in records[start:stop]:
                    self._apply_located(record)
            start = stop

    def _apply_run(self, run: CommitRun) -> None:
        """Does what `apply` does with each record of plain commits."""
        recovered = self.recovered
        append = recovered.queue.append
        for batch in run.batches(self._source):
            append(batch)
        for stamp, commit_time in run.stamps():
            recovered.ledger.accept(stamp, commit_time)
        self.note_time(run.last_time)
        self.next_sequence = run.end_sequence

    def _apply_located(self, record: LogRecord) -> None:
        try:
            self.apply(record)
        except ContradictionError as error:
            place = f"segment {record.location.segment_id}: the record at byte {record.location.position}"
            raise LogCorruptError(f"{place} {error}") from None

    def on_lost_puts(self) -> None:
        self.recovered.queue.end_run()

    def on_memory_state(self, message: pb.MemoryState, puts: Sequence[Location], problem: str) -> None:
        # Its PUT records are no part of the run that the last commit may have begun.
        self.recovered.queue.end_run()
        super().on_memory_state(message, puts, problem)

    def persist_events(self, message: pb.MemoryState, puts: Sequence[Location]) -> None:
        self.recovered.queue.put_back(list(persisted_batches(message, puts, self._source)))

    def commit_events(self, commit: pb.Commit, puts: Sequence[Location], takes: Sequence[pb.Take]) -> None:
        queue = self.recovered.queue
        sequence = commit.first_sequence
        sizes = zip(commit.put_counts, commit.put_body_bytes, commit.put_raw_bytes, strict=True)
        for put, (count, body_bytes, raw_bytes) in zip(puts, sizes, strict=True):
            stored = StoredColumns.in_log(put, self._source, count, body_bytes, raw_bytes)
            if commit.commit_offsets:
                index = sequence - commit.first_sequence
                stored.offsets = array("I", commit.commit_offsets[index : index + count])
            batch = StoredBatch(sequence, Window.whole(stored), commit.commit_time)
            queue.append(batch)
            sequence = batch.end_sequence
        for take in takes:
            for first, count, body_bytes in zip(take.first_sequences, take.counts, take.body_bytes, strict=True):
                # Events that are not in the queue were in a segment that was removed because nothing needed it.
                if queue.remove_range(first, count, body_bytes) not in {0, count}:
                    raise ContradictionError(
                        f"takes events {first} to {first + count - 1}; only some are in the channel"
                    )
