"""What a channel was before its server ended, from its checkpoint and its log."""

from dataclasses import dataclass, field

from millrace_server.channels.batches import ColumnsSource, StoredBatch, StoredColumns, Window
from millrace_server.channels.commits import ClaimNote
from millrace_server.channels.contents import Receipt
from millrace_server.channels.queue import EventQueue
from millrace_server.channels.records import (
    claim_note,
    kept_batches,
    restore_batches,
    restore_ended,
    restore_ledger,
    stamps_of,
)
from millrace_server.channels.stamps import StampLedger
from millrace_server.channels.transactions import EndedTxns, Outcome, TxnState
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import Checkpoint, CheckpointFiles
from millrace_server.wal.format import RECORD_HEAD_BYTES, Kind
from millrace_server.wal.log import LogRecord, WriteAheadLog
from millrace_server.wal.records import Location, LogPosition
from millrace_server.wal.segments import LogCorruptError


@dataclass(slots=True)
class Recovered:
    """A channel as it was, all that was acknowledged included, but for what was in memory only.

    Open transactions have rolled back.
    """

    queue: EventQueue = field(default_factory=EventQueue)
    ledger: StampLedger = field(default_factory=StampLedger)
    ended: EndedTxns = field(default_factory=EndedTxns)
    claim: ClaimNote | None = None
    next_sequence: int = 1
    """Behind all that were given, also to events that were in memory only."""
    first_needed_segment: int = 0
    """The oldest segment that the checkpoint needs from which this was made; 0 where there was none."""
    checkpoint: LogPosition | None = None
    """Where replay began; None where that was the log's beginning."""
    replayed_records: int = 0
    replayed_bytes: int = 0


@dataclass(slots=True)
class ReplayProgress:
    """How far the opening of a channel has come."""

    bytes_done: int = 0
    bytes_total: int = 0
    """About how many there are in all: what is set aside behind the log's end counts too."""

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return min(self.bytes_done / self.bytes_total, 1.0) if self.bytes_total else 0.0


def recover(
    log: WriteAheadLog,
    checkpoints: CheckpointFiles,
    source: ColumnsSource,
    progress: ReplayProgress,
    *,
    settles: bool = True,
) -> Recovered:
    """Restores a channel from its newest good checkpoint and what the log holds behind it, or from the whole log.

    Args:
        log: The log, which is replayed to its end.
        checkpoints: The checkpoints.
        source: Reads columns back later.
        progress: Told meanwhile how far this is.
        settles: Whether the log is to be written behind; else nothing on the disk is changed.

    Raises:
        LogCorruptError: Something that was synced is missing or is not what was written.
        KeyMissingError: Something is encrypted with a key that was not given.
        UnknownVersionError: Another version of Millrace wrote a part of it.
    """
    for checkpoint in checkpoints.good_ones():
        replay = _Replay(source, checkpoint)
        needed = replay.recovered.first_needed_segment
        try:
            _read_back(replay, log, progress, settles=settles)
        except LogCorruptError:
            # Where the one before the newest is not to be kept any more, an old one stays, and the log goes on without.
            if not checkpoint.is_previous or needed >= log.first_segment_id:
                raise
        else:
            return replay.recovered
    replay = _Replay(source, None)
    _read_back(replay, log, progress, settles=settles)
    return replay.recovered


def _read_back(replay: "_Replay", log: WriteAheadLog, progress: ReplayProgress, *, settles: bool) -> None:
    start, needed = replay.recovered.checkpoint, replay.recovered.first_needed_segment
    for record in log.replay(start, needed=needed, settles=settles):
        replay.apply(record)
        progress.bytes_total = progress.bytes_total or log.byte_count_behind(start)
        progress.bytes_done = replay.recovered.replayed_bytes
    replay.end()


class _Replay:
    """Applies records to what is recovered so far."""

    def __init__(self, source: ColumnsSource, checkpoint: Checkpoint | None) -> None:
        self._source = source
        self._has_state = False
        self._reserved_sequence = 0
        self._puts: list[Location] = []
        self._takes: list[pb.Take] = []
        self.recovered = Recovered()
        if checkpoint is not None:
            self._restore(checkpoint)

    def _restore(self, checkpoint: Checkpoint) -> None:
        message = pb.Checkpoint.FromString(checkpoint.state)
        self._restore_state(message.state)
        recovered = self.recovered
        recovered.checkpoint = checkpoint.position
        recovered.first_needed_segment = min([*message.batches.segment_ids, checkpoint.position.segment_id])
        for batch in restore_batches(message.batches, self._source):
            recovered.queue.append(batch)

    def _restore_state(self, state: pb.State) -> None:
        self._has_state = True
        recovered = self.recovered
        recovered.next_sequence = state.next_sequence
        self._reserved_sequence = state.reserved_sequence
        recovered.ledger = restore_ledger(state.producers)
        recovered.ended = EndedTxns()
        restore_ended(state.ended_txns, recovered.ended)
        recovered.claim = claim_note(state.claim) if state.HasField("claim") else None

    def apply(self, record: LogRecord) -> None:
        """Applies the next record."""
        recovered = self.recovered
        recovered.replayed_records += 1
        recovered.replayed_bytes += RECORD_HEAD_BYTES + record.location.payload_length
        match record.kind:
            case Kind.PUT:
                self._puts.append(record.location)
            case Kind.TAKE:
                self._takes.append(pb.Take.FromString(bytes(record.payload)))
            case Kind.COMMIT:
                self._commit(record.location, pb.Commit.FromString(bytes(record.payload)))
            case Kind.ROLLBACK:
                rollback = pb.Rollback.FromString(bytes(record.payload))
                state = TxnState.EXPIRED if rollback.has_expired else TxnState.ROLLED_BACK
                recovered.ended.add(rollback.txn_id, Outcome(state))
            case Kind.CLAIM:
                recovered.claim = claim_note(pb.Claim.FromString(bytes(record.payload)))
            case Kind.STATE:
                self._state(record.location, pb.State.FromString(bytes(record.payload)))
            case Kind.KEEP:
                self._keep(record.location, pb.Keep.FromString(bytes(record.payload)))
            case _:
                assert record.kind is Kind.MARK, "it says only how far the log was synced"

    def end(self) -> None:
        """There are no more records."""
        # What a process gave of its reserve to events in memory, nobody knows.
        self.recovered.next_sequence = max(self.recovered.next_sequence, self._reserved_sequence)

    def _state(self, location: Location, state: pb.State) -> None:
        if not self._has_state:
            self._restore_state(state)
        else:
            self._go_on_from(state.next_sequence, location, "the next sequence is")
            self._reserved_sequence = state.reserved_sequence

    def _keep(self, location: Location, keep: pb.Keep) -> None:
        puts = self._puts[len(self._puts) - len(keep.put_counts) :]
        self._puts, self._takes = [], []
        if len(puts) != len(keep.put_counts):
            raise _contradicted(location, f"it keeps {len(keep.put_counts)} puts", self.recovered)
        self._go_on_from(keep.state.next_sequence, location, "the next sequence is")
        self._restore_state(keep.state)
        self.recovered.queue.put_back(list(kept_batches(keep, puts, self._source)))

    def _go_on_from(self, next_sequence: int, location: Location, what: str) -> None:
        """Takes a record's word for the next sequence: as it was, or behind some that events in memory were given."""
        expected = self.recovered.next_sequence
        if not expected <= next_sequence <= max(expected, self._reserved_sequence):
            raise _contradicted(location, f"{what} {next_sequence}", self.recovered)
        self.recovered.next_sequence = next_sequence

    def _commit(self, location: Location, commit: pb.Commit) -> None:
        recovered = self.recovered
        # What a commit did not reach before a crash may stand before its own records, and never happened.
        puts = self._puts[len(self._puts) - len(commit.put_counts) :]
        takes = self._takes[len(self._takes) - commit.take_records :]
        self._puts, self._takes = [], []
        if (len(puts), len(takes)) != (len(commit.put_counts), commit.take_records):
            what = f"it has {len(commit.put_counts)} puts and {commit.take_records} takes"
            raise _contradicted(location, what, recovered)
        self._go_on_from(commit.first_sequence, location, "its first sequence is")
        sizes = zip(commit.put_counts, commit.put_body_bytes, commit.put_raw_bytes, strict=True)
        for put, (count, body_bytes, raw_bytes) in zip(puts, sizes, strict=True):
            stored = StoredColumns.in_log(put, self._source, count, body_bytes, raw_bytes)
            batch = StoredBatch(recovered.next_sequence, Window.whole(stored))
            recovered.queue.append(batch)
            recovered.next_sequence = batch.end_sequence
        for take in takes:
            # What is not there went with a segment that nothing needed any more.
            for taken in zip(take.first_sequences, take.counts, take.body_bytes, strict=True):
                recovered.queue.remove_range(*taken)
        for stamp in stamps_of(commit):
            recovered.ledger.accept(stamp)
        self._end_txns(commit)

    def _end_txns(self, commit: pb.Commit) -> None:
        if not commit.txn_ids:
            return
        count = sum(commit.put_counts)
        first = commit.first_sequence if count else 0
        receipt = Receipt(first, first + count - 1 if count else 0, commit.is_deduplicated)
        for txn_id in commit.txn_ids:
            self.recovered.ended.add(txn_id, Outcome(TxnState.COMMITTED, receipt))


def _contradicted(location: Location, what: str, recovered: Recovered) -> LogCorruptError:
    return LogCorruptError(
        f"segment {location.segment_id}: the record at byte {location.position} says that {what}, and those before it "
        f"lead to sequence {recovered.next_sequence}"
    )
