from millrace_server.channels.batches import StoredBatch, StoredColumns
from millrace_server.channels.contents import BegunChange, Change, Receipt
from millrace_server.channels.memory_tier import RESERVED_AHEAD, MemoryTier
from millrace_server.channels.stamps import Stamp, StampLedger
from millrace_server.channels.transactions import Outcome, TxnState
from millrace_server.wal.records import Location
from tests.channel_events import batch
from tests.simulated_channels import small_spillable_limits


class Ended:
    """Reads nothing back: what is in here is only counted."""

    def read(self, _stored: StoredColumns) -> bytes:
        raise AssertionError


def share_with_reserve() -> MemoryTier:
    share = MemoryTier(small_spillable_limits(memory_capacity=3, memory_byte_capacity=10), 0)
    share.reserved_sequence = share.reserving_sequence = share.reservation(1)
    return share


def begun(ledger: StampLedger, *batches: StoredBatch, stamp: Stamp | None = None) -> BegunChange:
    acceptance = ledger.accept(stamp) if stamp else None
    change = Change([one.window for one in batches], [], stamp, 0)
    return BegunChange(change, batches, batches[0].first_sequence, acceptance, Receipt())


def putting(*batches: StoredBatch) -> Change:
    return Change([one.window for one in batches], [], None, 0)


def test_admits_what_fits_in_events_bytes_and_sequences() -> None:
    """And whatever takes as much as it puts, though memory were above its limits."""
    share = share_with_reserve()
    assert share.admits(putting(batch(1, b"a", b"b", b"c")), 1)
    assert not share.admits(putting(batch(1, b"a", b"b", b"c", b"d")), 1)
    assert share.admits(putting(batch(1, bytes(10))), 1)
    assert not share.admits(putting(batch(1, bytes(11))), 1)
    assert share.admits(putting(batch(1, b"a")), RESERVED_AHEAD)
    assert not share.admits(putting(batch(1, b"a", b"b")), RESERVED_AHEAD)
    ledger, held = StampLedger(), batch(1, b"a", b"b", b"c")
    share.begin(begun(ledger, held), (), in_memory=True)
    share.enforce(small_spillable_limits(memory_capacity=1))
    swap = Change([batch(4, b"d").window], [held.part(0, 1)], None, 0)
    assert share.admits(swap, 4)
    assert not share.admits(putting(batch(4, b"d")), 4)


def test_end_admits_nothing_and_needs_no_reserve() -> None:
    """What comes would be too late to be written."""
    share = share_with_reserve()
    share.end()
    assert not share.admits(putting(batch(1, b"a")), 1)
    assert not share.is_low(RESERVED_AHEAD)
    assert share.reservation(1) == 0


def test_reservation_is_moved_when_half_of_it_is_used() -> None:
    """Not sooner, so that it costs next to nothing; and by four of the largest commits, where those are more."""
    share = share_with_reserve()
    half = RESERVED_AHEAD // 2 + 1
    assert (share.is_low(half), share.is_low(half + 1)) == (False, True)
    assert share.reservation(half) == RESERVED_AHEAD + 1
    assert share.reservation(half + 1) == half + 1 + RESERVED_AHEAD
    large = MemoryTier(small_spillable_limits(transaction_capacity=RESERVED_AHEAD, capacity=RESERVED_AHEAD), 0)
    assert large.reservation(1) == 4 * RESERVED_AHEAD + 1


def test_lasting_ledger_has_a_commits_numbers_once_its_last_event_has_left() -> None:
    """However its events leave, from whichever of its requests."""
    share, ledger = share_with_reserve(), StampLedger()
    ledger.accept(Stamp("p", 1, 2))
    first, second = batch(1, b"a", b"b"), batch(3, b"c")
    share.begin(begun(ledger, first, second, stamp=Stamp("p", 3, 5)), ["t"], in_memory=True)
    txns = [("t", Outcome(TxnState.COMMITTED, Receipt())), ("u", Outcome(TxnState.ROLLED_BACK))]
    for leaving in (second, first.part(0, 1)):
        share.finish([leaving])
        assert list(share.lasting_ledger(ledger).producers()) == [("p", [(1, 2)])]
        assert [txn_id for txn_id, _ in share.lasting_txns(txns)] == ["u"]
    share.finish([first.part(1, 2)])
    assert share.lasting_ledger(ledger) is ledger
    assert [txn_id for txn_id, _ in share.lasting_txns(txns)] == ["t", "u"]
    assert (share.event_count, share.body_bytes) == (0, 0)


def test_keep_of_events_makes_their_commit_last() -> None:
    """They are in the log then, and counted there."""
    share, ledger, held = share_with_reserve(), StampLedger(), batch(1, b"a", b"b")
    share.begin(begun(ledger, held, stamp=Stamp("p", 1, 2)), (), in_memory=True)
    share.keep([held])
    held.window.stored.found_at(Location(1, 64, 10), Ended())
    assert share.lasting_ledger(ledger) is ledger
    assert (share.event_count, share.log_event_count) == (0, 2)
    share.finish([held])
    assert share.log_event_count == 0


def test_undo_of_what_had_begun_leaves_nothing_of_it() -> None:
    """Neither in the counts nor among what is not to be called stored."""
    share, ledger = share_with_reserve(), StampLedger()
    in_memory = begun(ledger, batch(1, b"a"), stamp=Stamp("p", 1, 1))
    in_log = begun(ledger, batch(2, b"bb"), stamp=Stamp("p", 2, 2))
    share.begin(in_memory, (), in_memory=True)
    share.begin(in_log, (), in_memory=False)
    assert (share.event_count, share.body_bytes, share.log_event_count) == (1, 1, 1)
    share.undo(in_log, in_memory=False)
    share.undo(in_memory, in_memory=True)
    assert (share.event_count, share.body_bytes, share.log_event_count) == (0, 0, 0)
    assert share.lasting_ledger(ledger) is ledger
