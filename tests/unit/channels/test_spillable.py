"""The places of a spillable channel's events; see test_spillable_crashes for crashes."""

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from millrace_server.channels import memory_tier
from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import CommitState
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.spillable import SpillableCommitter
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import (
    BytesFullError,
    ChannelFullError,
    ChannelLogFailedError,
    DiskFullError,
    DrainingError,
    TxnCapacityError,
)
from tests.channel_events import (
    append,
    begin,
    begin_with_puts,
    begin_with_takes,
    bodies_of,
    consume,
    queued,
    stored,
)
from tests.simulated_channels import (
    DATA,
    SimulatedChannel,
    make_simple,
    open_simulated_channel,
    small_limits,
    small_spillable_limits,
)
from tests.simulated_disk import SimulatedDisk
from tests.spillable_channels import check_share, in_log, in_memory


@dataclass
class Opened:
    """Spillable channels on one disk, one after the other."""

    disk: SimulatedDisk = field(default_factory=lambda: SimulatedDisk([DATA]))
    now: SimulatedChannel = field(init=False)

    async def open(self, **limits: Any) -> Channel:
        self.now = await open_simulated_channel(self.disk, small_spillable_limits(**limits))
        return self.now.channel

    async def stop_and_open(self, **limits: Any) -> Channel:
        await self.now.close()
        return await self.open(**limits)

    def written_since(self, call_count: int) -> list[str]:
        """The calls that changed the disk after the first `call_count` ones."""
        return [call.kind for call in self.disk.calls[call_count:] if call.kind not in {"read", "free_bytes"}]


@pytest.fixture
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opened]:
    make_simple(monkeypatch)
    opened = Opened()
    yield opened
    check_share(opened.now.channel)
    opened.now.abandon()


# The destination of a commit.


async def test_append_that_fits_memory_writes_nothing(opened: Opened) -> None:
    """It costs as much as in a memory channel: puts, takes and rollbacks do not access the disk."""
    channel = await opened.open()
    call_count = len(opened.disk.calls)
    receipt = await append(channel, b"a", b"b", stamp=Stamp("p", 1, 2))
    assert (receipt.first_sequence, receipt.last_sequence) == (1, 2)
    channel.transactions.rollback(await begin_with_takes(channel, 2))
    assert await consume(channel) == [b"a", b"b"]
    assert opened.written_since(call_count) == []
    assert not channel._contents.capacity.event_count


async def test_append_beyond_memory_goes_to_the_log_as_a_whole(opened: Opened) -> None:
    """None of its events is in memory only, and all are behind those that are, as one queue."""
    channel = await opened.open(memory_capacity=3)
    await append(channel, b"a", b"b")
    await append(channel, b"c", b"d")
    assert (in_memory(channel), in_log(channel)) == ([1, 2], [3, 4])
    assert queued(channel) == [b"a", b"b", b"c", b"d"]


async def test_append_of_more_than_memory_ever_holds_goes_to_the_log(opened: Opened) -> None:
    """The log accepts commits that exceed the memory's limits, even if the channel is empty."""
    channel = await opened.open(memory_capacity=3)
    await append(channel, b"a", b"b", b"c", b"d")
    assert (in_memory(channel), in_log(channel)) == ([], [1, 2, 3, 4])


async def test_append_of_more_bytes_than_memory_has_left_goes_to_the_log(opened: Opened) -> None:
    """Bytes of bodies are bounded like events, and released when the events leave."""
    channel = await opened.open(memory_capacity=100, memory_byte_capacity=10)
    await append(channel, b"123456")
    await append(channel, b"12345")
    assert (in_memory(channel), in_log(channel)) == ([1], [2])
    await consume(channel)
    await append(channel, b"1234567890")
    assert in_memory(channel) == [3]


async def test_append_while_the_log_holds_events_goes_behind_them_there(opened: Opened) -> None:
    """Memory that was freed meanwhile stays unused, so that a crash loses only the oldest events."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    await append(channel, b"c", b"d")
    assert await consume(channel, 3) == [b"a", b"b", b"c"]
    await append(channel, b"e")
    assert (in_memory(channel), in_log(channel)) == ([], [4, 5])


async def test_append_once_the_log_holds_nothing_goes_to_memory_again(opened: Opened) -> None:
    """Taken events count as held: they may be returned."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b", b"c")
    taker = await begin_with_takes(channel, 3)
    await append(channel, b"d")
    channel.transactions.rollback(taker)
    assert in_log(channel) == [1, 2, 3, 4]
    await consume(channel)
    call_count = len(opened.disk.calls)
    await append(channel, b"e", b"f")
    assert in_memory(channel) == [5, 6]
    assert opened.written_since(call_count) == []


async def test_append_of_the_channels_capacity_counts_both_parts(opened: Opened) -> None:
    """`capacity` includes the events in memory, and the keep-alive holds wherever events are."""
    channel = await opened.open(capacity=4, memory_capacity=2, body_bytes_max=100)
    await append(channel, b"a", b"b")
    await append(channel, b"c")
    with pytest.raises(ChannelFullError):
        await append(channel, b"d", b"e")
    with pytest.raises(BytesFullError):
        await append(channel, bytes(98))
    with pytest.raises(TxnCapacityError):
        await append(channel, *[b"x"] * 5)
    await append(channel, b"d")
    assert (in_memory(channel), in_log(channel)) == ([1, 2], [3, 4])


# Takes and transactions.


async def test_take_across_memory_and_log_returns_both(opened: Opened) -> None:
    """Flume's takes end at the boundary and report an empty channel although there are events; these do not."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    await append(channel, b"c", b"d")
    taker = await begin_with_takes(channel, 3)
    other = await begin_with_takes(channel, 1)
    channel.transactions.rollback(taker)
    channel.transactions.rollback(other)
    assert queued(channel) == [b"a", b"b", b"c", b"d"]
    assert await consume(channel) == [b"a", b"b", b"c", b"d"]


async def test_commit_that_swaps_one_for_one_in_full_memory_stays_there(opened: Opened) -> None:
    """The takes make space for the puts."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    txn_id = await begin_with_takes(channel, 1)
    channel.transactions.put(txn_id, [stored(b"c")], None)
    call_count = len(opened.disk.calls)
    await channel.transactions.commit([txn_id], None)
    assert in_memory(channel) == [2, 3]
    assert opened.written_since(call_count) == []


async def test_commit_that_takes_from_the_log_puts_there(opened: Opened) -> None:
    """Otherwise a crash would lose the puts in memory, but not the takes from the log."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b", b"c")
    txn_id = await begin_with_takes(channel, 3)
    channel.transactions.put(txn_id, [stored(b"d")], None)
    await channel.transactions.commit([txn_id], None)
    assert in_log(channel) == [4]


async def test_commit_of_memory_behind_one_of_the_log_keeps_the_order(opened: Opened) -> None:
    """The commit in the log may still fail, so later commits are acknowledged after it."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    taker = await begin_with_takes(channel, 2)
    ended: list[str] = []
    spilling = asyncio.ensure_future(append(channel, b"c"))
    spilling.add_done_callback(lambda _: ended.append("log"))
    await asyncio.sleep(0)
    taking = asyncio.ensure_future(channel.transactions.commit([taker], None))
    taking.add_done_callback(lambda _: ended.append("memory"))
    await asyncio.gather(spilling, taking)
    assert ended == ["log", "memory"]
    assert queued(channel) == [b"c"]


async def test_commit_of_memory_behind_one_of_the_log_needs_no_sync(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the other commit, and needs no sync of its own."""
    # Each commit becomes a group of its own.
    monkeypatch.setattr("millrace_server.wal.writer.GROUP_BYTES_MAX", 1)
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    taker = await begin_with_takes(channel, 2)
    call_count = len(opened.disk.calls)
    await asyncio.gather(append(channel, b"c"), channel.transactions.commit([taker], None))
    assert opened.written_since(call_count).count("sync") == 1


async def test_commit_of_memory_while_a_checkpoint_waits_for_the_disk_is_made_at_once(opened: Opened) -> None:
    """It does not wait for a claim or for more sequences either: a stalled disk does not affect events in memory."""
    channel = await opened.open()
    checkpointing = asyncio.ensure_future(opened.now.checkpoint())
    claiming = asyncio.ensure_future(channel.claim("r", 30.0, takeover=False))
    await asyncio.sleep(0)
    commit = channel.appends.plan_append([stored(b"a")], None)
    channel.appends.submit_append(commit)
    assert commit.state is CommitState.DURABLE
    assert not checkpointing.done()
    assert not claiming.done()
    await asyncio.gather(checkpointing, claiming)
    assert in_memory(channel) == [1]


# Known problems of Flume's spillable channel.


async def test_rollback_of_an_empty_transaction_is_a_rollback(opened: Opened) -> None:
    """In Flume this raises a NullPointerException."""
    channel = await opened.open()
    channel.transactions.rollback(begin(channel))
    assert channel._contents.counters.rollbacks == 1


async def test_rollback_of_puts_leaves_the_memorys_budget_as_it_was(opened: Opened) -> None:
    """In Flume the budget grows by the size of the puts each time."""
    channel = await opened.open(memory_capacity=2, memory_byte_capacity=10)
    for _ in range(3):
        channel.transactions.rollback(begin_with_puts(channel, b"12345"))
    await append(channel, b"1234567890")
    await append(channel, b"")
    await append(channel, b"c")
    assert (in_memory(channel), in_log(channel)) == ([1, 2], [3])


async def test_rollback_of_puts_and_takes_returns_what_was_taken(opened: Opened) -> None:
    """In Flume the event is lost."""
    channel = await opened.open()
    await append(channel, b"a")
    txn_id = await begin_with_takes(channel, 1)
    channel.transactions.put(txn_id, [stored(b"b")], None)
    channel.transactions.rollback(txn_id)
    assert queued(channel) == [b"a"]


async def test_commits_of_puts_and_takes_leak_no_space_in_memory(opened: Opened) -> None:
    """In Flume each such commit loses one slot."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a")
    for _ in range(5):
        txn_id = await begin_with_takes(channel, 1)
        channel.transactions.put(txn_id, [stored(b"next")], None)
        await channel.transactions.commit([txn_id], None)
        check_share(channel)
    await append(channel, b"z")
    assert in_memory(channel) == [6, 7]


async def test_counters_of_both_parts_are_those_of_one_channel(opened: Opened) -> None:
    """In Flume they were wrong; here one queue has one account, wherever its events are."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    await append(channel, b"c", b"d", stamp=Stamp("p", 1, 2))
    await append(channel, b"c", b"d", stamp=Stamp("p", 1, 2))
    txn_id = await begin_with_takes(channel, 3)
    channel.transactions.rollback(txn_id)
    assert len(await consume(channel, 3)) == 3
    counters, contents = channel._contents.counters, channel._contents
    assert (counters.put_attempts, counters.put_successes, counters.deduplicated) == (6, 4, 2)
    assert (counters.take_attempts, counters.take_successes) == (6, 3)
    assert (counters.commits, counters.rollbacks) == (4, 1)
    assert (contents.capacity.event_count, contents.capacity.body_bytes, contents.queue.event_count) == (1, 1, 1)
    assert channel._core.committer.memory_event_count == 0


async def test_open_after_one_that_failed_finds_what_the_log_has(opened: Opened) -> None:
    """In Flume the channel stays unusable after a failed start; here the next opening succeeds."""
    channel = await opened.open(memory_capacity=1)
    await append(channel, b"a", b"b")
    opened.now.abandon()
    opened.disk.fail("open", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        await opened.open(memory_capacity=1)
    opened.disk.heal()
    channel = await opened.open(memory_capacity=1)
    assert await consume(channel) == [b"a", b"b"]


# Limits that change.


async def test_update_of_the_memorys_capacity_is_in_force_at_once(opened: Opened) -> None:
    """With a smaller capacity, events in memory stay and new ones go to the log."""
    channel = await opened.open(memory_capacity=1)
    await append(channel, b"a")
    assert not await channel.update(small_spillable_limits(memory_capacity=3))
    await append(channel, b"b", b"c")
    assert in_memory(channel) == [1, 2, 3]
    assert not await channel.update(small_spillable_limits(memory_capacity=1))
    await append(channel, b"d")
    assert (in_memory(channel), in_log(channel)) == ([1, 2, 3], [4])


async def test_purge_and_claims_reach_both_parts(opened: Opened) -> None:
    """An acknowledgement covers events in memory and in the log; a purge removes the rest."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    await append(channel, b"c", b"d")
    claim = await channel.claim("r", 30.0, takeover=False)
    read = [batch async for batch in channel.claims.read("r", claim.epoch, 0, 0)]
    assert bodies_of(read) == [b"a", b"b", b"c", b"d"]
    assert await channel.claims.acknowledge("r", claim.epoch, 3) == 4
    assert await channel.purge() == 1
    check_share(channel)
    assert not channel._contents.capacity.event_count


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


# A graceful stop.


async def test_stop_writes_what_is_in_memory_to_the_log(opened: Opened) -> None:
    """After the restart all events have their sequences, without gaps; taken events are back in their places."""
    channel = await opened.open(memory_capacity=5)
    await append(channel, b"a", b"b", b"c", stamp=Stamp("p", 1, 3))
    txn_id = begin_with_puts(channel, b"d")
    await channel.transactions.commit([txn_id], Stamp("q", 7, 7))
    await begin_with_takes(channel, 2)
    begin_with_puts(channel, b"never committed")
    channel = await opened.stop_and_open(memory_capacity=5)
    assert in_log(channel) == [1, 2, 3, 4]
    assert queued(channel) == [b"a", b"b", b"c", b"d"]
    again = await append(channel, b"a", b"b", b"c", b"e", stamp=Stamp("p", 1, 4))
    assert (again.first_sequence, again.last_sequence, again.is_deduplicated) == (5, 5, True)
    assert (await channel.transactions.commit([txn_id], None)).first_sequence == 4


async def test_stop_right_after_a_checkpoint_takes_the_reserve_back(opened: Opened) -> None:
    """This holds even if there is nothing else to write: no sequence is skipped."""
    channel = await opened.open()
    await append(channel, b"a")
    await consume(channel)
    await opened.now.checkpoint()
    channel = await opened.stop_and_open()
    assert (await append(channel, b"b")).first_sequence == 2


async def test_stop_keeps_what_is_left_of_a_request(opened: Opened) -> None:
    """Its columns are written once and completely; events that have left the channel do not return."""
    channel = await opened.open(memory_capacity=9)
    await append(channel, b"a", b"b", b"c", b"d", b"e")
    first, second = await begin_with_takes(channel, 1), await begin_with_takes(channel, 1)
    assert await consume(channel, 1) == [b"c"]
    await channel.transactions.commit([first], None)
    channel.transactions.rollback(second)
    channel = await opened.stop_and_open()
    assert [batch.first_sequence for batch in channel._contents.queue] == [2, 4]
    assert await consume(channel) == [b"b", b"d", b"e"]


async def test_stop_with_a_log_behind_memory_keeps_the_order(opened: Opened) -> None:
    """The events from memory are written after the log's, and ordered before them."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    await append(channel, b"c")
    channel = await opened.stop_and_open()
    assert queued(channel) == [b"a", b"b", b"c"]
    channel = await opened.stop_and_open()
    assert await consume(channel) == [b"a", b"b", b"c"]


async def test_stop_of_large_memory_writes_it_in_portions(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """One write contains a bounded part of it, however much there is."""
    monkeypatch.setattr("millrace_server.channels.spillable._SPILL_BYTES", 500)
    channel = await opened.open(memory_capacity=100, transaction_capacity=10)
    for number in range(20):
        await append(channel, b"%d" % number + bytes(120))
    channel = await opened.stop_and_open(transaction_capacity=100)
    assert [body.rstrip(b"\0") for body in await consume(channel)] == [b"%d" % number for number in range(20)]


async def test_kill_behind_a_portion_that_a_stop_has_written_leaves_whole_commits_with_their_stamps(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that got no response sends again, and what the log has of it must not be stored twice."""
    monkeypatch.setattr("millrace_server.channels.spillable._SPILL_BYTES", 500)
    channel = await opened.open(memory_capacity=100)
    await append(channel, b"a" + bytes(300), stamp=Stamp("p", 1, 1))
    txn_id = begin_with_puts(channel, b"b" + bytes(300))
    channel.transactions.put(txn_id, [stored(b"c" + bytes(300))], None)
    await channel.transactions.commit([txn_id], Stamp("q", 1, 2))
    await append(channel, b"d", stamp=Stamp("p", 2, 2))
    committer = channel._core.committer
    assert isinstance(committer, SpillableCommitter)
    committer._is_draining = True
    portions = list(committer._portions())
    assert [[batch.first_sequence for batch in portion] for portion in portions] == [[1, 2, 3], [4]]
    await committer._spill(portions[0])
    opened.now.abandon()
    channel = await opened.open(memory_capacity=100)
    assert [body[:1] for body in queued(channel)] == [b"a", b"b", b"c"]
    again = await append(channel, b"a", b"d", stamp=Stamp("p", 1, 2))
    assert (again.first_sequence, again.is_deduplicated) == (again.last_sequence, True)
    assert (await channel.transactions.commit([txn_id], None)).first_sequence == 2
    assert [body[:1] for body in queued(channel)] == [b"a", b"b", b"c", b"d"]


async def test_stop_while_commits_are_under_way_keeps_what_they_leave(opened: Opened) -> None:
    """Events that such a commit consumes are neither written nor reported as lost, even if it waits for the disk."""
    channel = await opened.open(memory_capacity=10)
    await append(channel, b"consumed")
    await append(channel, b"stays")
    txn_id = await begin_with_takes(channel, 1)
    spilling = asyncio.ensure_future(append(channel, *[b"large"] * 12))
    await asyncio.sleep(0)
    consuming = asyncio.ensure_future(channel.transactions.commit([txn_id], None))
    await asyncio.sleep(0)
    assert not consuming.done()
    with structlog.testing.capture_logs() as reported:
        commits = channel._core.committer
        assert isinstance(commits, SpillableCommitter)
        await commits.drain(None)
    await asyncio.gather(spilling, consuming)
    assert reported == []
    channel = await opened.stop_and_open(memory_capacity=10)
    assert queued(channel) == [b"stays", *[b"large"] * 12]


async def test_stop_with_a_full_disk_keeps_the_oldest_and_reports_the_rest(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events without space are lost, which the server logs with their number; written ones stay valid."""
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr("millrace_server.channels.spillable._SPILL_BYTES", 1)
    monkeypatch.setattr(
        "millrace_server.channels.spillable._log.error",
        lambda event, **fields: reported.append({"event": event, **fields}),
    )
    channel = await opened.open(memory_capacity=3)
    for body in (b"a", b"b", b"c"):
        await append(channel, body, stamp=Stamp("p", body[0], body[0]))
    opened.disk.fail("write", 2, errno.ENOSPC)
    await opened.now.close()
    channel = await opened.open()
    assert queued(channel) == [b"a"]
    [loss] = reported
    assert (loss["event"], loss["events"]) == ("events that were only in memory are lost", 2)
    assert "no space" in loss["reason"]
    again = await append(channel, b"a", b"b", b"c", stamp=Stamp("p", ord("a"), ord("c")))
    assert (again.first_sequence, again.last_sequence) == (4, 5)


async def test_stop_without_time_is_not_held_up_by_what_is_in_memory(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server is stopped at once, or the disk does not respond, they are lost, which is logged."""
    reported: list[int] = []
    monkeypatch.setattr(
        "millrace_server.channels.spillable._log.error", lambda _, events, **__: reported.append(events)
    )
    channel = await opened.open(memory_capacity=3)
    await append(channel, b"a", b"b")
    await opened.now.store.close(0.0)
    assert reported == [2]
    assert (await append(await opened.open(), b"c")).first_sequence == 3


async def test_commit_while_the_channel_is_closed_is_refused(opened: Opened) -> None:
    """It would be too late to be written; the error lets the producer use another server."""
    channel = await opened.open(memory_capacity=3)
    await append(channel, b"a")
    await opened.now.close()
    with pytest.raises(DrainingError):
        await append(channel, b"b")


# The other types.


async def test_open_as_a_file_channel_and_back_finds_the_same(opened: Opened) -> None:
    """Both types read the log of the other, except for events in memory at the time of a kill."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a")
    await opened.now.close()
    as_file = await open_simulated_channel(opened.disk, small_limits())
    assert queued(as_file.channel) == [b"a"]
    assert (await append(as_file.channel, b"b")).first_sequence == 2
    await as_file.close()
    channel = await opened.open(memory_capacity=2)
    assert await consume(channel) == [b"a", b"b"]
    await append(channel, b"c")
    opened.now.abandon()
    as_file = await open_simulated_channel(opened.disk, small_limits())
    assert queued(as_file.channel) == []
    assert (await append(as_file.channel, b"d")).first_sequence > 3
    as_file.abandon()
