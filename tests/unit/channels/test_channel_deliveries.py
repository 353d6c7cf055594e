import asyncio

import pytest

from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.errors import (
    ChannelClaimedError,
    ChannelNotFoundError,
    DrainingError,
    TooManyTxnsError,
    TxnsOpenError,
)
from tests.channel_events import append, begin, bodies_of, check_accounts, open_channel, queued
from tests.virtual_clock import now, settle, started


@pytest.fixture
async def channel() -> Channel:
    channel = open_channel(capacity=10, transaction_capacity=3, open_transactions_max=3)
    await append(channel, b"a", b"b", b"c")
    await append(channel, b"d")
    return channel


async def test_deliver_returns_the_oldest_and_counts_as_open(channel: Channel) -> None:
    """A delivery has at most as many events as a transaction may take."""
    delivery = await channel.deliveries.deliver(TakeLimits())
    assert bodies_of(delivery.takes) == [b"a", b"b", b"c"]
    assert (channel.open_transactions, queued(channel)) == (1, [b"d"])
    check_accounts(channel)


async def test_settle_removes_what_was_delivered_once(channel: Channel) -> None:
    """A second ack of the same delivery does nothing, and neither does a nack after it."""
    delivery = await channel.deliveries.deliver(TakeLimits(events_max=2))
    _ = channel.deliveries.settle(delivery)
    _ = channel.deliveries.settle(delivery)
    channel.deliveries.nack(delivery)
    assert (queued(channel), channel.open_transactions) == ([b"c", b"d"], 0)
    assert (channel._contents.counters.take_successes, channel._contents.counters.commits) == (2, 3)
    check_accounts(channel)


async def test_nack_returns_what_was_delivered_to_its_place(channel: Channel) -> None:
    """Other deliveries in between make no difference."""
    deliveries = [await channel.deliveries.deliver(TakeLimits(events_max=1)) for _ in range(3)]
    channel.deliveries.nack(deliveries[2])
    _ = channel.deliveries.settle(deliveries[1])
    channel.deliveries.nack(deliveries[0])
    channel.deliveries.nack(deliveries[0])
    _ = channel.deliveries.settle(deliveries[0])
    assert queued(channel) == [b"a", b"c", b"d"]
    assert channel._contents.counters.rollbacks == 2
    check_accounts(channel)


async def test_join_of_two_deliveries_makes_one_that_is_settled_whole(channel: Channel) -> None:
    """A consumer with many small deliveries has one open transaction and one commit."""
    first, second = [await channel.deliveries.deliver(TakeLimits(events_max=2)) for _ in range(2)]
    channel.deliveries.join(first, second)
    assert channel.open_transactions == 1
    assert bodies_of(first.takes) == [b"a", b"b", b"c", b"d"]
    _ = channel.deliveries.settle(second)
    channel.deliveries.nack(second)
    assert channel._contents.capacity.event_count == 4
    commits = channel._contents.counters.commits
    _ = channel.deliveries.settle(first)
    assert (channel._contents.capacity.event_count, channel.open_transactions) == (0, 0)
    assert channel._contents.counters.commits == commits + 1
    check_accounts(channel)


async def test_join_of_two_deliveries_that_are_returned_puts_back_both(channel: Channel) -> None:
    """Each event returns to its own place, from whichever of the two deliveries it came."""
    first, between, last = [await channel.deliveries.deliver(TakeLimits(events_max=1)) for _ in range(3)]
    channel.deliveries.join(first, last)
    _ = channel.deliveries.settle(between)
    channel.deliveries.nack(first)
    assert queued(channel) == [b"a", b"c", b"d"]
    check_accounts(channel)


async def test_join_in_a_deleted_channel_does_nothing(channel: Channel) -> None:
    """The deletion has ended both deliveries already."""
    first, second = [await channel.deliveries.deliver(TakeLimits(events_max=1)) for _ in range(2)]
    channel.delete()
    channel.deliveries.join(first, second)
    assert channel.open_transactions == 0


async def test_deliver_on_an_empty_channel_waits_however_long(channel: Channel) -> None:
    """The call waits with the takers."""
    await channel.purge()
    call = await started(channel.deliveries.deliver(TakeLimits()))
    assert len(channel._contents.takers) == 1
    await asyncio.sleep(100_000)
    await append(channel, b"x")
    assert bodies_of((await call.result()).takes) == [b"x"]


async def test_delivery_is_never_taken_back_by_a_lease(channel: Channel) -> None:
    """The stream that owns a delivery is responsible for it, however slow it is."""
    delivery = await channel.deliveries.deliver(TakeLimits())
    await asyncio.sleep(1_000_000)
    assert queued(channel) == [b"d"]
    _ = channel.deliveries.settle(delivery)
    assert channel._contents.capacity.event_count == 1


async def test_deliver_while_a_claim_lives_is_refused(channel: Channel) -> None:
    """This includes a call that is waiting when the channel is claimed."""
    await channel.purge()
    call = await started(channel.deliveries.deliver(TakeLimits()))
    await channel.claim("r", None, takeover=False)
    with pytest.raises(ChannelClaimedError):
        await call.result()
    with pytest.raises(ChannelClaimedError):
        await channel.deliveries.deliver(TakeLimits())
    assert channel.open_transactions == 0


async def test_claim_while_a_delivery_is_out_is_refused(channel: Channel) -> None:
    """The delivery may be returned to the queue."""
    delivery = await channel.deliveries.deliver(TakeLimits())
    with pytest.raises(TxnsOpenError):
        await channel.claim("r", None, takeover=True)
    channel.deliveries.nack(delivery)
    assert (await channel.claim("r", 12, takeover=False)).lease.seconds == 12


async def test_claim_without_a_lease_has_the_channels(channel: Channel) -> None:
    """Zero means the channel's lease as well."""
    assert (await channel.claim("r", None, takeover=False)).lease.seconds == 30
    assert (await channel.claim("r", 0, takeover=False)).lease.seconds == 30


async def test_deliver_beyond_the_open_transactions_is_refused(channel: Channel) -> None:
    """A delivery counts as a transaction; a waiting call is refused once there is an event."""
    for _ in range(3):
        begin(channel)
    with pytest.raises(TooManyTxnsError):
        await channel.deliveries.deliver(TakeLimits())
    assert len(queued(channel)) == 4


async def test_deliver_that_is_refused_leaves_the_event_to_the_next() -> None:
    """The wake-up is passed on to a call that can use it."""
    channel = open_channel(open_transactions_max=2)
    taking = begin(channel)
    lending = await started(channel.deliveries.deliver(TakeLimits()))
    call = await started(channel.transactions.take(taking, TakeLimits(), 60, None))
    begin(channel)
    await append(channel, b"a")
    with pytest.raises(TooManyTxnsError):
        await lending.result()
    assert bodies_of((await call.result())[0]) == [b"a"]
    assert now() == 0


async def test_deliver_that_is_cancelled_takes_nothing(channel: Channel) -> None:
    """Cancelled before or after its wake-up, it leaves the event to the next call."""
    await channel.purge()
    calls = [await started(channel.deliveries.deliver(TakeLimits())) for _ in range(3)]
    calls[0].cancel()
    await settle()
    await append(channel, b"x")
    calls[1].cancel()
    await settle()
    assert [call.is_cancelled for call in calls] == [True, True, False]
    assert bodies_of((await calls[2].result()).takes) == [b"x"]
    assert channel.open_transactions == 1
    check_accounts(channel)


async def test_deliver_when_the_channel_drains_is_refused_at_once(channel: Channel) -> None:
    """A waiting call is refused too; open deliveries can still be settled."""
    delivery = await channel.deliveries.deliver(TakeLimits())
    await channel.purge()
    call = await started(channel.deliveries.deliver(TakeLimits()))
    channel.drain()
    with pytest.raises(DrainingError):
        await call.result()
    _ = channel.deliveries.settle(delivery)
    assert channel._contents.capacity.event_count == 0


async def test_deliver_when_the_channel_is_deleted_is_refused_at_once(channel: Channel) -> None:
    """Open deliveries are forgotten with the channel."""
    delivery = await channel.deliveries.deliver(TakeLimits())
    await channel.purge()
    call = await started(channel.deliveries.deliver(TakeLimits()))
    channel.delete()
    with pytest.raises(ChannelNotFoundError):
        await call.result()
    channel.deliveries.nack(delivery)
    _ = channel.deliveries.settle(delivery)
    assert channel.open_transactions == 0
