import asyncio
import errno
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from millrace_server.channels import channel as channel_module
from millrace_server.channels import claims
from millrace_server.channels.commit import Receipt
from millrace_server.channels.config import MemoryChannelConfig
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transaction import TxnState
from millrace_server.errors import ChannelLogFailedError, TxnsOpenError, TxnStateError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Kind
from tests.channel_events import (
    append,
    begin,
    begin_with_puts,
    begin_with_takes,
    bodies_of,
    check_accounts,
    queued,
    stored,
)
from tests.file_channels import Gate, called, durable_state_on, file_channel, file_limits, held_append, refusal, turn
from tests.simulated_disk import SimulatedDisk
from tests.waiting import until

HAS_THREADS = True

FULL = errno.ENOSPC


def _note(order: list[int], number: int, _call: "asyncio.Future[Any]") -> None:
    order.append(number)


# Calls in progress.


async def test_append_is_invisible_until_its_sync(disk: SimulatedDisk) -> None:
    """Events, sequences and the response appear together after the sync."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        txn_id = begin(channel)
        taking = asyncio.ensure_future(channel.transactions.take(txn_id, TakeLimits(), 30, None))
        appending = await held_append(gate, channel, b"a", b"b")
        await turn()
        assert (queued(channel), channel._contents.next_sequence) == ([], 1)
        assert (appending.done(), taking.done()) == (False, False)
        gate.open()
        assert await appending == Receipt(1, 2)
        batches, _ = await taking
        assert bodies_of(batches) == [b"a", b"b"]


async def test_commits_under_way_are_finished_in_their_order(disk: SimulatedDisk) -> None:
    """Commits that wait at the same time share one sync; their sequences follow the order of calls."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        first = await held_append(gate, channel, b"0")
        txn_ids = [begin_with_puts(channel, b"%d" % number) for number in range(1, 4)]
        order: list[int] = []
        calls = await called(*[channel.transactions.commit([txn_id], None) for txn_id in txn_ids])
        for number, call in enumerate(calls):
            call.add_done_callback(partial(_note, order, number))
        syncs = sum(call.kind == "sync" for call in disk.calls)
        gate.open()
        assert await first == Receipt(1, 1)
        assert await asyncio.gather(*calls) == [Receipt(2, 2), Receipt(3, 3), Receipt(4, 4)]
        assert order == [0, 1, 2]
        assert sum(call.kind == "sync" for call in disk.calls) == syncs + 2
        assert queued(channel) == [b"0", b"1", b"2", b"3"]
        check_accounts(channel)


async def test_commit_repeated_while_it_is_under_way_waits_for_the_same_response(disk: SimulatedDisk) -> None:
    """This includes a repeat with a part of its transactions; the commit is written once."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        txn_ids = [begin_with_puts(channel, b"a"), begin_with_puts(channel, b"b")]
        gate.close()
        calls = await called(channel.transactions.commit(txn_ids, None))
        await gate.reached()
        calls += await called(
            channel.transactions.commit(txn_ids, None), channel.transactions.commit(txn_ids[1:], None)
        )
        assert not any(call.done() for call in calls)
        gate.open()
        assert await asyncio.gather(*calls) == [Receipt(1, 2)] * 3
        assert await channel.transactions.commit(txn_ids[:1], None) == Receipt(1, 2)
        assert queued(channel) == [b"a", b"b"]
        assert opened.kinds().count(Kind.COMMIT) == 1


async def test_calls_on_a_transaction_whose_commit_is_under_way_are_refused(disk: SimulatedDisk) -> None:
    """The transaction cannot change any more, and its lease does not run."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"x")
        txn_id, other_id = begin(channel, "t", lease_seconds=0.01), begin(channel)
        channel.transactions.put(txn_id, [stored(b"a")], None)
        gate.close()
        (committing,) = await called(channel.transactions.commit([txn_id], None))
        await gate.reached()
        await asyncio.sleep(0.05)
        calls: list[Callable[[], object]] = [
            lambda: channel.transactions.put(txn_id, [stored(b"b")], None),
            lambda: channel.transactions.rollback(txn_id),
            lambda: channel.transactions.renew(txn_id),
            lambda: channel.transactions.begin(txn_id, None),
        ]
        for call in calls:
            with pytest.raises(TxnStateError, match="is being committed"):
                call()
        with pytest.raises(TxnStateError, match="is being committed"):
            await channel.transactions.take(txn_id, TakeLimits(), 0, None)
        with pytest.raises(TxnStateError, match="is being committed"):
            await channel.transactions.commit([txn_id, other_id], None)
        gate.open()
        assert await committing == Receipt(2, 2)
        assert queued(channel) == [b"x", b"a"]


async def test_commit_whose_caller_leaves_has_its_whole_effect(disk: SimulatedDisk) -> None:
    """This holds once the commit has begun; a repetition gets the result."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"old")
        txn_id = await begin_with_takes(channel, 1)
        channel.transactions.put(txn_id, [stored(b"new")], None)
        gate.close()
        calls = await called(channel.transactions.commit([txn_id], None), append(channel, b"more"))
        await gate.reached()
        for call in calls:
            call.cancel()
        await turn()
        assert all(call.cancelled() for call in calls)
        gate.open()
        assert await channel.transactions.commit([txn_id], None) == Receipt(2, 2)
        await until(lambda: queued(channel) == [b"new", b"more"])
        check_accounts(channel)


async def test_stamped_repeat_of_what_is_under_way_is_acknowledged_when_that_is_durable(disk: SimulatedDisk) -> None:
    """Otherwise the producer would drop events that a crash may still remove."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        gate.close()
        calls = await called(append(channel, b"a", stamp=Stamp("p", 1, 1)))
        await gate.reached()
        calls += await called(append(channel, b"a", stamp=Stamp("p", 1, 1)))
        assert not any(call.done() for call in calls)
        gate.open()
        assert await asyncio.gather(*calls) == [Receipt(1, 1), Receipt(0, 0, is_deduplicated=True)]
        # With nothing in progress, a repeat needs no disk access.
        before = opened.journal.change_count
        assert await append(channel, b"a", stamp=Stamp("p", 1, 1)) == Receipt(0, 0, is_deduplicated=True)
        assert opened.journal.change_count == before


async def test_commit_of_which_a_part_was_stored_writes_the_rest_as_columns_of_its_own(disk: SimulatedDisk) -> None:
    """Whole batches are written as received, parts are cut out; dropped events are not in the log."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a", b"dropped", stamp=Stamp("p", 1, 2))
        txn_id = begin_with_puts(channel, b"dropped", b"c")
        channel.transactions.put(txn_id, [stored(b"d", b"e")], None)
        assert await channel.transactions.commit([txn_id], Stamp("p", 2, 5)) == Receipt(3, 5, is_deduplicated=True)
        payloads = [one.payload for one in opened.records() if one.kind is Kind.PUT]
        assert payloads[1:] == [stored(b"c").raw, stored(b"d", b"e").raw]
        assert await durable_state_on(disk.copy()) == opened.durable_state()


# Snapshots.


async def test_snapshot_describes_its_position_in_the_log(disk: SimulatedDisk) -> None:
    """A commit during the sync is not in the snapshot, one before it is; the channel continues in the meantime."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        held = await held_append(gate, channel, b"a")
        calls = await called(
            append(channel, b"b", stamp=Stamp("p", 1, 1)),
            opened.journal.snapshot(),
            append(channel, b"c", stamp=Stamp("p", 2, 2)),
        )
        gate.open()
        await held
        _, snapshot, _ = await asyncio.gather(*calls)
        assert sorted(bodies_of(snapshot.batches)) == [b"a", b"b"]
        assert (snapshot.state.next_sequence, snapshot.state.producers["p"].lasts) == (3, [1])
        behind = [one for one in opened.records() if one.kind is Kind.COMMIT][-1]
        assert pb.Commit.FromString(behind.payload).first_sequence == 3


async def test_snapshot_holds_what_is_taken_and_not_settled(disk: SimulatedDisk) -> None:
    """Events may be taken by open transactions, by deliveries, or by an acknowledgement in progress."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", b"b", b"c", b"d")
        await begin_with_takes(channel, 1)
        await channel.deliveries.deliver(TakeLimits(events_max=1))
        gate.close()
        calls = await called(opened.journal.snapshot(), channel.purge())
        await gate.reached()
        assert queued(channel) == []
        gate.open()
        snapshot = await calls[0]
        assert sorted(bodies_of(snapshot.batches)) == [b"a", b"b", b"c", b"d"]
        await calls[1]


async def test_snapshot_behind_a_refused_put_is_refused(disk: SimulatedDisk) -> None:
    """The state of the snapshot would contain the refused put."""
    async with file_channel(disk) as opened:
        gate = Gate(disk)
        held = await held_append(gate, opened.channel, b"a")
        disk.fail("write", 1, FULL)
        calls = await called(append(opened.channel, b"b"), opened.journal.snapshot())
        gate.open()
        await held
        assert [await refusal(call) for call in calls] == ["DISK_FULL"] * 2
        assert (await opened.journal.snapshot()).state.next_sequence == 2


async def test_state_knows_transactions_whose_commits_are_under_way(disk: SimulatedDisk) -> None:
    """The state is that of its position in the log, after everything submitted before."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        channel.transactions.rollback(begin(channel, "first"))
        held = await held_append(gate, channel, b"a")
        txn_ids = [begin(channel, "second"), begin(channel, "third")]
        channel.transactions.put("third", [stored(b"b")], None)
        calls = await called(channel.transactions.commit(txn_ids, None))
        state = opened.journal.state()
        ended = dict(state.ended)
        assert list(ended) == ["first", "second", "third"]
        assert ended["first"].state is TxnState.ROLLED_BACK
        assert ended["second"].receipt is ended["third"].receipt
        assert ended["second"].receipt == Receipt(2, 2)
        gate.open()
        await asyncio.gather(held, *calls)
        assert opened.journal.state() == state


async def test_enforce_of_another_configuration_is_in_force_at_once(disk: SimulatedDisk) -> None:
    """The type of the configuration is never another one."""
    async with file_channel(disk, segment_bytes_max=1 << 30) as opened:
        await append(opened.channel, b"a" * 100)
        opened.channel.enforce(file_limits(segment_bytes_max=100))
        await append(opened.channel, b"a")
        assert opened.log.segment_count == 2
        opened.channel.enforce(file_limits(compression="zstd"))
        await append(opened.channel, b"a" * 10_000)
        assert opened.log.byte_count() < 10_000
        with pytest.raises(AssertionError):
            opened.journal.enforce(MemoryChannelConfig(type="memory"))


async def test_claim_while_an_acknowledgement_is_under_way_may_be_refused_for_a_while(disk: SimulatedDisk) -> None:
    """Events that are being removed may still return, so a new reader would not know where to begin."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", b"b")
        await channel.claim("r", None, takeover=False)
        gate.close()
        (acknowledging,) = await called(channel.claims.acknowledge("r", None, 1))
        await gate.reached()
        with pytest.raises(TxnsOpenError):
            await channel.claim("other", None, takeover=True)
        gate.open()
        assert await acknowledging == 2
        assert (await channel.claim("other", None, takeover=True)).epoch == 2


async def test_release_is_acknowledged_once_it_survives_a_crash(disk: SimulatedDisk) -> None:
    """The claim ends at once; the call returns after the sync of its record."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await channel.claim("r", None, takeover=False)
        gate.close()
        (releasing,) = await called(channel.claims.release("r", None))
        await gate.reached()
        assert channel.claims.claim is None
        assert not releasing.done()
        gate.open()
        await releasing
        crashed = disk.crashed(seed=0)
    async with file_channel(crashed) as found:
        assert found.channel.claims.claim is None


async def test_claim_whose_lease_runs_out_while_the_disk_stalls_ends_at_once(disk: SimulatedDisk) -> None:
    """The expiry of a lease does not wait for the record of its end."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        claim = await channel.claim("r", None, takeover=False)
        gate.close()
        channel.claims.renew("r", claim.epoch, 0.01)
        await gate.reached()
        assert channel.claims.claim is None
        gate.open()


async def test_purge_of_many_batches_lets_other_calls_through(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit removes some of them; what is appended meanwhile stays."""
    monkeypatch.setattr(channel_module, "REMOVED_BATCHES_MAX", 2)
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        for _ in range(5):
            await append(channel, b"x" * 5_000)
        gate.close()
        (purging,) = await called(channel.purge())
        await gate.reached()
        (appending,) = await called(append(channel, b"new"))
        gate.open()
        assert (await appending, await purging) == (Receipt(6, 6), 5)
        assert queued(channel) == [b"new"]
        assert opened.kinds().count(Kind.TAKE) == 3
        check_accounts(channel)


async def test_acknowledge_of_many_batches_that_is_killed_has_removed_the_first(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It responds only when all are on the disk; what the kill leaves is an earlier acknowledgement."""
    monkeypatch.setattr(claims, "REMOVED_BATCHES_MAX", 2)
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        for _ in range(5):
            await append(channel, b"x" * 5_000)
        await channel.claim("r", None, takeover=False)
        gate.close()
        (acknowledging,) = await called(channel.claims.acknowledge("r", None, 5))
        await gate.reached()
        gate.open()
        gate.close()
        await gate.reached()
        killed = disk.copy()
        assert not acknowledging.done()
        gate.open()
        assert await acknowledging == 6
        assert opened.kinds().count(Kind.TAKE) == 3
    async with file_channel(killed) as opened:
        assert opened.channel.first_sequence in {3, 5}
        assert await opened.channel.claims.acknowledge("r", None, 5) == 6
        check_accounts(opened.channel)


@pytest.mark.parametrize("error_number", [0, FULL, errno.EIO])
async def test_delete_while_commits_are_under_way_ends_all(disk: SimulatedDisk, error_number: int) -> None:
    """The calls return, whatever the disk does, and have no visible effect."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", b"b")
        taking, delivery = await begin_with_takes(channel, 1), await channel.deliveries.deliver(TakeLimits())
        held = await held_append(gate, channel, b"x")
        calls = await called(append(channel, b"y"), channel.transactions.commit([taking], None))
        settling = channel.deliveries.settle(delivery)
        assert settling.is_in_flight
        purging = await called(channel.purge())
        channel.delete()
        if error_number:
            disk.fail("write", 1, error_number)
        gate.open()
        responses = await asyncio.gather(held, *calls, settling, *purging, return_exceptions=True)
        assert responses[0] == Receipt(3, 3)
        if not error_number:
            assert responses[1:] == [Receipt(4, 4), Receipt(0, 0), Receipt(0, 0), 0]
        if error_number == errno.EIO:
            assert all(isinstance(response, ChannelLogFailedError) for response in responses[1:])
        assert channel.open_transactions == 0
