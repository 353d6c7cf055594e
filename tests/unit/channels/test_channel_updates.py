"""Changes of a channel's limits while it is in use."""

import asyncio

import pytest

from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Receipt
from millrace_server.errors import ChannelFullError, ChannelNotFoundError, MillraceError, TxnCapacityError
from tests.channel_events import (
    append,
    begin,
    begin_with_puts,
    begin_with_takes,
    check_accounts,
    limits_of,
    nearly_full_channel,
    open_channel,
    queued,
    stored,
    take,
)
from tests.virtual_clock import now, settle, started


@pytest.fixture
async def channel() -> Channel:
    """A nearly full channel: 3 of 3 events, 9 of 10 bytes."""
    return await nearly_full_channel()


async def test_update_to_more_is_at_once(channel: Channel) -> None:
    """Waiting commits continue."""
    call = await started(append(channel, b"d"))
    assert await channel.update(limits_of(capacity=4, body_bytes_max=20)) == ""
    assert await call.result() == Receipt(4, 4)
    assert (now(), channel.config.capacity) == (0, 4)


async def test_update_to_less_without_space_changes_nothing(channel: Channel) -> None:
    """After the keep-alive it returns the reason, and all old limits stay in force."""
    before = channel.config
    message = await channel.update(limits_of(capacity=2, transaction_capacity=1, lease_seconds=5))
    assert message == ("the channel holds 3 events with 9 body bytes, and the new limits are 2 and 1073741824")
    assert now() == 3
    assert channel.config is before
    assert channel._contents.capacity.events_max == 3
    assert channel.transactions.begin(None, None)[1] == 30


async def test_update_to_less_waits_for_space(channel: Channel) -> None:
    """Taken events keep their space until their commit."""
    call = await started(channel.update(limits_of(capacity=2, body_bytes_max=6)))
    taking = await begin_with_takes(channel, 1)
    await settle()
    assert not call.is_done
    await asyncio.sleep(2)
    await channel.transactions.commit([taking], None)
    assert await call.result() == ""
    assert (now(), channel.config.capacity) == (2, 2)
    with pytest.raises(ChannelFullError):
        await append(channel, b"")
    check_accounts(channel)


async def test_update_of_bytes_alone_follows_the_same_rule(channel: Channel) -> None:
    """The channel does not keep intermediate sizes."""
    assert await channel.update(limits_of(capacity=3, body_bytes_max=8)) != ""
    assert channel._contents.capacity.body_bytes_max == 10
    assert await channel.update(limits_of(capacity=3, body_bytes_max=9)) == ""
    assert channel._contents.capacity.body_bytes_max == 9


async def test_update_of_other_limits_holds_from_then_on() -> None:
    """This concerns leases, transactions and their capacity."""
    channel = open_channel(capacity=10)
    txn_id = begin_with_puts(channel, b"1", b"2", b"3")
    assert await channel.update(limits_of(capacity=10, transaction_capacity=2, open_transactions_max=1)) == ""
    with pytest.raises(TxnCapacityError):
        channel.transactions.put(txn_id, [stored(b"4")], None)
    assert channel.transactions.put(txn_id, [stored(b"1", b"2", b"3")], 0) == 3
    assert await channel.transactions.commit([txn_id], None) == Receipt(1, 3)
    txn_id = begin(channel)
    assert await take(channel, txn_id) == [b"1", b"2"]
    with pytest.raises(TxnCapacityError):
        await take(channel, txn_id)


async def test_update_to_less_than_an_open_transaction_took_refuses_only_more() -> None:
    """The events that it has taken can be committed."""
    channel = open_channel(capacity=10)
    await append(channel, b"1", b"2", b"3", b"4")
    txn_id = await begin_with_takes(channel, 3)
    assert await channel.update(limits_of(capacity=10, transaction_capacity=2)) == ""
    with pytest.raises(TxnCapacityError):
        await take(channel, txn_id)
    await channel.transactions.commit([txn_id], None)
    assert queued(channel) == [b"4"]


async def test_update_below_what_an_open_transaction_put_makes_its_commit_impossible() -> None:
    """The commit is refused at once, and the transaction can roll back."""
    channel = open_channel(capacity=10)
    txn_id = begin_with_puts(channel, b"1", b"2", b"3")
    assert await channel.update(limits_of(capacity=2)) == ""
    with pytest.raises(TxnCapacityError, match="the whole channel holds 2"):
        await channel.transactions.commit([txn_id], None)
    assert now() == 0
    channel.transactions.rollback(txn_id)


async def test_update_that_waits_when_the_channel_is_deleted_fails_at_once(channel: Channel) -> None:
    """A deleted channel cannot be resized."""
    call = await started(channel.update(limits_of(capacity=2)))
    channel.delete()
    with pytest.raises(ChannelNotFoundError):
        await call.result()
    assert now() == 0


async def test_commit_waits_no_longer_than_the_keep_alive_in_force() -> None:
    """A new configuration applies to later calls."""
    channel = open_channel(capacity=10)
    await channel.update(limits_of(capacity=1, keep_alive_seconds=7))
    await append(channel, b"a")
    with pytest.raises(MillraceError, match="in 7 s"):
        await append(channel, b"b")
    assert now() == 7


async def test_enforce_puts_limits_in_force_whatever_is_held(channel: Channel) -> None:
    """The channel may then exceed its limits; it accepts no more events, and returns all."""
    channel.enforce(limits_of(capacity=2, keep_alive_seconds=0))
    assert channel.config.capacity == 2
    with pytest.raises(MillraceError, match="holds 3 events of 2"):
        await append(channel, b"f")
    await channel.transactions.commit([await begin_with_takes(channel, 2)], None)
    channel.enforce(limits_of(capacity=10))
    await append(channel, b"f")
    check_accounts(channel)
