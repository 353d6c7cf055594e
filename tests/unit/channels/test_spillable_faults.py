"""A spillable channel whose disk is full or has failed, and the sequences that it reserves there."""

import asyncio
import errno

import pytest

from millrace_server.channels import memory_tier
from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import CommitState
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.spillable import SpillableCommitter
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import ChannelLogFailedError, DiskFullError
from tests.channel_events import append, begin_with_takes, bodies_of, consume, queued, stored
from tests.simulated_channels import small_spillable_limits
from tests.spillable_channels import Opened, in_log, in_memory

# The disk has no space.


async def test_append_with_a_full_disk_continues_in_memory_until_that_is_full_too(opened: Opened) -> None:
    """Then puts fail with DISK_FULL; takes continue, and make space."""
    channel = await opened.open(memory_capacity=2, min_free_bytes=1 << 41)
    await append(channel, b"a", b"b")
    with pytest.raises(DiskFullError):
        await append(channel, b"c")
    assert await consume(channel, 1) == [b"a"]
    await append(channel, b"c")
    assert (in_memory(channel), in_log(channel)) == ([2, 3], [])


async def test_append_with_a_full_disk_goes_to_memory_behind_the_log(opened: Opened) -> None:
    """As many events as fit go to memory; the order is still that of sequences."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b", b"c")
    channel.enforce(small_spillable_limits(memory_capacity=2, min_free_bytes=1 << 41))
    await append(channel, b"d")
    await append(channel, b"e")
    with pytest.raises(DiskFullError):
        await append(channel, b"f")
    assert (in_log(channel), in_memory(channel)) == ([1, 2, 3], [4, 5])
    assert await consume(channel) == [b"a", b"b", b"c", b"d", b"e"]


async def test_append_that_the_disk_refused_goes_to_memory_when_it_comes_again(opened: Opened) -> None:
    """The failure could not be foreseen, for example with a quota or other programs that write."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b", b"c")
    opened.disk.fail("write", 1, errno.ENOSPC, count=1_000)
    with pytest.raises(DiskFullError):
        await append(channel, b"d", stamp=Stamp("p", 1, 1))
    receipt = await append(channel, b"d", stamp=Stamp("p", 1, 1))
    assert (receipt.first_sequence, receipt.is_deduplicated) == (4, False)
    assert in_memory(channel) == [4]
    opened.disk.heal()


async def test_commit_that_takes_from_the_log_with_a_full_disk_puts_nothing_in_memory(opened: Opened) -> None:
    """The whole commit is refused, and its transaction stays open."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b", b"c")
    channel.enforce(small_spillable_limits(memory_capacity=2, min_free_bytes=1 << 41))
    txn_id = await begin_with_takes(channel, 1)
    channel.transactions.put(txn_id, [stored(b"d")], None)
    with pytest.raises(DiskFullError):
        await channel.transactions.commit([txn_id], None)
    channel.transactions.rollback(txn_id)
    assert queued(channel) == [b"a", b"b", b"c"]


async def test_commit_of_memory_behind_one_that_is_refused_is_made_again(opened: Opened) -> None:
    """The events that it takes are only in memory, so it needs no disk; nothing of the refused commit remains."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    taker = await begin_with_takes(channel, 2)
    opened.disk.fail("write", 1, errno.ENOSPC, count=1_000)
    outcomes = await asyncio.gather(
        append(channel, b"c"), channel.transactions.commit([taker], None), return_exceptions=True
    )
    assert isinstance(outcomes[0], DiskFullError)
    assert not isinstance(outcomes[1], BaseException)
    assert not channel._contents.capacity.event_count
    opened.disk.heal()
    receipt = await append(channel, b"d")
    assert receipt.first_sequence == 3


# The log has failed.


async def fail_log(opened: Opened, channel: Channel) -> None:
    """Makes the sync of a commit that spills fail."""
    opened.disk.fail("sync", 1, errno.EIO)
    with pytest.raises(ChannelLogFailedError):
        await append(channel, *[b"x"] * 50)


async def test_takes_of_memory_after_the_log_has_failed_continue(opened: Opened) -> None:
    """The events in memory can still be delivered; puts, which a restart would lose, are refused."""
    channel = await opened.open(memory_capacity=3, transaction_capacity=100)
    await append(channel, b"a", b"b")
    await fail_log(opened, channel)
    with pytest.raises(ChannelLogFailedError):
        await append(channel, b"c")
    with pytest.raises(ChannelLogFailedError):
        await channel.appends.append([], Stamp("p", 1, 1))
    assert await consume(channel, 1) == [b"a"]
    delivery = await channel.deliveries.deliver(TakeLimits())
    assert bodies_of(delivery.takes) == [b"b"]
    assert channel.deliveries.settle(delivery).state is CommitState.DURABLE
    with pytest.raises(ChannelLogFailedError):
        await channel.deliveries.deliver(TakeLimits())
    assert opened.now.changes


async def test_take_after_the_log_has_failed_ends_where_memory_ends(opened: Opened) -> None:
    """Events taken together are committed together, and events in the log cannot be removed any more."""
    channel = await opened.open(memory_capacity=2, transaction_capacity=100)
    await append(channel, b"a", b"b")
    await append(channel, b"c")
    await fail_log(opened, channel)
    assert await consume(channel) == [b"a", b"b"]
    taker = await begin_with_takes(channel, 1)
    with pytest.raises(ChannelLogFailedError):
        await channel.transactions.commit([taker], None)
    with pytest.raises(ChannelLogFailedError):
        await channel.deliveries.deliver(TakeLimits())
    channel.transactions.rollback(taker)
    assert queued(channel) == [b"c"]


# The reserve of sequences.


async def test_appends_to_memory_reserve_sequences_ahead_of_their_use(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once half of the reserve is used, more is reserved during commits; only reserved sequences are assigned."""
    monkeypatch.setattr(memory_tier, "RESERVED_AHEAD", 40)
    channel = await opened.open(memory_capacity=3, transaction_capacity=1)
    assert isinstance(channel._core.committer, SpillableCommitter)
    share = channel._core.committer.tier
    for number in range(200):
        await append(channel, b"%d" % number)
        assert share.reserved_sequence > number + 1
        await consume(channel)
        await asyncio.sleep(0)
    assert 200 < share.reserved_sequence <= 250
    assert channel._contents.next_sequence == 201


async def test_append_before_a_reserve_is_on_the_disk_takes_nothing_of_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would forget the reserve, so such events go to the log."""
    monkeypatch.setattr(memory_tier, "RESERVED_AHEAD", 10)
    monkeypatch.setattr(memory_tier, "_COMMITS_AHEAD", 0)
    channel = await opened.open(memory_capacity=100)
    commits = []
    for _ in range(15):
        commits.append(channel.appends.plan_append([stored(b"x")], None))
        channel.appends.submit_append(commits[-1])
    await asyncio.gather(*commits)
    assert in_memory(channel) == list(range(1, 11))
    assert in_log(channel) == list(range(11, 16))


async def test_append_without_a_reserve_goes_to_the_log(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk has no space for more, memory has no more sequences; everything else continues."""
    monkeypatch.setattr(memory_tier, "RESERVED_AHEAD", 40)
    channel = await opened.open(memory_capacity=100, transaction_capacity=1)
    opened.disk.fail("write", 1, errno.ENOSPC)
    for number in range(40):
        await append(channel, b"%d" % number)
        await asyncio.sleep(0)
    assert isinstance(channel._core.committer, SpillableCommitter)
    assert channel._core.committer.tier.reserving_sequence == 41, "what was refused is not counted upon"
    opened.disk.heal()
    await append(channel, b"spilled")
    assert in_memory(channel) == list(range(1, 41))
    assert in_log(channel) == [41]
    await channel.purge()
    # The disk has space again, and is tried again after a while.
    await asyncio.sleep(60.0)
    for _ in range(2):
        await append(channel, b"reserves")
        await channel.purge()
        await asyncio.sleep(0)
    await append(channel, b"in memory")
    assert in_memory(channel) == [44]
