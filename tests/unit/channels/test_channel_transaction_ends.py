"""How transactions end, and which calls on an ended one are refused."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace_server.channels import transaction
from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Receipt
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import (
    ChannelNotFoundError,
    DrainingError,
    LeaseExpiredError,
    MillraceError,
    OffsetGapError,
    TxnNotFoundError,
    TxnStateError,
)
from tests.channel_events import append, begin, begin_with_takes, check_accounts, open_channel, queued, stored, take
from tests.virtual_clock import now

# Each call that takes only a transaction's id.
CALLS: dict[str, Callable[[Channel, str], Awaitable[object]]] = {
    "put": lambda channel, txn_id: _now(lambda: channel.transactions.put(txn_id, [stored(b"x")], None)),
    "take": lambda channel, txn_id: channel.transactions.take(txn_id, TakeLimits(), 0, None),
    "commit": lambda channel, txn_id: channel.transactions.commit([txn_id], None),
    "rollback": lambda channel, txn_id: _now(lambda: channel.transactions.rollback(txn_id)),
    "renew": lambda channel, txn_id: _now(lambda: channel.transactions.renew(txn_id)),
}


@pytest.fixture
async def channel() -> Channel:
    return open_channel(capacity=10, transaction_capacity=5, body_bytes_max=100)


async def _now(call: Callable[[], object]) -> object:
    return call()


# Ended transactions.


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("ended_by", ["commit", "rollback"])
async def test_calls_after_the_end_are_refused_but_for_repeats(channel: Channel, call: str, ended_by: str) -> None:
    """Of a committed or rolled back transaction only the same end can be repeated."""
    txn_id = begin(channel)
    await CALLS[ended_by](channel, txn_id)
    if call == ended_by:
        await CALLS[call](channel, txn_id)
    else:
        with pytest.raises(TxnStateError):
            await CALLS[call](channel, txn_id)


@pytest.mark.parametrize("call", CALLS)
async def test_calls_on_an_unknown_transaction_find_none(channel: Channel, call: str) -> None:
    """The error names the id."""
    with pytest.raises(TxnNotFoundError) as refused:
        await CALLS[call](channel, "none")
    assert refused.value.metadata == {"txn_id": "none"}


@pytest.mark.parametrize("call", CALLS)
async def test_calls_on_a_deleted_channel_find_none(channel: Channel, call: str) -> None:
    """Calls on a handle of the channel are refused, since the channel is gone."""
    txn_id = begin(channel)
    channel.delete()
    with pytest.raises(ChannelNotFoundError):
        await CALLS[call](channel, txn_id)
    with pytest.raises(ChannelNotFoundError):
        await channel.appends.append([stored(b"a")], None)
    with pytest.raises(ChannelNotFoundError):
        channel.transactions.begin(None, None)


async def test_ended_transactions_beyond_those_remembered_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest end first, however it ended; a forgotten id is free again, in any channel."""
    monkeypatch.setattr(transaction, "ENDED_MAX", 2)
    directory = TxnDirectory(10)
    orders, bills = open_channel("orders", directory=directory), open_channel("bills", directory=directory)
    for txn_id in ("a", "b", "c"):
        begin(orders, txn_id)
    await orders.transactions.commit(["b"], None)
    orders.transactions.rollback("a")
    await orders.transactions.commit(["c"], None)
    with pytest.raises(TxnNotFoundError):
        await orders.transactions.commit(["b"], None)
    with pytest.raises(TxnNotFoundError):
        directory.find("b")
    begin(bills, "b")
    assert await orders.transactions.commit(["c"], None) == Receipt(0, 0)
    orders.transactions.rollback("a")


async def test_ended_transactions_are_remembered_ten_thousand_of_them() -> None:
    """The outcome of each can be queried; the one before the first is forgotten."""
    channel = open_channel(capacity=20_000, transaction_capacity=5)
    for number in range(10_001):
        begin(channel, str(number))
        channel.transactions.put(str(number), [stored(b"")], None)
        await channel.transactions.commit([str(number)], None)
    with pytest.raises(TxnNotFoundError):
        await channel.transactions.commit(["0"], None)
    for number in (1, 5_000, 10_000):
        assert await channel.transactions.commit([str(number)], None) == Receipt(number + 1, number + 1)


async def test_delete_frees_the_ids_of_its_transactions() -> None:
    """The ids of open and of ended transactions can be used by another channel."""
    directory = TxnDirectory(10)
    orders, bills = open_channel("orders", directory=directory), open_channel("bills", directory=directory)
    begin(orders, "ended")
    orders.transactions.rollback("ended")
    begin(orders, "open")
    await append(orders, b"a")
    delivery = await orders.deliveries.deliver(TakeLimits())
    orders.delete()
    assert (orders.open_transactions, directory.limit.open_count) == (0, 0)
    begin(bills, "ended")
    begin(bills, "open")
    _ = orders.deliveries.settle(delivery)
    orders.deliveries.nack(delivery)
    assert directory.limit.open_count == 2


# Leases.


@pytest.mark.parametrize("call", CALLS)
async def test_calls_after_the_lease_expired_are_refused(channel: Channel, call: str) -> None:
    """All calls except Rollback, which has nothing to do."""
    txn_id = begin(channel, lease_seconds=10)
    await asyncio.sleep(10)
    assert channel.open_transactions == 0
    if call == "rollback":
        await CALLS[call](channel, txn_id)
    else:
        with pytest.raises(LeaseExpiredError):
            await CALLS[call](channel, txn_id)


@pytest.mark.parametrize("call", ["put", "take", "renew"])
async def test_calls_on_a_transaction_restart_its_lease(channel: Channel, call: str) -> None:
    """This includes calls that are refused."""
    txn_id = begin(channel, lease_seconds=10)
    await asyncio.sleep(9)
    await CALLS[call](channel, txn_id)
    await asyncio.sleep(9)
    with pytest.raises(OffsetGapError):
        channel.transactions.put(txn_id, [stored(b"a")], 99)
    await asyncio.sleep(9)
    assert channel.open_transactions == 1
    await asyncio.sleep(1)
    assert channel.open_transactions == 0


async def test_lease_that_runs_out_rolls_back(channel: Channel) -> None:
    """Takes return to their places, puts are dropped, and the expiry is counted."""
    await append(channel, b"a", b"b")
    txn_id = await begin_with_takes(channel, 1)
    channel.transactions.put(txn_id, [stored(b"x")], None)
    await asyncio.sleep(29)
    assert queued(channel) == [b"b"]
    await asyncio.sleep(1)
    assert queued(channel) == [b"a", b"b"]
    assert (channel._contents.counters.leases_expired, channel._contents.counters.rollbacks) == (1, 1)
    check_accounts(channel)


async def test_lease_does_not_run_while_a_take_waits(channel: Channel) -> None:
    """The lease restarts after the wait."""
    txn_id = begin(channel, lease_seconds=5)
    assert await channel.transactions.take(txn_id, TakeLimits(), 60, None) == ([], 0)
    assert now() == 60
    await asyncio.sleep(4)
    channel.transactions.renew(txn_id)
    await asyncio.sleep(5)
    with pytest.raises(LeaseExpiredError):
        channel.transactions.renew(txn_id)


async def test_lease_does_not_run_while_a_commit_waits() -> None:
    """This holds for all of its transactions."""
    channel = open_channel(capacity=1, keep_alive_seconds=60)
    await append(channel, b"a")
    ids = [begin(channel, lease_seconds=5) for _ in range(2)]
    channel.transactions.put(ids[0], [stored(b"b")], None)
    with pytest.raises(MillraceError, match="no capacity"):
        await channel.transactions.commit(ids, None)
    assert now() == 60
    assert channel.open_transactions == 2
    await asyncio.sleep(5)
    assert channel.open_transactions == 0


async def test_renew_reports_the_lease_that_was_granted(channel: Channel) -> None:
    """The response is the transaction's lease, not the channel's."""
    assert channel.transactions.renew(begin(channel, lease_seconds=12.5)) == 12.5


# Drain.


async def test_drain_begins_nothing_new_and_lets_the_open_end(channel: Channel) -> None:
    """Open transactions can still put, take, commit and roll back."""
    await append(channel, b"a")
    taking, putting = begin(channel, "taking"), begin(channel, "putting")
    channel.drain()
    assert begin(channel, "taking") == taking
    for txn_id in (None, "new"):
        with pytest.raises(DrainingError):
            channel.transactions.begin(txn_id, None)
    with pytest.raises(DrainingError):
        await channel.claim("r", None, takeover=False)
    with pytest.raises(DrainingError):
        await append(channel, b"b")
    with pytest.raises(DrainingError):
        await channel.deliveries.deliver(TakeLimits())
    channel.transactions.put(putting, [stored(b"b")], None)
    assert await take(channel, taking) == [b"a"]
    channel.transactions.rollback(taking)
    await channel.transactions.commit([putting], None)
    assert queued(channel) == [b"a", b"b"]
