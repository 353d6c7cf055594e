"""The state of a spillable channel after a crash, and what it must not report as stored."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millrace_server.channels import memory_tier
from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import CommitState
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import LeaseExpiredError, SequenceGoneError, TxnNotFoundError, TxnStateError
from tests.channel_events import append, begin, begin_with_puts, begin_with_takes, bodies_of, consume, queued, stored
from tests.simulated_channels import open_simulated_channel, small_spillable_limits
from tests.simulated_disk import SimulatedDisk
from tests.spillable_channels import Opened


async def consume_delivery(channel: Channel) -> list[bytes]:
    """Takes events as a stream does, and acknowledges them."""
    delivery = await channel.deliveries.deliver(TakeLimits())
    bodies = bodies_of(delivery.takes)
    assert channel.deliveries.settle(delivery).state is CommitState.DURABLE
    return bodies


def accepted(channel: Channel, producer_id: str = "p") -> list[tuple[int, int]]:
    """The numbers that the channel reports as stored."""
    return list(channel._contents.ledger.intervals_of(producer_id))


@pytest.mark.parametrize("crash", [Opened.kill, Opened.cut_power])
async def test_crash_loses_what_is_in_memory_and_nothing_of_the_log(opened: Opened, crash: Callable[..., Any]) -> None:
    """The oldest events are lost, and the remaining ones are in order without a gap."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    await append(channel, b"c")
    await append(channel, b"d", b"e")
    channel = await crash(opened)
    assert [(batch.first_sequence, batch.count) for batch in channel._contents.queue] == [(3, 3)]
    assert await consume(channel) == [b"c", b"d", b"e"]


@pytest.mark.parametrize("crash", [Opened.kill, Opened.cut_power])
async def test_crash_assigns_no_sequence_twice(
    opened: Opened, crash: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences of lost events are not reused either: a consumer must not confuse them with others."""
    monkeypatch.setattr(memory_tier, "RESERVED_AHEAD", 40)
    channel = await opened.open(memory_capacity=3, transaction_capacity=4)
    given: set[int] = set()
    for number in range(60):
        for size in (1, 1, 1 + number % 4):
            receipt = await append(channel, *[b"x"] * size)
            fresh = set(range(receipt.first_sequence, receipt.last_sequence + 1))
            assert not fresh & given
            given |= fresh
            if number % 3:
                await consume(channel, 2)
        if number % 7 == 0:
            channel = await crash(opened, memory_capacity=3, transaction_capacity=4)
        if number % 11 == 0:
            await opened.now.checkpoint()


async def test_crash_without_use_and_a_stop_after_it_skip_nothing_more(opened: Opened) -> None:
    """A stop knows which sequences were assigned, and releases the reserve."""
    channel = await opened.open()
    await append(channel, b"lost")
    channel = await opened.kill()
    first = (await append(channel, b"a")).first_sequence
    assert first == memory_tier.RESERVED_AHEAD + 1
    for _ in range(2):
        await opened.now.close()
        channel = await opened.open()
    assert (await append(channel, b"b")).first_sequence == first + 1


async def test_crash_forgets_the_stamps_of_what_is_lost(opened: Opened) -> None:
    """Lost events that a producer sends again are stored; events in the log are not stored twice."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"1", b"2", stamp=Stamp("p", 1, 2))
    await append(channel, b"3", b"4", stamp=Stamp("p", 3, 4))
    channel = await opened.kill()
    assert accepted(channel) == [(3, 4)]
    receipt = await append(channel, b"1", b"2", b"3", b"4", stamp=Stamp("p", 1, 4))
    assert receipt.is_deduplicated
    assert queued(channel) == [b"3", b"4", b"1", b"2"]


@pytest.mark.parametrize("is_whole", [False, True])
async def test_checkpoint_reports_stamps_of_what_has_left_memory(opened: Opened, *, is_whole: bool) -> None:
    """A commit is permanent once its last event was consumed; until then a crash undoes all of it."""
    channel = await opened.open(memory_capacity=5)
    stamp = Stamp("p", 1, 1) if is_whole else Stamp("p", 1, 2)
    await append(channel, b"1", b"2", stamp=stamp)
    await append(channel, b"3", stamp=Stamp("p", 3, 3))
    await consume(channel, 1)
    await opened.now.checkpoint()
    assert accepted(await opened.kill()) == []
    channel = await opened.open(memory_capacity=5)
    await append(channel, b"1", b"2", stamp=stamp)
    await append(channel, b"3", stamp=Stamp("p", 3, 3))
    await consume(channel, 2)
    await opened.now.checkpoint()
    opened.remove_checkpoints()
    assert accepted(await opened.kill()) == [(stamp.first, stamp.last)]


async def test_commit_to_the_log_calls_no_lost_repeat_stored(opened: Opened) -> None:
    """Repetitions of events in memory are lost with those events; its own events are not."""
    channel = await opened.open(memory_capacity=3)
    await append(channel, b"2", b"4", stamp=None)
    await append(channel, b"2", stamp=Stamp("p", 2, 2))
    await append(channel, b"1", b"2", b"3", stamp=Stamp("p", 1, 3))
    assert queued(channel) == [b"2", b"4", b"2", b"1", b"3"]
    channel = await opened.kill()
    assert accepted(channel) == [(1, 1), (3, 3)]
    assert queued(channel) == [b"1", b"3"]


async def test_append_of_nothing_with_a_stamp_is_remembered_with_the_next_checkpoint(opened: Opened) -> None:
    """Nothing can be lost of it; while the log contains events, the stamp is written at once."""
    channel = await opened.open(memory_capacity=1)
    await channel.appends.append([], Stamp("p", 1, 5))
    await opened.now.checkpoint()
    channel = await opened.kill(memory_capacity=1)
    assert accepted(channel) == [(1, 5)]
    await append(channel, b"a", b"b")
    await channel.appends.append([], Stamp("p", 6, 9))
    assert accepted(await opened.kill()) == [(1, 9)]


async def test_commit_again_after_a_crash_that_lost_it_finds_no_transaction(opened: Opened) -> None:
    """The caller does not learn that it is committed; if its events are in the log, it is."""
    channel = await opened.open(memory_capacity=2)
    lost, kept = begin_with_puts(channel, b"a"), begin_with_puts(channel, b"b", b"c")
    await channel.transactions.commit([lost], None)
    await channel.transactions.commit([kept], None)
    await opened.now.checkpoint()
    channel = await opened.kill(memory_capacity=2)
    with pytest.raises(TxnNotFoundError):
        await channel.transactions.commit([lost], None)
    assert (await channel.transactions.commit([kept], None)).first_sequence == 2


async def test_checkpoint_reports_how_transactions_ended(opened: Opened) -> None:
    """Rolled back and expired transactions, and those whose events have left memory, are in it and in the log."""
    channel = await opened.open(memory_capacity=2)
    committed = begin_with_puts(channel, b"a")
    await channel.transactions.commit([committed], None)
    taker = await begin_with_takes(channel, 1)
    await channel.transactions.commit([taker], None)
    rolled_back, expired = begin(channel), begin(channel, lease_seconds=1.0)
    channel.transactions.rollback(rolled_back)
    await asyncio.sleep(2.0)
    await opened.now.checkpoint()
    opened.remove_checkpoints()
    channel = await opened.kill()
    assert (await channel.transactions.commit([committed], None)).first_sequence == 1
    assert (await channel.transactions.commit([taker], None)).first_sequence == 0
    with pytest.raises(TxnStateError):
        channel.transactions.put(rolled_back, [stored(b"x")], None)
    with pytest.raises(LeaseExpiredError):
        channel.transactions.put(expired, [stored(b"x")], None)


async def test_crash_after_takes_from_both_parts_brings_nothing_back(opened: Opened) -> None:
    """One commit removed both; its record contains the events of the log."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    await append(channel, b"c", b"d")
    await consume(channel, 3)
    channel = await opened.kill()
    assert queued(channel) == [b"d"]


async def test_crash_in_a_transaction_that_has_taken_from_both_parts_loses_memory_only(opened: Opened) -> None:
    """Events taken from the log are in their places again."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    await append(channel, b"c", b"d")
    await begin_with_takes(channel, 3)
    channel = await opened.kill()
    assert queued(channel) == [b"c", b"d"]


async def test_claim_after_a_crash_continues_behind_what_is_lost(opened: Opened) -> None:
    """Its epoch survives; unread events are lost, which is reported; acknowledgements continue after the gap."""
    channel = await opened.open(memory_capacity=2)
    claim = await channel.claim("r", 30.0, takeover=False)
    await append(channel, b"a", b"b")
    await append(channel, b"c")
    channel = await opened.kill(memory_capacity=2)
    renewed = await channel.claim("r", 30.0, takeover=False)
    assert renewed.epoch == claim.epoch
    with pytest.raises(SequenceGoneError):
        channel.claims.read("r", renewed.epoch, 1, 4)
    await append(channel, b"behind the reserve")
    read = [batch async for batch in channel.claims.read("r", renewed.epoch, 0, 0)]
    assert bodies_of(read) == [b"c", b"behind the reserve"]
    through = read[-1].first_sequence
    assert await channel.claims.acknowledge("r", renewed.epoch, through) == through + 1
    assert not channel._contents.capacity.event_count


async def test_crash_with_memory_behind_the_log_leaves_a_gap_and_the_order(opened: Opened) -> None:
    """Memory takes what it can while the disk is full; later events follow behind."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b", b"c")
    channel.enforce(small_spillable_limits(memory_capacity=2, min_free_bytes=1 << 41))
    await append(channel, b"lost", stamp=Stamp("p", 1, 1))
    await asyncio.sleep(60.0)
    channel.enforce(small_spillable_limits(memory_capacity=2))
    await append(channel, b"e", stamp=Stamp("p", 2, 2))
    channel = await opened.kill()
    assert [(batch.first_sequence, batch.count) for batch in channel._contents.queue] == [(1, 3), (5, 1)]
    assert accepted(channel) == [(2, 2)]


async def test_crash_in_the_midst_of_a_stop_keeps_what_was_written(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is lost as in any crash; its stamps are forgotten, and those of written events may be."""
    monkeypatch.setattr("millrace_server.channels.spillable._SPILL_BYTES", 1)
    channel = await opened.open(memory_capacity=4)
    for number in range(4):
        await append(channel, b"%d" % number, stamp=Stamp("p", number, number))
    disks: list[SimulatedDisk] = []
    opened.disk.before_call = lambda _kind, _name: disks.append(opened.disk.copy())
    await opened.now.close()
    opened.disk.before_call = lambda _kind, _name: None
    kept_counts = set()
    for disk in disks:
        again = await open_simulated_channel(disk, small_spillable_limits())
        bodies = queued(again.channel)
        assert bodies == [b"%d" % number for number in range(len(bodies))]
        stamped = {number for first, last in accepted(again.channel) for number in range(first, last + 1)}
        assert stamped <= set(range(len(bodies)))
        kept_counts.add(len(bodies))
        again.abandon()
    assert kept_counts == {0, 1, 2, 3, 4}


async def test_checkpoint_of_a_channel_in_memory_that_has_not_changed_writes_nothing(opened: Opened) -> None:
    """Events in memory are not part of a checkpoint, so an idle disk stays idle."""
    channel = await opened.open(memory_capacity=9)
    await opened.now.checkpoint()
    call_count = len(opened.disk.calls)
    await append(channel, b"a", b"b")
    delivered_count = len(await consume_delivery(channel))
    await opened.now.checkpoint()
    assert delivered_count == 2
    assert len(opened.disk.calls) == call_count
    await append(channel, b"c", stamp=Stamp("p", 1, 1))
    await opened.now.checkpoint()
    assert len(opened.disk.calls) > call_count


@pytest.mark.parametrize("has_checkpoint", [True, False])
async def test_small_commits_in_the_log_are_runs_that_a_graceful_stop_and_a_kill_keep(
    opened: Opened, *, has_checkpoint: bool
) -> None:
    """What the stop writes from memory lies between them in the log, and is in no run."""
    channel = await opened.open()
    for number in range(8):
        await append(channel, b"%d" % number)
    assert [batch.count for batch in channel._contents.queue] == [1, 1, 1, 5]
    await opened.now.close()
    if not has_checkpoint:
        opened.remove_checkpoints()
    channel = await opened.open()
    for number in range(8, 12):
        await append(channel, b"%d" % number)
    assert [batch.count for batch in channel._contents.queue] == [1, 1, 1, 5, 4]
    assert await consume(channel, 6) == [b"%d" % number for number in range(6)]
    if not has_checkpoint:
        opened.remove_checkpoints()
    channel = await opened.kill()
    assert queued(channel) == [b"%d" % number for number in range(6, 12)]
