from collections.abc import Sequence

from millrace_server.channels.batches import StoredBatch, StoredColumns
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.memory_tier import RESERVED_AHEAD, MemoryTier
from millrace_server.channels.stamps import Stamp, StampLedger
from millrace_server.channels.transaction import Outcome, TxnState
from millrace_server.wal.records import Location
from tests.channel_events import batch
from tests.simulated_channels import small_spillable_limits


class Ended:
    """A reader that is never called: these tests only count."""

    def read(self, _stored: StoredColumns) -> bytes:
        raise AssertionError


def tier_with_reserve() -> MemoryTier:
    tier = MemoryTier(small_spillable_limits(memory_capacity=3, memory_byte_capacity=10), 0)
    tier.reserved_sequence = tier.reserving_sequence = tier.reservation(1)
    return tier


def prepared(
    ledger: StampLedger,
    *batches: StoredBatch,
    stamp: Stamp | None = None,
    txn_ids: Sequence[str] = (),
    in_memory: bool = True,
) -> Commit:
    """A commit as prepared by its contents."""
    commit = Commit([one.window for one in batches], [], stamp)
    commit.batches, commit.txn_ids = batches, txn_ids
    commit.acceptance = ledger.accept(stamp) if stamp else None
    if in_memory:
        commit.keep_in_memory()
    return commit


def putting(*batches: StoredBatch) -> Commit:
    return Commit([one.window for one in batches], [])


def test_admits_what_fits_in_events_bytes_and_sequences() -> None:
    """A commit that takes as much as it puts fits too, even if memory is above its limits."""
    tier = tier_with_reserve()
    assert tier.admits(putting(batch(1, b"a", b"b", b"c")), 1)
    assert not tier.admits(putting(batch(1, b"a", b"b", b"c", b"d")), 1)
    assert tier.admits(putting(batch(1, bytes(10))), 1)
    assert not tier.admits(putting(batch(1, bytes(11))), 1)
    assert tier.admits(putting(batch(1, b"a")), RESERVED_AHEAD)
    assert not tier.admits(putting(batch(1, b"a", b"b")), RESERVED_AHEAD)
    ledger, held = StampLedger(), batch(1, b"a", b"b", b"c")
    tier.prepare(prepared(ledger, held))
    tier.enforce(small_spillable_limits(memory_capacity=1))
    swap = Commit([batch(4, b"d").window], [held.part(0, 1)])
    assert tier.admits(swap, 4)
    assert not tier.admits(putting(batch(4, b"d")), 4)


def test_end_admits_nothing_and_needs_no_reserve() -> None:
    """New events would come too late to be written."""
    tier = tier_with_reserve()
    tier.end()
    assert not tier.admits(putting(batch(1, b"a")), 1)
    assert not tier.is_low(RESERVED_AHEAD)
    assert tier.reservation(1) == 0


def test_reservation_is_moved_when_half_of_it_is_used() -> None:
    """The reservation moves only then, to keep it cheap, and by at least four of the largest commits."""
    tier = tier_with_reserve()
    half = RESERVED_AHEAD // 2 + 1
    assert (tier.is_low(half), tier.is_low(half + 1)) == (False, True)
    assert tier.reservation(half) == RESERVED_AHEAD + 1
    assert tier.reservation(half + 1) == half + 1 + RESERVED_AHEAD
    large = MemoryTier(small_spillable_limits(transaction_capacity=RESERVED_AHEAD, capacity=RESERVED_AHEAD), 0)
    assert large.reservation(1) == 4 * RESERVED_AHEAD + 1


def test_durable_ledger_has_a_commits_numbers_once_its_last_event_has_left() -> None:
    """The order in which events leave, and the requests they came in, make no difference."""
    tier, ledger = tier_with_reserve(), StampLedger()
    ledger.accept(Stamp("p", 1, 2))
    first, second = batch(1, b"a", b"b"), batch(3, b"c")
    tier.prepare(prepared(ledger, first, second, stamp=Stamp("p", 3, 5), txn_ids=["t"]))
    txns = [("t", Outcome(TxnState.COMMITTED, Receipt())), ("u", Outcome(TxnState.ROLLED_BACK))]
    for leaving in (second, first.part(0, 1)):
        tier.remove([leaving])
        assert list(tier.durable_ledger(ledger).producers()) == [("p", [(1, 2)])]
        assert [txn_id for txn_id, _ in tier.durable_txns(txns)] == ["u"]
    tier.remove([first.part(1, 2)])
    assert tier.durable_ledger(ledger) is ledger
    assert [txn_id for txn_id, _ in tier.durable_txns(txns)] == ["t", "u"]
    assert (tier.event_count, tier.body_bytes) == (0, 0)


def test_spill_of_events_makes_their_commit_durable() -> None:
    """The events are then counted as in the log."""
    tier, ledger, held = tier_with_reserve(), StampLedger(), batch(1, b"a", b"b")
    tier.prepare(prepared(ledger, held, stamp=Stamp("p", 1, 2)))
    tier.spill([held])
    held.window.stored.locate(Location(1, 64, 10), Ended())
    assert tier.durable_ledger(ledger) is ledger
    assert (tier.event_count, tier.log_event_count) == (0, 2)
    tier.remove([held])
    assert tier.log_event_count == 0


def test_abort_of_what_was_prepared_leaves_nothing_of_it() -> None:
    """Neither the counts nor the pending numbers contain it."""
    tier, ledger = tier_with_reserve(), StampLedger()
    in_memory = prepared(ledger, batch(1, b"a"), stamp=Stamp("p", 1, 1))
    in_log = prepared(ledger, batch(2, b"bb"), stamp=Stamp("p", 2, 2), in_memory=False)
    tier.prepare(in_memory)
    tier.prepare(in_log)
    assert (tier.event_count, tier.body_bytes, tier.log_event_count) == (1, 1, 1)
    tier.abort(in_log)
    tier.abort(in_memory)
    assert (tier.event_count, tier.body_bytes, tier.log_event_count) == (0, 0, 0)
    assert tier.durable_ledger(ledger) is ledger
