"""What a channel lists of transactions, consumers and producers, and what an operator may end of it."""

import errno

import pytest

from millrace_server.channels.activity import Origin, ProducerInfo
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import ProducerNotFoundError, TxnNotFoundError, TxnStateError
from tests.channel_events import append, begin, bodies_of, check_accounts, open_channel, queued
from tests.file_channels import Gate, called, file_channel, held_append, refusal
from tests.simulated_disk import SimulatedDisk
from tests.virtual_clock import WallClock

HAS_THREADS = True

ONE = TakeLimits(events_max=1)


async def test_list_of_transactions_has_deliveries_by_an_id_that_stays() -> None:
    """Deliveries that were never listed have none, which costs nothing."""
    channel = open_channel()
    await append(channel, b"a", b"b")
    consumer = channel.deliveries.attach(Origin("shipper", "ipv4:10.0.0.1:5"))
    txn_id = begin(channel)
    delivery = await channel.deliveries.deliver(ONE, consumer)
    assert delivery.txn_id == ""
    first, second = channel.list_transactions()
    assert (first.txn_id, first.is_delivery) == (txn_id, False)
    assert (second.identity, second.peer, second.take_count) == ("shipper", "ipv4:10.0.0.1:5", 1)
    assert [one.txn_id for one in channel.list_transactions()] == [txn_id, second.txn_id]
    assert [(one.open_deliveries, one.open_events) for one in channel.list_consumers()] == [(1, 1)]
    channel.deliveries.detach(consumer)
    assert channel.list_consumers() == []


async def test_end_of_a_delivery_is_remembered_and_its_ack_removes_nothing() -> None:
    """So a repeat succeeds, however the delivery was returned; one that was settled is committed."""
    channel = open_channel()
    await append(channel, b"a", b"b", b"c")
    ended, returned, settled = [await channel.deliveries.deliver(ONE) for _ in range(3)]
    channel.list_transactions()
    channel.end_transaction(ended.txn_id)
    channel.deliveries.nack(returned)
    await channel.deliveries.settle(settled)
    await channel.deliveries.settle(ended)
    for delivery in (ended, returned):
        channel.end_transaction(delivery.txn_id)
    with pytest.raises(TxnStateError, match="committed"):
        channel.end_transaction(settled.txn_id)
    assert queued(channel) == [b"a", b"b"]
    check_accounts(channel)


async def test_end_of_a_delivery_that_was_joined_to_another_finds_only_that() -> None:
    """A sink that holds many deliveries has them as one."""
    channel = open_channel()
    await append(channel, b"a", b"b")
    kept, joined = [await channel.deliveries.deliver(ONE) for _ in range(2)]
    channel.list_transactions()
    channel.deliveries.join(kept, joined)
    with pytest.raises(TxnNotFoundError):
        channel.end_transaction(joined.txn_id)
    [listed] = channel.list_transactions()
    assert (listed.txn_id, listed.take_count) == (kept.txn_id, 2)
    channel.end_transaction(kept.txn_id)
    assert queued(channel) == [b"a", b"b"]


async def test_delete_of_a_channel_forgets_the_ids_of_its_deliveries() -> None:
    """The server's directory of transactions does not grow for ever."""
    directory = TxnDirectory(10)
    channel = open_channel(directory=directory)
    await append(channel, b"a")
    await channel.deliveries.deliver(ONE)
    [listed] = channel.list_transactions()
    assert directory.find(listed.txn_id) is channel.transactions
    channel.delete()
    assert directory.owner_of(listed.txn_id) is None


async def test_end_of_what_is_being_stored_is_refused(disk: SimulatedDisk) -> None:
    """Nobody knows yet how it ends; a transaction whose commit was acknowledged stays committed."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", b"b")
        txn_id, delivery = begin(channel), await channel.deliveries.deliver(ONE)
        channel.list_transactions()
        held = await held_append(gate, channel, b"x")
        (committing,) = await called(channel.transactions.commit([txn_id], None))
        settling = channel.deliveries.settle(delivery)
        for under_way in (txn_id, delivery.txn_id):
            with pytest.raises(TxnStateError, match="being committed"):
                channel.end_transaction(under_way)
        gate.open()
        for storing in (held, committing, settling):
            await storing
        assert queued(channel) == [b"b", b"x"]


async def test_producers_are_known_with_their_times_after_a_restart(disk: SimulatedDisk, wall_clock: WallClock) -> None:
    """Through a checkpoint, and through the log behind it; one that was forgotten stays so."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        wall_clock.micros = 1_000
        await append(channel, b"a", stamp=Stamp("old", 1, 1))
        await append(channel, b"b", stamp=Stamp("gone", 1, 1))
        await opened.checkpointing.make()
        wall_clock.micros = 2_000
        await append(channel, b"c", stamp=Stamp("new", 7, 7))
        await channel.forget_producer("gone")
    async with file_channel(disk) as opened:
        channel = opened.channel
        assert list(channel.ledger.describe()) == [ProducerInfo("old", 1, 0, 1_000), ProducerInfo("new", 7, 0, 2_000)]
        assert not (await append(channel, b"b", stamp=Stamp("gone", 1, 1))).is_deduplicated


async def test_forget_without_space_on_the_disk_changes_nothing(disk: SimulatedDisk) -> None:
    """The producer's repeats are still recognized, and its place in the list is all that may have changed."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a", stamp=Stamp("p", 1, 1))
        await append(channel, b"b", stamp=Stamp("q", 1, 1))
        before = set(channel.ledger.describe())
        disk.fail("write", 1, errno.ENOSPC)
        (call,) = await called(channel.forget_producer("q"))
        assert await refusal(call) == "DISK_FULL"
        assert set(channel.ledger.describe()) == before
        assert (await append(channel, b"b", stamp=Stamp("q", 1, 1))).is_deduplicated
        await channel.forget_producer("q")


async def test_repeat_of_a_forget_ends_with_the_first(disk: SimulatedDisk) -> None:
    """A client that lost the response repeats the call, and learns the outcome; other unknown producers are refused."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        for producer_id in ("p", "q"):
            await append(channel, b"a", stamp=Stamp(producer_id, 1, 1))
        held = await held_append(gate, channel, b"x")
        calls = await called(channel.forget_producer("q"), channel.forget_producer("q"))
        assert not any(call.done() for call in calls)
        gate.open()
        for call in (held, *calls):
            await call
        await channel.forget_producer("p")
        await channel.forget_producer("p")
        with pytest.raises(ProducerNotFoundError, match="'q'"):
            await channel.forget_producer("q")


async def test_gaps_of_a_producer_are_counted_not_its_missing_numbers() -> None:
    """However many numbers are missing between two that were stored."""
    channel = open_channel()
    for number in (3, 90, 91, 200):
        await append(channel, b"x", stamp=Stamp("p", number, number))
    [producer] = channel.ledger.describe()
    assert producer == ProducerInfo("p", 200, 2, producer.last_seen)
    assert bodies_of((await channel.deliveries.deliver(TakeLimits())).takes) == [b"x"] * 4
