import asyncio
import errno

import pytest

from millrace_server.channels import journal
from millrace_server.channels.commit import Receipt
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import ChannelLogFailedError, DiskFullError
from tests.channel_events import (
    append,
    begin,
    begin_with_puts,
    begin_with_takes,
    bodies_of,
    check_accounts,
    make_space,
    queued,
    stored,
    take,
)
from tests.fake_clock import FakeClock
from tests.file_channels import (
    DATA,
    Gate,
    called,
    durable_state_on,
    file_channel,
    file_limits,
    held_append,
    refusal,
    turn,
)
from tests.simulated_disk import SimulatedDisk
from tests.waiting import until

HAS_THREADS = True

FULL = errno.ENOSPC
LARGE = 1 << 30


# A disk without space.


async def test_append_without_space_on_the_disk_has_no_effect(disk: SimulatedDisk) -> None:
    """Everything in progress is undone: sequences have no gaps, stamps are forgotten, and capacity is released."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        first = await held_append(gate, channel, b"a")
        disk.fail("write", 1, FULL)
        calls = await called(
            append(channel, b"b", stamp=Stamp("p", 1, 1)), append(channel, b"c", stamp=Stamp("p", 2, 2))
        )
        assert channel._contents.capacity.event_count == 3
        gate.open()
        assert await first == Receipt(1, 1)
        assert [await refusal(call) for call in calls] == ["DISK_FULL"] * 2
        assert (channel._contents.assigned_sequence, len(channel._contents.ledger)) == (2, 0)
        check_accounts(channel)
        assert await append(channel, b"c", stamp=Stamp("p", 2, 2)) == Receipt(2, 2)
        durable_state = opened.durable_state()
        assert durable_state.events == [(1, b"a"), (2, b"c")]
        assert await durable_state_on(disk.copy()) == durable_state


async def test_changes_without_space_are_undone_the_last_first(disk: SimulatedDisk) -> None:
    """A stamp extended by two commits loses both; nothing counts as stored."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", stamp=Stamp("p", 1, 1))
        held = await held_append(gate, channel, b"x")
        disk.fail("write", 1, FULL)
        calls = await called(*[append(channel, b"b", stamp=Stamp("p", number, number)) for number in (2, 3, 4)])
        gate.open()
        await held
        assert [await refusal(call) for call in calls] == ["DISK_FULL"] * 3
        assert [list(intervals) for _, intervals in channel._contents.ledger.producers()] == [[(1, 1)]]


async def test_repeat_of_what_found_no_space_is_refused_too(disk: SimulatedDisk) -> None:
    """The commit was never stored, so a repetition must not report success."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        held = await held_append(gate, channel, b"x")
        disk.fail("write", 1, FULL)
        txn_id = begin_with_puts(channel, b"a")
        calls = await called(
            append(channel, b"a", stamp=Stamp("p", 1, 1)),
            append(channel, b"a", stamp=Stamp("p", 1, 1)),
            channel.transactions.commit([txn_id], Stamp("p", 1, 1)),
        )
        gate.open()
        await held
        assert [await refusal(call) for call in calls] == ["DISK_FULL"] * 3
        assert len(channel._contents.ledger) == 0
        assert await channel.transactions.commit([txn_id], Stamp("p", 1, 1)) == Receipt(2, 2)
        assert queued(channel) == [b"x", b"a"]


async def test_commits_of_takes_behind_a_refused_put_succeed(disk: SimulatedDisk) -> None:
    """They are retried without the calls that need space, as are rollbacks."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", b"b", b"c")
        taking, purging = await begin_with_takes(channel, 1), await channel.deliveries.deliver(TakeLimits(events_max=1))
        rolled_back = begin_with_puts(channel, b"z")
        held = await held_append(gate, channel, b"x")
        disk.fail("write", 1, FULL)
        putting = begin_with_puts(channel, b"b")
        calls = await called(
            channel.transactions.commit([putting], None), channel.transactions.commit([taking], None), channel.purge()
        )
        channel.transactions.rollback(rolled_back)
        assert channel.deliveries.settle(purging).is_in_flight
        gate.open()
        await held
        assert await refusal(calls[0]) == "DISK_FULL"
        assert await calls[1] == Receipt(0, 0)
        assert await calls[2] == 1
        await until(lambda: channel.open_transactions == 1)
        # Puts from the meantime are stored, and refused ones may be committed later.
        assert queued(channel) == [b"x"]
        check_accounts(channel)
        assert await channel.transactions.commit([putting], None) == Receipt(5, 5)
        durable_state = opened.durable_state()
        assert await durable_state_on(disk.copy()) == durable_state
        assert set(durable_state.ended) == {rolled_back, taking, putting}


async def test_commit_of_takes_that_is_crowded_out_twice_is_refused(disk: SimulatedDisk) -> None:
    """A disk without any space is reported; the transaction stays open with its events."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a")
        taking = await begin_with_takes(channel, 1)
        held = await held_append(gate, channel, b"x")
        disk.fail("write", 1, FULL, count=2)
        calls = await called(append(channel, b"b"), channel.transactions.commit([taking], None))
        gate.open()
        await held
        assert [await refusal(call) for call in calls] == ["DISK_FULL"] * 2
        assert (channel.open_transactions, queued(channel)) == (1, [b"x"])
        channel.transactions.rollback(taking)
        assert queued(channel) == [b"a", b"x"]
        check_accounts(channel)


async def test_transaction_whose_commit_found_no_space_stays_open(disk: SimulatedDisk) -> None:
    """It keeps its puts and takes and a whole lease, and may be rolled back or committed later."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a", b"b")
        txn_ids = [await begin_with_takes(channel, 1) for _ in range(2)]
        for txn_id in txn_ids:
            channel.transactions.put(txn_id, [stored(b"new")], None)
        disk.fail("write", 1, FULL)
        (call,) = await called(channel.transactions.commit(txn_ids, None))
        assert await refusal(call) == "DISK_FULL"
        assert channel.transactions.renew(txn_ids[0]) == 30
        assert (queued(channel), channel.open_transactions) == ([], 2)
        check_accounts(channel)
        channel.transactions.rollback(txn_ids[1])
        assert await channel.transactions.commit(txn_ids[:1], None) == Receipt(3, 3)
        assert queued(channel) == [b"b", b"new"]
        assert await durable_state_on(disk.copy()) == opened.durable_state()


async def test_purge_and_acknowledge_without_space_return_the_events(disk: SimulatedDisk) -> None:
    """The events can be read and acknowledged again."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a", b"b", b"c")
        await channel.claim("r", None, takeover=False)
        disk.fail("write", 1, FULL, count=2)
        for call in await called(channel.claims.acknowledge("r", None, 2)):
            assert await refusal(call) == "DISK_FULL"
        for call in await called(channel.purge()):
            assert await refusal(call) == "DISK_FULL"
        assert queued(channel) == [b"a", b"b", b"c"]
        check_accounts(channel)
        assert await channel.claims.acknowledge("r", None, 2) == 3
        assert await channel.purge() == 1
        assert (channel._contents.capacity.event_count, channel._contents.counters.take_successes) == (0, 2)


async def test_acknowledge_repeated_behind_one_that_was_refused_is_refused(disk: SimulatedDisk) -> None:
    """The events of the first acknowledgement were returned, so the second is refused as well."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", b"b")
        await channel.claim("r", None, takeover=False)
        held = await held_append(gate, channel, b"x")
        disk.fail("write", 1, FULL, count=2)
        calls = await called(
            append(channel, b"y"), channel.claims.acknowledge("r", None, 2), channel.claims.acknowledge("r", None, 2)
        )
        gate.open()
        await held
        assert [await refusal(call) for call in calls] == ["DISK_FULL"] * 3
        assert queued(channel) == [b"a", b"b", b"x"]


async def test_claim_without_space_leaves_none(disk: SimulatedDisk) -> None:
    """The log has no record of it either."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        disk.fail("write", 1, FULL)
        (call,) = await called(channel.claim("r", None, takeover=False))
        assert await refusal(call) == "DISK_FULL"
        assert channel.claims.claim is None
        assert opened.journal.state().claim is None
        assert (await channel.claim("r", None, takeover=False)).epoch == 2


async def test_claim_that_is_asked_for_twice_is_granted_when_it_lasts(disk: SimulatedDisk) -> None:
    """The second call renews the pending claim, and waits for it too; both get a refusal."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        gate.close()
        calls = await called(*[channel.claim("r", None, takeover=False) for _ in range(2)])
        await gate.reached()
        assert not any(call.done() for call in calls)
        gate.open()
        assert [(await call).epoch for call in calls] == [1, 1]
        await channel.claims.release("r", None)
        disk.fail("write", 1, FULL)
        calls = await called(*[channel.claim("r", None, takeover=False) for _ in range(2)])
        assert [await refusal(call) for call in calls] == ["DISK_FULL"] * 2


async def test_end_of_a_claim_behind_a_refused_put_is_remembered(disk: SimulatedDisk) -> None:
    """A restart restores neither a claim that was released nor one that was refused."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await channel.claim("r", None, takeover=False)
        held = await held_append(gate, channel, b"x")
        disk.fail("write", 1, FULL)
        (appending,) = await called(append(channel, b"y"))
        releasing, claiming = await called(
            channel.claims.release("r", None), channel.claim("other", None, takeover=False)
        )
        gate.open()
        await held
        assert await refusal(appending) == "DISK_FULL"
        await releasing
        assert await refusal(claiming) == "DISK_FULL"
        assert opened.durable_state().claim == ClaimRecord("r", 1, 30, has_ended=True)
        await append(channel, b"z")
        assert await durable_state_on(disk.copy()) == opened.durable_state()


async def test_release_without_space_ends_the_claim_and_says_that_it_may_return(disk: SimulatedDisk) -> None:
    """The channel is free at once; the record of the next claim replaces the missing one."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await channel.claim("r", None, takeover=False)
        disk.fail("write", 1, FULL)
        with pytest.raises(DiskFullError, match=r"the claim ended, but .* a restart may restore it"):
            await channel.claims.release("r", None)
        assert channel.claims.claim is None
        assert opened.durable_state().claim == ClaimRecord("r", 1, 30, has_ended=True)
        assert (await channel.claim("other", None, takeover=False)).epoch == 2
        assert await durable_state_on(disk.copy()) == opened.durable_state()


async def test_delivery_whose_acknowledgement_found_no_space_returns(disk: SimulatedDisk) -> None:
    """The delivery returns to its place and is delivered again, whether refused at once or later."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", b"b")
        delivery = await channel.deliveries.deliver(TakeLimits(events_max=1))
        disk.fail("write", 1, FULL)
        settling = channel.deliveries.settle(delivery)
        assert settling is not None
        assert channel.deliveries.settle(delivery) is settling
        channel.deliveries.nack(delivery)
        assert queued(channel) == [b"b"]
        assert await refusal(asyncio.shield(settling)) == "DISK_FULL"
        assert (queued(channel), channel.open_transactions) == ([b"a", b"b"], 0)
        check_accounts(channel)
        delivery = await channel.deliveries.deliver(TakeLimits(events_max=1))
        settling = channel.deliveries.settle(delivery)
        assert settling is not None
        assert await settling == Receipt(0, 0)
        assert (queued(channel), channel.open_transactions) == ([b"b"], 0)
        del gate


async def test_takes_on_a_disk_that_others_have_filled_go_on(disk: SimulatedDisk) -> None:
    """Also where puts had to leave nothing free: their segment has space for the records of takes."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a", b"b", b"c")
        disk.capacity_bytes -= disk.free_bytes(DATA)
        calls = await called(append(channel, bytes(200_000)), make_space(channel), make_space(channel))
        assert await refusal(calls[0]) == "DISK_FULL"
        await asyncio.gather(*calls[1:])
        durable_state = opened.durable_state()
        assert durable_state.events == [(3, b"c")]
        assert await durable_state_on(disk.copy()) == durable_state


async def test_puts_that_would_leave_too_little_free_are_refused_alone(disk: SimulatedDisk) -> None:
    """Nothing is written; takes, rollbacks, claims and checkpoints continue."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a", b"b", b"c")
        channel.enforce(file_limits(min_free_bytes=LARGE))
        disk.capacity_bytes = LARGE
        await opened.journal.measure()
        before = opened.journal.change_count
        (appending,) = await called(append(channel, b"x"))
        with pytest.raises(
            DiskFullError,
            match=r"bytes free; a put of [0-9]+ bytes would leave less than min_free_bytes, 1073741824; takes",
        ) as refused:
            await appending
        assert refused.value.retry_delay_seconds == 1
        assert opened.journal.change_count == before
        swapping = await begin_with_takes(channel, 1)
        channel.transactions.put(swapping, [stored(b"y")], None)
        (committing,) = await called(channel.transactions.commit([swapping], None))
        assert await refusal(committing) == "DISK_FULL"
        channel.transactions.rollback(swapping)
        taking = await begin_with_takes(channel, 1)
        await channel.transactions.commit([taking], None)
        await opened.checkpointing.make()
        await channel.claim("r", None, takeover=False)
        assert await channel.claims.acknowledge("r", None, 3) == 4
        channel.enforce(file_limits())
        assert await append(channel, b"x") == Receipt(4, 4)


# A failed log.


async def test_log_that_fails_refuses_commits_and_lets_the_rest_continue(disk: SimulatedDisk) -> None:
    """Puts and commits fail with LOG_FAILED, takes and rollbacks continue in memory; the failure is logged once."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a", b"b", b"c")
        txn_id = await begin_with_takes(channel, 1)
        delivery = await channel.deliveries.deliver(TakeLimits(events_max=1))
        disk.fail("sync", 1, errno.EIO)
        calls = await called(
            append(channel, b"x", stamp=Stamp("p", 1, 1)),
            append(channel, b"y"),
            channel.transactions.commit([txn_id], None),
        )
        assert [await refusal(call) for call in calls] == ["LOG_FAILED"] * 3
        assert opened.faults == ["a sync of the log failed: Input/output error"]
        assert isinstance(channel._core.committer.fault, ChannelLogFailedError)
        with pytest.raises(ChannelLogFailedError):
            _ = channel.deliveries.settle(delivery)
        assert queued(channel) == [b"b", b"c"]
        # The delivery cannot be acknowledged, and would be delivered again without end.
        with pytest.raises(ChannelLogFailedError):
            await channel.deliveries.deliver(TakeLimits())
        assert await take(channel, begin(channel)) == [b"b", b"c"]
        channel.transactions.rollback(txn_id)
        assert queued(channel) == [b"a"]
        check_accounts(channel)
        more = await called(
            append(channel, b"z"),
            channel.purge(),
            opened.journal.snapshot(),
            channel.transactions.commit([begin(channel)], None),
        )
        assert [await refusal(call) for call in more] == ["LOG_FAILED"] * 4
        assert queued(channel) == [b"a"]
        assert len(opened.faults) == 1
        await opened.checkpointing.make()
        assert list(opened.checkpoints.valid_checkpoints()) == []


async def test_claims_of_a_log_that_fails_cannot_begin_and_may_end(disk: SimulatedDisk) -> None:
    """The existing claim continues: it can be used for reading, and released, which a restart undoes."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a")
        await channel.claim("r", None, takeover=False)
        disk.fail("sync", 1, errno.EIO)
        (call,) = await called(append(channel, b"x"))
        assert await refusal(call) == "LOG_FAILED"
        (call,) = await called(channel.claim("other", None, takeover=True))
        assert await refusal(call) == "LOG_FAILED"
        (call,) = await called(channel.claims.acknowledge("r", 1, 1))
        assert await refusal(call) == "LOG_FAILED"
        assert [bodies_of([batch]) async for batch in channel.claims.read("r", 1, 0, 0)] == [[b"a"]]
        (call,) = await called(channel.claims.release("r", 1))
        assert channel.claims.claim is None
        assert await refusal(call) == "LOG_FAILED"


async def test_append_whose_caller_left_before_it_was_refused_leaves_nothing(disk: SimulatedDisk) -> None:
    """Neither an event remains nor an exception that is never retrieved, even if the log fails."""
    async with file_channel(disk) as opened:
        for error_number in (FULL, errno.EIO):
            gate = Gate(disk, "write")
            gate.close()
            (call,) = await called(append(opened.channel, b"a", stamp=Stamp("p", 1, 1)))
            await gate.reached()
            call.cancel()
            await turn()
            assert call.cancelled()
            disk.fail("write", 1, error_number)
            gate.open()
            await until(lambda: opened.channel._contents.assigned_sequence == 1)
            assert len(opened.channel._contents.ledger) == 0
            check_accounts(opened.channel)


async def test_disk_that_does_not_respond_is_reported_until_it_does(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits wait and finally succeed; both moments are reported once."""
    clock = FakeClock()
    monkeypatch.setattr(journal, "monotonic", clock)
    monkeypatch.setattr(journal, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(journal, "_STALL_CHECK_SECONDS_MIN", 0.01)
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        clock.now += 1
        await asyncio.sleep(0.1)
        assert (opened.journal.is_stalled, opened.faults) == (False, [])
        gate = Gate(disk)
        held = await held_append(gate, opened.channel, b"b")
        await asyncio.sleep(0.1)
        assert not opened.journal.is_stalled
        clock.now += 1
        await until(lambda: opened.journal.is_stalled)
        await asyncio.sleep(0.05)
        assert opened.faults == ["the disk does not respond; commits wait for it"]
        gate.open()
        assert await held == Receipt(2, 2)
        await until(lambda: not opened.journal.is_stalled)
        assert opened.faults[1:] == ["the disk responds again"]


async def test_log_that_fails_while_much_is_under_way_leaves_what_was_durable(disk: SimulatedDisk) -> None:
    """After the next opening, acknowledged commits are there, and of the others each is complete or absent."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", b"b")
        taking = await begin_with_takes(channel, 1)
        held = await held_append(gate, channel, b"c")
        disk.fail("sync", 1, errno.EIO)
        calls = await called(append(channel, b"d", b"e"), channel.transactions.commit([taking], None))
        gate.open()
        assert [await refusal(call) for call in [held, *calls]] == ["LOG_FAILED"] * 3
        assert queued(channel) == [b"b"]
        check_accounts(channel)
    durable_state = await durable_state_on(disk.copy())
    events = [body for _, body in durable_state.events]
    assert events in ([b"a", b"b"], [b"a", b"b", b"c"], [b"a", b"b", b"c", b"d", b"e"], [b"b", b"c", b"d", b"e"])
