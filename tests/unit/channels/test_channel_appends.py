"""An append in parts, as needed to append to several channels."""

import errno

import pytest

from millrace_server.channels.commit import CommitState, Receipt
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import (
    BadArgumentError,
    ChannelLogFailedError,
    DiskFullError,
    DrainingError,
    EventTooLargeError,
    TxnCapacityError,
)
from tests.channel_events import append, check_accounts, open_channel, queued, stored
from tests.file_channels import Gate, called, durable_state_on, file_channel
from tests.simulated_disk import SimulatedDisk

HAS_THREADS = True


async def test_plan_append_changes_nothing_until_it_is_begun() -> None:
    """Plans may be made and discarded; the last one counts."""
    channel = open_channel()
    _ = channel.appends.plan_append([stored(b"a")], Stamp("p", 1, 1))
    commit = channel.appends.plan_append([stored(b"b")], Stamp("p", 1, 1))
    assert (queued(channel), channel._contents.ledger.has_accepted(Stamp("p", 1, 1))) == ([], False)
    channel.appends.submit_append(commit)
    assert (commit.state, commit.receipt) == (CommitState.DURABLE, Receipt(1, 1))
    assert queued(channel) == [b"b"]
    check_accounts(channel)


async def test_plan_append_refuses_what_append_refuses() -> None:
    """Refusals come before anything has begun in any channel."""
    channel = open_channel(capacity=4, transaction_capacity=2, body_bytes_max=10)
    await append(channel, b"a", stamp=Stamp("p", 1, 10))
    with pytest.raises(TxnCapacityError):
        _ = channel.appends.plan_append([stored(b"a", b"b", b"c")], None)
    with pytest.raises(EventTooLargeError):
        _ = channel.appends.plan_append([stored(bytes(11))], None)
    with pytest.raises(BadArgumentError):
        _ = channel.appends.plan_append([stored(b"a")], Stamp("p", 5, 15))
    channel.drain()
    with pytest.raises(DrainingError):
        _ = channel.appends.plan_append([stored(b"a")], None)


async def test_refuse_unstorable_looks_at_single_events_only() -> None:
    """The number of events and the space in the channel do not matter."""
    channel = open_channel(capacity=1, body_bytes_max=10)
    channel.appends.refuse_unstorable([stored(bytes(10), bytes(10)), stored(*[b"x"] * 100)])
    with pytest.raises(EventTooLargeError):
        channel.appends.refuse_unstorable([stored(b"x"), stored(bytes(11))])


async def test_append_of_no_events_has_its_stamp_last(disk: SimulatedDisk) -> None:
    """The log keeps the stamp: a source asks the channel where to continue, and other channels rely on it."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a", stamp=Stamp("p", 0, 9))
        assert await opened.channel.appends.append([], Stamp("p", 10, 19)) == Receipt()
        before = opened.journal.change_count
        # A repeat is not written.
        assert await opened.channel.appends.append([], Stamp("p", 10, 19)) == Receipt()
        assert opened.journal.change_count == before
        durable_state = await durable_state_on(disk.copy())
        assert (durable_state.stamps, durable_state.next_sequence) == ({"p": [(0, 19)]}, 2)
        assert durable_state == opened.durable_state()


async def test_append_of_no_events_whose_sync_fails_is_not_accepted(disk: SimulatedDisk) -> None:
    """The caller receives the error of the log, and the stamp does not count as accepted."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        disk.fail("sync", 1, errno.EIO)
        with pytest.raises(ChannelLogFailedError):
            await opened.channel.appends.append([], Stamp("p", 0, 9))
        assert not opened.channel._contents.ledger.has_accepted(Stamp("p", 0, 9))


async def test_settled_waits_for_all_that_is_on_its_way(disk: SimulatedDisk) -> None:
    """This includes an append whose caller has been cancelled."""
    async with file_channel(disk) as opened:
        gate = Gate(disk)
        gate.close()
        [appending] = await called(append(opened.channel, b"a", stamp=Stamp("p", 0, 9)))
        await gate.reached()
        appending.cancel()
        [settling] = await called(opened.channel.appends.wait_until_durable())
        assert not settling.done()
        gate.open()
        await settling
        assert queued(opened.channel) == [b"a"]
        before = opened.journal.change_count
        await opened.channel.appends.wait_until_durable()
        assert opened.journal.change_count == before


async def test_settled_when_what_was_on_its_way_found_no_space_is_settled(disk: SimulatedDisk) -> None:
    """An append that found no space will not be stored, so its outcome is known."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        gate = Gate(disk)
        gate.close()
        [first] = await called(append(opened.channel, b"b"))
        await gate.reached()
        disk.fail("write", 1, errno.ENOSPC, 10)
        [second] = await called(append(opened.channel, b"c", stamp=Stamp("p", 0, 9)))
        [settling] = await called(opened.channel.appends.wait_until_durable())
        gate.open()
        await settling
        await first
        with pytest.raises(DiskFullError):
            await second
        assert not opened.channel._contents.ledger.has_accepted(Stamp("p", 0, 9))


async def test_settled_when_the_log_has_failed_reports_it(disk: SimulatedDisk) -> None:
    """What is stored is unknown until the channel is opened again."""
    async with file_channel(disk) as opened:
        disk.fail("sync", 1, errno.EIO)
        with pytest.raises(ChannelLogFailedError):
            await append(opened.channel, b"a")
        with pytest.raises(ChannelLogFailedError):
            await opened.channel.appends.wait_until_durable()


async def test_settled_of_a_channel_in_memory_is_at_once() -> None:
    """An append in memory is stored when it begins."""
    channel = open_channel()
    await append(channel, b"a")
    [settling] = await called(channel.appends.wait_until_durable())
    assert settling.done()
    assert queued(channel) == [b"a"]
