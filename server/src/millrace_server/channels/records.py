"""Payloads of a channel's log records and the state in its checkpoints: encoding and decoding.

`protos/storage/v1/records.proto` specifies the messages, FORMAT.md in the `wal` package the records.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from time import sleep
from typing import TypeVar

from millrace.columns import HEADER_KEYS_MAX
from millrace.wire_format import field as encoded_field
from millrace_server.channels.batches import ColumnsSource, StoredBatch, StoredColumns, Window
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.queue import OFFSET_MAX, is_small, may_merge
from millrace_server.channels.runs import merged
from millrace_server.channels.stamps import IntervalSet, Stamp, StampLedger
from millrace_server.channels.transaction import EndedTxns, Outcome, TxnState
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Kind
from millrace_server.wal.records import Location, LogPosition, Record

SLICE_ITEMS = 500
"""Items that are encoded at once: for about half a millisecond, in which the event loop may have to wait."""

_PAUSE_SECONDS = 0.001

_ROLLED_BACK = 0
_EXPIRED = 1
_COMMITTED_FROM = 2

T = TypeVar("T")


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """Yields items in slices, for a thread that encodes them, and sleeps behind each full one.

    That gives the interpreter to the event loop. Without it, each call would have to wait several times until it is
    taken away from this thread, each time for 5 ms.
    """
    rest = iter(items)
    while items_now := list(islice(rest, SLICE_ITEMS)):
        yield items_now
        if len(items_now) == SLICE_ITEMS:
            sleep(_PAUSE_SECONDS)


# Records.


def commit_records(commit: Commit) -> list[Record]:
    """Returns the records of a prepared commit. The COMMIT, which gives the others effect, comes last."""
    records: list[Record] = []
    message = pb.Commit()
    # Field by field, and only what most commits have: with keywords for all of them it takes longer.
    message.first_sequence, message.commit_time = commit.first_sequence, commit.commit_time
    if commit.receipt.is_deduplicated:
        message.is_deduplicated = True
    if commit.txn_ids:
        message.txn_ids.extend(commit.txn_ids)
    if commit.forgotten_producer:
        message.forgotten_producer_id = commit.forgotten_producer
    for batch in commit.batches:
        stored = batch.window.stored
        message.put_counts.append(stored.count)
        message.put_body_bytes.append(stored.body_bytes)
        message.put_raw_bytes.append(stored.raw_bytes)
        records.append((Kind.PUT, [stored.raw]))
    if commit.acceptance is not None:
        _add_stamps(message, [commit])
    if takes := [take for take in commit.takes if take.is_in_log]:
        message.take_records = 1
        records.append((Kind.TAKE, [_take_payload(takes)]))
    records.append((Kind.COMMIT, [message.SerializeToString()]))
    return records


def _add_stamps(message: pb.Commit, commits: Iterable[Commit]) -> None:
    accepted: dict[tuple[str, str], list[list[int]]] = {}
    for commit in commits:
        if commit.acceptance is not None:
            # Numbers that were accepted before are left out: they may belong to events in memory only.
            ranges = accepted.setdefault((commit.acceptance.producer_id, commit.acceptance.owner), [])
            for first, last in commit.acceptance.new:
                if ranges and ranges[-1][1] + 1 == first:
                    ranges[-1][1] = last
                else:
                    ranges.append([first, last])
    stamps = [
        pb.Stamp(producer_id=producer_id, first=first, last=last, owner=owner)
        for (producer_id, owner), ranges in accepted.items()
        for first, last in ranges
    ]
    if stamps:
        message.stamp.CopyFrom(stamps[0])
        message.more_stamps.extend(stamps[1:])


def is_small_append(commit: Commit) -> bool:
    """Whether a commit may share its records with its neighbours: nothing later refers to it alone."""
    return len(commit.puts) == 1 and not commit.takes and not commit.txn_ids and is_small(commit.puts[0].stored)


def merged_records(commits: Sequence[Commit]) -> Iterator[tuple[int, list[Record]]]:
    """Yields the records of small appends in their order, each time with the number of appends that they store.

    Appends that share a PUT record become parts of its columns.
    """
    for start, stop in _neighbours(commits):
        if stop - start > 1 and (merged_record := _merged_record(commits[start:stop])) is not None:
            yield stop - start, merged_record
        else:
            yield from ((1, commit_records(commit)) for commit in commits[start:stop])


def _neighbours(commits: Sequence[Commit]) -> Iterator[tuple[int, int]]:
    """Yields the range of indexes of each of the appends that may share a record."""
    start = count = raw_bytes = body_bytes = 0
    for index, commit in enumerate(commits):
        count, raw_bytes, body_bytes = (
            count + commit.put_count,
            raw_bytes + commit.put_raw_bytes,
            body_bytes + commit.put_body_bytes,
        )
        is_near = commit.commit_time - commits[start].commit_time <= OFFSET_MAX
        if start < index and not (is_near and may_merge(count, raw_bytes, body_bytes, raw_bytes)):
            yield start, index
            start, count, raw_bytes, body_bytes = index, commit.put_count, commit.put_raw_bytes, commit.put_body_bytes
    yield start, len(commits)


def _merged_record(commits: Sequence[Commit]) -> list[Record] | None:
    """Returns the PUT and the COMMIT of several appends; None where their headers have too many keys."""
    raw, key_count = merged([commit.puts[0].stored.raw for commit in commits])
    if key_count > HEADER_KEYS_MAX:
        return None
    first_sequence, count = commits[0].first_sequence, sum([commit.put_count for commit in commits])
    stored = StoredColumns(raw, count, sum([commit.put_body_bytes for commit in commits]))
    time = commits[0].commit_time
    if commits[-1].commit_time > time:
        stored.offsets = array("I", [commit.commit_time - time for commit in commits for _ in range(commit.put_count)])
    for commit in commits:
        start = commit.first_sequence - first_sequence
        window = Window(stored, start, start + commit.put_count, commit.put_body_bytes)
        commit.merged = StoredBatch(commit.first_sequence, window, time)
    message = pb.Commit(
        first_sequence=first_sequence,
        put_counts=[count],
        put_body_bytes=[stored.body_bytes],
        put_raw_bytes=[stored.raw_bytes],
        commit_time=time,
        commit_offsets=stored.offsets,
    )
    _add_stamps(message, commits)
    return [*put_records([stored]), (Kind.COMMIT, [message.SerializeToString()])]


def put_records(stored: Iterable[StoredColumns]) -> list[Record]:
    """Returns the PUT records of columns."""
    return [(Kind.PUT, [columns.raw]) for columns in stored]


def _take_payload(takes: Iterable[StoredBatch]) -> bytes:
    take = pb.Take()
    for batch in takes:
        take.first_sequences.append(batch.first_sequence)
        take.counts.append(batch.count)
        take.body_bytes.append(batch.window.body_bytes)
    return take.SerializeToString()


def rollback_record(txn_id: str, *, has_expired: bool) -> Record:
    """Returns the record of a rollback."""
    return Kind.ROLLBACK, [pb.Rollback(txn_id=txn_id, has_expired=has_expired).SerializeToString()]


def claim_record(claim: ClaimRecord) -> Record:
    """Returns the record of a claim that begins or ends."""
    return Kind.CLAIM, [_claim_message(claim).SerializeToString()]


def state_record(state: "State") -> Record:
    """Returns the first record of a segment."""
    return Kind.STATE, list(state.encoded())


def _claim_message(claim: ClaimRecord) -> pb.Claim:
    return pb.Claim(
        reader_id=claim.reader_id,
        epoch=claim.epoch,
        lease_seconds=claim.lease_seconds,
        has_ended=claim.has_ended,
        owner=claim.owner,
    )


def restore_claim(message: pb.Claim) -> ClaimRecord:
    """Returns the claim in a CLAIM record or a state."""
    return ClaimRecord(message.reader_id, message.epoch, message.lease_seconds, message.has_ended, message.owner)


def stamps_of(commit: pb.Commit) -> list[Stamp]:
    """Returns the producer's numbers that a COMMIT record stores."""
    stamps = [commit.stamp, *commit.more_stamps] if commit.HasField("stamp") else []
    return [Stamp(stamp.producer_id, stamp.first, stamp.last, owner=stamp.owner) for stamp in stamps]


def memory_state_record(state: "State", stored: Sequence[StoredColumns], batches: Sequence[StoredBatch]) -> Record:
    """Returns the MEMORY_STATE record that persists a spillable channel's state, and some events in memory.

    `batches` are the parts of the preceding PUT records' `stored` columns that are still in the channel.
    """
    indexes = {id(columns): index for index, columns in enumerate(stored)}
    message = pb.MemoryState(
        put_counts=[columns.count for columns in stored],
        put_body_bytes=[columns.body_bytes for columns in stored],
        put_raw_bytes=[columns.raw_bytes for columns in stored],
        first_sequences=[batch.first_sequence for batch in batches],
        put_indexes=[indexes[id(batch.window.stored)] for batch in batches],
        starts=[batch.window.start for batch in batches],
        stops=[batch.window.stop for batch in batches],
        body_bytes=[batch.window.body_bytes for batch in batches],
        commit_time_steps=_steps([batch.commit_time for batch in batches]),
    )
    return Kind.MEMORY_STATE, [*state.encoded_in_field(), message.SerializeToString()]


def persisted_batches(
    message: pb.MemoryState, puts: Sequence[Location], source: ColumnsSource
) -> Iterator[StoredBatch]:
    """Yields the events that a MEMORY_STATE record has persisted; `puts` are the locations of its PUT records."""
    sizes = zip(message.put_counts, message.put_body_bytes, message.put_raw_bytes, strict=True)
    stored = [StoredColumns.in_log(put, source, *size) for put, size in zip(puts, sizes, strict=True)]
    windows = zip(
        message.first_sequences,
        message.put_indexes,
        message.starts,
        message.stops,
        message.body_bytes,
        _times(message.commit_time_steps, len(message.starts)),
        strict=True,
    )
    for first_sequence, index, start, stop, body_bytes, commit_time in windows:
        yield StoredBatch(first_sequence, Window(stored[index], start, stop, body_bytes), commit_time)


# States.


@dataclass(frozen=True, slots=True)
class State:
    """A channel's state at one moment, without its events. Nothing of it changes, so that any thread may encode it.

    Sequences below `reserved_sequence` may be assigned to events in memory, which the log does not mention; or, with a
    `kept_sequence`, a repair or a migration has left gaps there.
    """

    next_sequence: int
    producers: Mapping[str, IntervalSet] = field(default_factory=dict)
    ended: Sequence[tuple[str, Outcome]] = ()
    claim: ClaimRecord | None = None
    last_commit_time: int = 0
    reserved_sequence: int = 0
    kept_sequence: int = 0

    def encoded(self) -> Iterator[bytes]:
        """Yields the encoded message in pieces, as `slices` does: one after the other, protobuf joins their lists."""
        yield pb.State(
            next_sequence=self.next_sequence,
            claim=None if self.claim is None else _claim_message(self.claim),
            reserved_sequence=self.reserved_sequence,
            last_commit_time=self.last_commit_time,
            kept_sequence=self.kept_sequence,
        ).SerializeToString()
        for producers in slices(self.producers.items()):
            yield pb.State(producers=_producers_message(producers)).SerializeToString()
        for ended in _ended_messages(self.ended):
            yield pb.State(ended_txns=ended).SerializeToString()

    def encoded_in_field(self) -> Iterator[bytes]:
        """Yields the same as the first field of a message."""
        return (encoded_field(1, piece) for piece in self.encoded())


def _steps(times: Sequence[int]) -> Sequence[int]:
    """Returns each time less the one before; none if no time is known. Most steps take a third of a time's bytes."""
    return [time - before for before, time in pairwise([0, *times])] if any(times) else ()


def _times(steps: Sequence[int], count: int) -> Sequence[int]:
    """Returns the times of which `_steps` returned the steps."""
    return list(accumulate(steps)) if steps else [0] * count


def _producers_message(producers: Sequence[tuple[str, IntervalSet]]) -> pb.Producers:
    return pb.Producers(
        producer_ids=[producer_id for producer_id, _ in producers],
        interval_counts=[len(intervals) for _, intervals in producers],
        firsts=[first for _, intervals in producers for first in intervals.firsts],
        lasts=[last for _, intervals in producers for last in intervals.lasts],
        last_seen=[intervals.seen_at for _, intervals in producers],
        owners=[intervals.owner for _, intervals in producers],
    )


def restore_ledger(message: pb.Producers) -> StampLedger:
    """Returns the ledger in a state."""
    ledger = StampLedger()
    intervals = zip(message.firsts, message.lasts, strict=True)
    last_seen = message.last_seen or [0] * len(message.producer_ids)
    owners = message.owners or [""] * len(message.producer_ids)
    for producer_id, count, seen_at, owner in zip(
        message.producer_ids, message.interval_counts, last_seen, owners, strict=True
    ):
        ledger.restore(producer_id, [next(intervals) for _ in range(count)], seen_at, owner)
    return ledger


def _ended_messages(ended: Sequence[tuple[str, Outcome]]) -> Iterator[pb.EndedTxns]:
    # Transactions that were committed together share a receipt: a repeat that names some of them is known by that.
    codes: dict[int, int] = {}
    last_time = 0
    for outcomes in slices(ended):
        receipts = {id(receipt): receipt for _, outcome in outcomes if (receipt := outcome.receipt) is not None}
        new = [receipt for key, receipt in receipts.items() if key not in codes]
        codes |= {id(receipt): code for code, receipt in enumerate(new, _COMMITTED_FROM + len(codes))}
        times = [last_time, *[receipt.commit_time for receipt in new]]
        last_time = times[-1]
        yield pb.EndedTxns(
            txn_ids=[txn_id for txn_id, _ in outcomes],
            outcomes=[
                codes.get(id(outcome.receipt)) or (_EXPIRED if outcome.state is TxnState.EXPIRED else _ROLLED_BACK)
                for _, outcome in outcomes
            ],
            first_sequences=[receipt.first_sequence for receipt in new],
            last_sequences=[receipt.last_sequence for receipt in new],
            are_deduplicated=[receipt.is_deduplicated for receipt in new],
            commit_time_steps=[time - before for before, time in pairwise(times)],
        )


def restore_ended(message: pb.EndedTxns, ended: EndedTxns) -> None:
    """Adds the ended transactions in a state to `ended`."""
    times = _times(message.commit_time_steps, len(message.first_sequences))
    fields = zip(message.first_sequences, message.last_sequences, message.are_deduplicated, times, strict=True)
    receipts = [Receipt(*receipt) for receipt in fields]
    for txn_id, code in zip(message.txn_ids, message.outcomes, strict=True):
        if code >= _COMMITTED_FROM:
            ended.add(txn_id, Outcome(TxnState.COMMITTED, receipts[code - _COMMITTED_FROM]))
        else:
            ended.add(txn_id, Outcome(TxnState.EXPIRED if code == _EXPIRED else TxnState.ROLLED_BACK))


# Events of a checkpoint.


def batches_message(batches: Sequence[StoredBatch], before: StoredBatch | None = None) -> pb.Batches:
    """Returns the message of batches that all are in the log, by sequence, behind the message that ends with `before`.

    Encoded one after the other, such messages are one: protobuf joins their lists.
    """
    places = [_located(batch) for batch in batches]
    stored = [batch.window.stored for batch in batches]
    times = [before.commit_time if before else 0, *[batch.commit_time for batch in batches]]
    return pb.Batches(
        first_sequences=[batch.first_sequence for batch in batches],
        starts=[batch.window.start for batch in batches],
        stops=[batch.window.stop for batch in batches],
        body_bytes=[batch.window.body_bytes for batch in batches],
        segment_ids=[place.segment_id for place in places],
        positions=[place.position for place in places],
        payload_lengths=[place.payload_length for place in places],
        record_counts=[columns.count for columns in stored],
        record_body_bytes=[columns.body_bytes for columns in stored],
        record_raw_bytes=[columns.raw_bytes for columns in stored],
        put_counts=[columns.record_count for columns in stored],
        commit_time_steps=[time - previous for previous, time in pairwise(times)],
        commit_offsets=[
            b"" if columns is previous else _encoded_offsets(columns)
            for previous, columns in zip([before.window.stored if before else None, *stored], stored, strict=False)
        ],
    )


def _encoded_offsets(columns: StoredColumns) -> bytes:
    return _little_endian(columns.offsets[:]).tobytes() if columns.offsets else b""


def _decoded_offsets(encoded: bytes) -> "array[int] | None":
    return _little_endian(array("I", encoded)) if encoded else None


def _little_endian(offsets: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets


def first_needed_segment(checkpoint: pb.Checkpoint, position: LogPosition) -> int:
    """Returns the oldest segment that a checkpoint at a log position refers to."""
    return min([*checkpoint.batches.segment_ids, position.segment_id])


def _located(batch: StoredBatch) -> Location:
    location = batch.window.stored.location
    assert location is not None, "what is committed lies in the log"
    return location


def restore_batches(message: pb.Batches, source: ColumnsSource) -> Iterator[StoredBatch]:
    """Yields the batches of a checkpoint in order, and joins neighbours in one PUT record or run.

    They may be separate because a transaction had taken some of them. If it rolled back, the log after the checkpoint
    may take them as one range.
    """
    stored_at: dict[Location, StoredColumns] = {}
    places = map(Location, message.segment_ids, message.positions, message.payload_lengths)
    # A checkpoint of an earlier version has none: each place is one PUT record.
    count = len(message.positions)
    put_counts = message.put_counts or [1] * count
    sizes = zip(message.record_counts, message.record_body_bytes, message.record_raw_bytes, strict=True)
    windows = zip(message.first_sequences, message.starts, message.stops, message.body_bytes, strict=True)
    times = zip(_times(message.commit_time_steps, count), message.commit_offsets or [b""] * count, strict=True)
    before: StoredBatch | None = None
    each = zip(places, sizes, put_counts, windows, times, strict=True)
    for location, size, put_count, (first_sequence, start, stop, body_bytes), (commit_time, offsets) in each:
        stored = stored_at.get(location)
        if stored is None:
            stored = stored_at[location] = StoredColumns.in_log(location, source, *size, record_count=put_count)
            stored.offsets = _decoded_offsets(offsets)
        batch = StoredBatch(first_sequence, Window(stored, start, stop, body_bytes), commit_time)
        joined = before.joined(batch) if before else None
        if before and not joined:
            yield before
        before = joined or batch
    if before:
        yield before
