"""The places of a spillable channel's events."""

import asyncio
import errno

import pytest

from millrace_server.channels.commit import CommitState
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BytesFullError, ChannelFullError, TxnCapacityError
from tests.channel_events import append, begin, begin_with_puts, begin_with_takes, bodies_of, consume, queued, stored
from tests.simulated_channels import open_simulated_channel, small_limits, small_spillable_limits
from tests.spillable_channels import Opened, check_share, in_log, in_memory

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
