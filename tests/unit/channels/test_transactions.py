import asyncio
import itertools

import pytest

from millrace_server.channels.commit import Commit
from millrace_server.channels.transaction import Outcome, Transaction, TxnLimit, TxnState
from millrace_server.errors import LeaseExpiredError, MillraceError, TooManyTxnsError, TxnStateError
from tests.channel_events import batch, numbered, window


class Expiries:
    """Records the transactions whose leases expire."""

    def __init__(self) -> None:
        self.txns: list[Transaction] = []

    def __call__(self, txn: Transaction) -> None:
        self.txns.append(txn)
        txn.end(TxnState.EXPIRED)


def open_txn() -> Transaction:
    return Transaction("t", 30, Expiries())


LEGAL_MOVES = {(TxnState.OPEN, target) for target in (TxnState.COMMITTED, TxnState.ROLLED_BACK, TxnState.EXPIRED)}


@pytest.mark.parametrize(("state", "target"), list(itertools.product(TxnState, TxnState)))
async def test_end_in_each_state_moves_as_the_table_says(state: TxnState, target: TxnState) -> None:
    """Of all pairs of states, only those in the table are moves."""
    txn = open_txn()
    txn.state = state
    if (state, target) in LEGAL_MOVES:
        txn.end(target)
        assert txn.state is target
    else:
        with pytest.raises(AssertionError):
            txn.end(target)
        assert txn.state is state


async def test_end_of_a_transaction_drops_what_it_held() -> None:
    """The outcome is remembered, the events are not, and the lease does not run any more."""
    expiries = Expiries()
    txn = Transaction("t", 30, expiries)
    txn.add_puts([window(b"a")])
    txn.add_takes([batch(1, b"b")])
    txn.end(TxnState.COMMITTED)
    assert (txn.puts, txn.takes) == ([], [])
    await asyncio.sleep(1000)
    assert expiries.txns == []


@pytest.mark.parametrize("count", range(6))
async def test_last_taken_of_several_batches_are_the_newest(count: int) -> None:
    """Whole batches are skipped, and one may be cut."""
    txn = open_txn()
    txn.add_takes([batch(1, b"a", b"b"), batch(7, b"c")])
    txn.add_takes([batch(3, b"d", b"e")])
    assert numbered(txn.last_taken(count)) == [(1, b"a"), (2, b"b"), (7, b"c"), (3, b"d"), (4, b"e")][5 - count :]


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        (TxnState.COMMITTED, TxnStateError, "the transaction is committed already"),
        (TxnState.ROLLED_BACK, TxnStateError, "the transaction is rolled back already"),
        (TxnState.EXPIRED, LeaseExpiredError, "lease expired, and it was rolled back; begin a new one"),
    ],
)
def test_refuse_of_an_outcome_says_how_it_ended(state: TxnState, kind: type[MillraceError], message: str) -> None:
    """A later call gets the outcome of the transaction."""
    with pytest.raises(kind, match=message) as refused:
        Outcome(state).refuse("t")
    assert refused.value.metadata == {"txn_id": "t"}


async def test_begin_commit_until_it_is_reopened_refuses_others_and_stops_the_lease() -> None:
    """A pending commit neither changes nor expires; afterwards the whole lease starts again."""
    expiries = Expiries()
    txn = Transaction("t", 30, expiries)
    txn.refuse_while_committing()
    committing = Commit([], [])
    txn.begin_commit(committing)
    assert txn.committing is committing
    with pytest.raises(TxnStateError, match="is being committed") as refused:
        txn.refuse_while_committing()
    assert refused.value.metadata == {"txn_id": "t"}
    await asyncio.sleep(1000)
    txn.reopen()
    txn.refuse_while_committing()
    await asyncio.sleep(29)
    assert expiries.txns == []
    await asyncio.sleep(1)
    assert expiries.txns == [txn]


async def test_limit_when_reached_refuses_until_one_ends() -> None:
    """The maximum is read at each call, since it may change."""
    maximum = 2
    limit = TxnLimit("channel 'a'", lambda: maximum)
    limit.refuse_if_reached()
    limit.count(2)
    with pytest.raises(TooManyTxnsError, match="channel 'a' has 2 open transactions; at most 2 are allowed") as refused:
        limit.refuse_if_reached()
    assert refused.value.retry_delay_seconds == 1
    maximum = 3
    limit.refuse_if_reached()
    limit.count(-2)
    limit.refuse_if_reached()
