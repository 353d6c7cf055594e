from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace_server.channels import records
from millrace_server.channels.batches import StoredBatch, StoredColumns, Window
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.records import (
    State,
    batches_message,
    claim_record,
    commit_records,
    memory_state_record,
    persisted_batches,
    restore_batches,
    restore_claim,
    restore_ended,
    restore_ledger,
    rollback_record,
    stamps_of,
    state_record,
)
from millrace_server.channels.stamps import Acceptance, Stamp, StampLedger
from millrace_server.channels.transaction import EndedTxns, Outcome, TxnState
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Kind
from millrace_server.wal.records import Location
from tests.channel_events import SEQUENCE_MAX, batch, bodies_of, stored

NUMBERS = st.one_of(st.integers(0, 50), st.integers(SEQUENCE_MAX - 50, SEQUENCE_MAX))
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda pair: (min(pair), max(pair)))
IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
LEDGERS = st.lists(st.tuples(IDS, RANGES), max_size=20)


def ledger_of(accepted: Sequence[tuple[str, tuple[int, int]]]) -> StampLedger:
    ledger = StampLedger()
    for producer_id, (first, last) in accepted:
        ledger.accept(Stamp(producer_id, first, last, owner=producer_id if first % 2 else ""))
    return ledger


def state_of(
    *, ledger: StampLedger | None = None, ended: EndedTxns | None = None, claim: ClaimRecord | None = None
) -> pb.State:
    """The state after encoding and decoding."""
    state = State(7, (ledger or StampLedger()).snapshot(), list(ended.items()) if ended else (), claim)
    kind, pieces = state_record(state)
    assert kind is Kind.STATE
    return pb.State.FromString(b"".join(pieces))


class Source:
    """Reads columns that only a log has."""

    def __init__(self, *bodies: bytes) -> None:
        self._bodies = bodies

    def read(self, _stored: StoredColumns) -> bytes:
        return bytes(stored(*self._bodies).raw)


def prepared(
    commit: Commit,
    *batches: StoredBatch,
    txn_ids: Sequence[str] = (),
    acceptance: Acceptance | None = None,
    receipt: Receipt | None = None,
) -> Commit:
    """A commit as prepared by its contents."""
    commit.txn_ids, commit.batches, commit.first_sequence = txn_ids, batches, 5
    commit.acceptance, commit.receipt, commit.commit_time = acceptance, receipt or Receipt(), 9
    return commit


def in_log(one: StoredBatch, position: int) -> StoredBatch:
    """The same batch with a place in the log."""
    one.window.stored.locate(Location(1, position, 10), Source())
    return one


def test_commit_records_put_the_commit_last() -> None:
    """The COMMIT record makes the others valid: the requests' columns unchanged, and the ranges taken.

    What was in memory only needs no record to be taken, and numbers that were accepted before are not accepted by it.
    """
    puts = [batch(5, b"a", b"bb"), batch(7, b"")]
    takes = [in_log(batch(1, b"x"), 64), batch(2, b"in memory only"), in_log(batch(3, b"yy", b"z"), 128)]
    commit = Commit([one.window for one in puts], takes, Stamp("p", 0, SEQUENCE_MAX))
    accepted = Acceptance("p", [(0, 4), (7, 7), (9, SEQUENCE_MAX)], None)
    receipt = Receipt(5, 7, is_deduplicated=True)
    records = commit_records(prepared(commit, *puts, txn_ids=["t", "u"], acceptance=accepted, receipt=receipt))
    assert [kind for kind, _ in records] == [Kind.PUT, Kind.PUT, Kind.TAKE, Kind.COMMIT]
    payloads = [b"".join(pieces) for _, pieces in records]
    assert payloads[:2] == [one.window.stored.raw for one in puts]
    take = pb.Take.FromString(payloads[2])
    assert (list(take.first_sequences), list(take.counts), list(take.body_bytes)) == ([1, 3], [1, 2], [1, 3])
    message = pb.Commit.FromString(payloads[3])
    assert (list(message.txn_ids), message.first_sequence, message.take_records) == (["t", "u"], 5, 1)
    assert (list(message.put_counts), list(message.put_body_bytes)) == ([2, 1], [3, 0])
    assert list(message.put_raw_bytes) == [len(payload) for payload in payloads[:2]]
    assert stamps_of(message) == [Stamp("p", 0, 4), Stamp("p", 7, 7), Stamp("p", 9, SEQUENCE_MAX)]
    assert message.is_deduplicated
    assert message.commit_time == 9


def test_commit_records_of_what_does_little_are_few() -> None:
    """An empty commit has one record, and no stamp unless it has one."""
    ((kind, (payload,)),) = commit_records(prepared(Commit([], []), txn_ids=["t"]))
    commit = pb.Commit.FromString(bytes(payload))
    assert (kind, commit.take_records, stamps_of(commit)) == (Kind.COMMIT, 0, [])
    assert not commit.is_deduplicated


def test_kept_batches_are_those_that_the_record_was_made_of() -> None:
    """The kept batches have their sequences and windows on the columns put before, which several may share."""
    first, second = stored(b"a", b"bb", b"ccc"), stored(b"d")
    batches = [
        StoredBatch(3, Window(first, 0, 1, 1), 70),
        StoredBatch(5, Window(first, 2, 3, 3), 70),
        StoredBatch(6, Window.whole(second), 90),
    ]
    kind, pieces = memory_state_record(State(9), [first, second], batches)
    keep = pb.MemoryState.FromString(b"".join(pieces))
    puts = [Location(1, 64, first.raw_bytes), Location(1, 200, second.raw_bytes)]
    kept = list(persisted_batches(keep, puts, Source(b"a", b"bb", b"ccc")))
    assert (kind, keep.state.next_sequence) == (Kind.MEMORY_STATE, 9)
    assert [(one.first_sequence, one.count, one.window.body_bytes) for one in kept] == [(3, 1, 1), (5, 1, 3), (6, 1, 1)]
    assert [one.window.stored.location for one in kept] == [puts[0], puts[0], puts[1]]
    assert kept[0].window.stored is kept[1].window.stored
    assert bodies_of(kept[:2]) == [b"a", b"ccc"]


@pytest.mark.parametrize("has_expired", [False, True])
def test_rollback_record_contains_its_cause(*, has_expired: bool) -> None:
    """The cause is the caller or the lease."""
    kind, (payload,) = rollback_record("t", has_expired=has_expired)
    rollback = pb.Rollback.FromString(bytes(payload))
    assert (kind, rollback.txn_id, rollback.has_expired) == (Kind.ROLLBACK, "t", has_expired)


@pytest.mark.parametrize(
    "note", [ClaimRecord("r", SEQUENCE_MAX, 0.25, owner="é"), ClaimRecord("r", 1, 3600.0, has_ended=True)]
)
def test_claim_record_is_read_back_as_it_was(note: ClaimRecord) -> None:
    """Reader, epoch, duration and end are restored from a record and from a state."""
    kind, (payload,) = claim_record(note)
    assert kind is Kind.CLAIM
    assert restore_claim(pb.Claim.FromString(bytes(payload))) == note
    assert restore_claim(state_of(claim=note).claim) == note


def test_state_of_a_new_channel_is_empty() -> None:
    """No claim and a claim without an owner are distinguished."""
    state = state_of()
    assert (state.next_sequence, state.HasField("claim")) == (7, False)


@pytest.fixture(params=[1, 2, 500])
def _sliced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encodes so many producers and transactions at once."""
    monkeypatch.setattr(records, "SLICE_ITEMS", request.param)
    monkeypatch.setattr(records, "_PAUSE_SECONDS", 0)


@pytest.mark.usefixtures("_sliced")
@given(accepted=LEDGERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_state_with_any_stamps_restores_them(accepted: list[tuple[str, tuple[int, int]]]) -> None:
    """All numbers and owners of all producers are restored, and the order of the producers' last activity."""
    ledger = ledger_of(accepted)
    restored = restore_ledger(state_of(ledger=ledger).producers)
    assert list(restored.producers()) == list(ledger.producers())
    owners, restored_owners = ([known.owner for known in one.snapshot().values()] for one in (ledger, restored))
    assert restored_owners == owners


@pytest.mark.usefixtures("_sliced")
def test_state_with_ended_transactions_restores_them() -> None:
    """The outcomes are restored in order; transactions that were committed together share their receipt."""
    ended = EndedTxns()
    together, alone = Receipt(1, SEQUENCE_MAX, is_deduplicated=True), Receipt(1, SEQUENCE_MAX, is_deduplicated=True)
    ended.add("a", Outcome(TxnState.COMMITTED, together))
    ended.add("b", Outcome(TxnState.ROLLED_BACK))
    ended.add("c", Outcome(TxnState.EXPIRED))
    ended.add("d", Outcome(TxnState.COMMITTED, together))
    ended.add("e", Outcome(TxnState.COMMITTED, alone))
    ended.add("f", Outcome(TxnState.COMMITTED, Receipt()))
    ended.add("g", Outcome(TxnState.COMMITTED, Receipt(7, 7, commit_time=1_790_000_000_000_000)))
    restored = EndedTxns()
    restore_ended(state_of(ended=ended).ended_txns, restored)
    assert list(restored.items()) == list(ended.items())
    receipts = {txn_id: outcome.receipt for txn_id, outcome in restored.items()}
    assert receipts["a"] is receipts["d"]
    assert receipts["a"] is not receipts["e"]


def test_batches_in_a_log_are_restored_with_their_columns_shared() -> None:
    """Parts of one request's columns are at one place, and are read once; their sizes are known without a read."""
    source = Source(b"a", b"bb", b"ccc")
    whole = Location(3, 100, 50)
    one = StoredColumns.in_log(whole, source, 3, 6, 60)
    other = StoredColumns.in_log(Location(4, 64, 9), source, 3, 6, 10)
    batches = [
        StoredBatch(1, Window(one, 0, 1, 1)),
        StoredBatch(3, Window(one, 2, 3, 3)),
        StoredBatch(4, Window.whole(other)),
    ]
    message = pb.Batches.FromString(batches_message(batches).SerializeToString())
    restored = list(restore_batches(message, source))
    columns = [batch.window.stored for batch in restored]
    assert columns[0] is columns[1]
    assert [stored.location for stored in columns[1:]] == [whole, Location(4, 64, 9)]
    assert [(stored.count, stored.body_bytes, stored.raw_bytes) for stored in columns[1:]] == [(3, 6, 60), (3, 6, 10)]
    assert [(batch.first_sequence, batch.count, batch.window.body_bytes) for batch in restored] == [
        (1, 1, 1),
        (3, 1, 3),
        (4, 3, 6),
    ]
    assert not any(stored.is_in_memory for stored in columns)
    assert bodies_of(restored) == [b"a", b"ccc", b"a", b"bb", b"ccc"]


def test_batches_in_memory_only_have_no_place_in_a_checkpoint() -> None:
    """A checkpoint contains only events that are in the log."""
    with pytest.raises(AssertionError):
        batches_message([batch(1, b"a")])
