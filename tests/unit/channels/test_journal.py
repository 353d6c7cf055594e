import asyncio
import errno
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from millrace_server.channels import channel as channel_module
from millrace_server.channels import claims, journal
from millrace_server.channels.commit import Receipt
from millrace_server.channels.config import MemoryChannelConfig
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transaction import TxnState
from millrace_server.errors import (
    ChannelLogFailedError,
    TxnsOpenError,
    TxnStateError,
)
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, Kind
from millrace_server.wal.reading import SegmentScanner
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
from tests.file_channels import (
    Gate,
    called,
    durable_state_on,
    file_channel,
    file_limits,
    held_append,
    records_on,
    refusal,
    turn,
)
from tests.simulated_disk import SimulatedDisk
from tests.waiting import until

HAS_THREADS = True

FULL = errno.ENOSPC
LARGE = 1 << 30


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


# Segments.


def segments_of(disk: SimulatedDisk) -> list[list[Kind]]:
    """The kinds of the records of each segment."""
    records = records_on(disk)
    return [
        [record.kind for record in records if record.segment_id == segment_id]
        for segment_id in sorted({record.segment_id for record in records})
    ]


async def test_segment_that_is_full_is_followed_by_one_that_begins_with_the_state(disk: SimulatedDisk) -> None:
    """The state is that before its first commit, including calls in progress."""
    async with file_channel(disk, segment_bytes_max=2000) as opened:
        channel, reported = opened.channel, list[int]()
        opened.journal.on_new_segment = lambda: reported.append(opened.log.segment_count)
        for number in range(6):
            txn_id = begin_with_puts(channel, b"x" * 900)
            await channel.transactions.commit([txn_id], Stamp("p", number, number))
        assert reported == [2, 3]
        assert all(kinds[0] is Kind.STATE and kinds.count(Kind.STATE) == 1 for kinds in segments_of(disk))
        states = [pb.State.FromString(one.payload) for one in opened.records() if one.kind is Kind.STATE]
        assert [state.next_sequence for state in states] == [1, 3, 5]
        assert [len(state.ended_txns.txn_ids) for state in states] == [0, 2, 4]
        assert list(states[1].producers.lasts) == [1]


async def test_segment_with_a_large_state_has_as_much_of_commits(disk: SimulatedDisk) -> None:
    """Otherwise each commit would finally begin a new segment, which repeats all stamps and transactions."""
    async with file_channel(disk, segment_bytes_max=2000) as opened:
        for number in range(200):
            await append(opened.channel, b"", stamp=Stamp(f"producer {number}", 1, 1))
        segments = list(opened.log._segments.values())
        for segment in segments[:-1]:
            state = SegmentScanner(segment.file, segment.header).record_at(SEGMENT_HEADER_BYTES)
            assert state is not None
            assert segment.file.size() >= max(2000, 2 * len(state.payload))
        assert len(segments) < 20


async def test_log_whose_first_segments_are_gone_reports_the_same_of_the_rest(disk: SimulatedDisk) -> None:
    """The last segment alone has all sequences, stamps, ended transactions and claims."""
    async with file_channel(disk, segment_bytes_max=2000) as opened:
        channel = opened.channel
        await channel.claim("r", 3600, takeover=False)
        for number in range(4):
            await append(channel, b"x" * 900, stamp=Stamp("p", number, number))
        channel.transactions.rollback(begin(channel, "rolled back"))
        await channel.claims.acknowledge("r", None, 4)
        await append(channel, b"y" * 2000, stamp=Stamp("q", 7, 7))
        txn_ids = [begin_with_puts(channel, b"z"), begin_with_puts(channel, b"z" * 900)]
        await channel.transactions.commit(txn_ids, None)
        await channel.claims.acknowledge("r", None, 5)
        durable_state, last = opened.durable_state(), opened.log.segment_count
    assert last > 2
    alone = disk.copy()
    for path in alone.paths():
        if int(path.stem.split("-")[1]) < last:
            alone.remove(path)
    assert await durable_state_on(alone) == durable_state
    assert await durable_state_on(disk) == durable_state
    async with file_channel(alone) as found:
        # It is still one commit, and each part of it is a repeat.
        assert await found.channel.transactions.commit(txn_ids[1:], None) == await found.channel.transactions.commit(
            txn_ids, None
        )


async def test_commits_under_way_when_a_segment_is_full_begin_one_more_only(disk: SimulatedDisk) -> None:
    """The state of the new segment includes calls that are pending in the old one."""
    async with file_channel(disk, segment_bytes_max=2000) as opened:
        channel, gate = opened.channel, Gate(disk)
        held = await held_append(gate, channel, b"x" * 2000)
        calls = await called(*[append(channel, b"%d" % number) for number in range(10)])
        gate.open()
        assert [(await call).first_sequence for call in [held, *calls]] == list(range(1, 12))
        assert opened.log.segment_count == 2
        (_, state) = (pb.State.FromString(one.payload) for one in opened.records() if one.kind is Kind.STATE)
        assert state.next_sequence == 2
        assert await durable_state_on(disk.copy()) == opened.durable_state()


@pytest.mark.parametrize("kind", ["create", "truncate"])
async def test_segment_that_finds_no_space_lets_the_full_one_continue(
    disk: SimulatedDisk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes, and puts for which there is space,continue in the full segment; later a new one is tried again."""
    async with file_channel(disk, segment_bytes_max=2000) as opened:
        channel = opened.channel
        await append(channel, b"x" * 2000)
        taking = await begin_with_takes(channel, 1)
        monkeypatch.setattr(journal, "_ROTATION_PAUSE_SECONDS", 3_600.0)
        disk.fail(kind, 1, FULL)
        assert await channel.transactions.commit([taking], None) == Receipt(0, 0)
        assert opened.log.segment_count == 1
        assert await append(channel, b"y") == Receipt(2, 2)
        assert opened.log.segment_count == 1
        assert await durable_state_on(disk.copy()) == opened.durable_state()
        opened.journal._rotates_again_at -= journal._ROTATION_PAUSE_SECONDS
        await append(channel, b"z")
        assert opened.log.segment_count == 2
        assert await durable_state_on(disk.copy()) == opened.durable_state()


async def test_put_that_begins_a_segment_without_space_is_refused(disk: SimulatedDisk) -> None:
    """The next put may find space in the old segment."""
    async with file_channel(disk, segment_bytes_max=2000) as opened:
        channel = opened.channel
        await append(channel, b"x" * 2000)
        disk.fail("create", 1, FULL)
        (call,) = await called(append(channel, b"y"))
        assert await refusal(call) == "DISK_FULL"
        assert await append(channel, b"y") == Receipt(2, 2)
        assert opened.log.segment_count == 1


# Syncs at intervals.


async def test_commits_with_syncs_at_intervals_are_synced_in_time(disk: SimulatedDisk) -> None:
    """They are acknowledged when written; one sync follows within the interval, and none where nothing was written."""
    async with file_channel(disk, fsync="interval", fsync_interval_seconds=0.05) as opened:
        channel = opened.channel

        def syncs() -> int:
            return sum(call.kind == "sync" for call in disk.calls)

        before = syncs()
        started = asyncio.get_running_loop().time()
        for number in range(5):
            await append(channel, b"%d" % number)
        await channel.claim("r", None, takeover=False)
        assert syncs() == before
        await until(lambda: syncs() > before)
        assert asyncio.get_running_loop().time() - started >= 0.05
        await asyncio.sleep(0.12)
        assert syncs() == before + 1
        assert await durable_state_on(disk.crashed(1)) == opened.durable_state()
        await append(channel, b"more")
        await until(lambda: syncs() == before + 2)


async def test_commits_with_syncs_at_intervals_do_not_hold_back_what_needs_one(disk: SimulatedDisk) -> None:
    """A snapshot needs a sync of its own; a log that fails meanwhile is not synced any more."""
    async with file_channel(disk, fsync="interval", fsync_interval_seconds=0.05) as opened:
        await append(opened.channel, b"a")
        snapshot = await opened.journal.snapshot()
        assert bodies_of(snapshot.batches) == [b"a"]
        assert [one for one, _ in (await durable_state_on(disk.crashed(1))).events] == [1]
        disk.fail("sync", 1, errno.EIO)
        await append(opened.channel, b"b")
        await until(lambda: bool(opened.faults))
        before = opened.journal.change_count
        opened.journal._sync()
        await asyncio.sleep(0.1)
        assert opened.journal.change_count == before


async def test_journal_that_is_closed_syncs_no_more_by_itself(disk: SimulatedDisk) -> None:
    """Written records are synced when the log closes."""
    async with file_channel(disk, fsync="interval", fsync_interval_seconds=0.01) as opened:
        await append(opened.channel, b"a")
        before = opened.journal.change_count
        opened.journal.close()
        await asyncio.sleep(0.05)
        assert opened.journal.change_count == before
    assert [one for one, _ in (await durable_state_on(disk.crashed(1))).events] == [1]


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
    async with file_channel(disk, segment_bytes_max=LARGE) as opened:
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
        await channel.claim("r", 0.01, takeover=False)
        gate.close()
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
    """Only when all are on the disk is it responded; what the kill leaves is an earlier acknowledgement."""
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
