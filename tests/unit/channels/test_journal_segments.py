"""The segments of a journal, and its syncs at intervals."""

import asyncio
import errno

import pytest

from millrace_server.channels import journal
from millrace_server.channels.commit import Receipt
from millrace_server.channels.stamps import Stamp
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, Kind
from millrace_server.wal.reading import SegmentScanner
from tests.channel_events import append, begin, begin_with_puts, begin_with_takes, bodies_of
from tests.file_channels import Gate, called, durable_state_on, file_channel, held_append, records_on, refusal
from tests.simulated_disk import SimulatedDisk
from tests.waiting import until

HAS_THREADS = True

FULL = errno.ENOSPC


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
    async with file_channel(disk, fsync="interval", fsync_interval_seconds=3_600.0) as opened:
        channel, loop = opened.channel, asyncio.get_running_loop()

        def syncs() -> int:
            return sum(call.kind == "sync" for call in disk.calls)

        before, started = syncs(), loop.time()
        for number in range(5):
            await append(channel, b"%d" % number)
        await channel.claim("r", None, takeover=False)
        assert syncs() == before
        timer = opened.journal._sync_timer
        assert timer is not None
        assert started + 3_600 <= timer.when() <= loop.time() + 3_600
        timer.cancel()
        opened.journal._sync()
        await until(lambda: syncs() > before)
        assert await durable_state_on(disk.crashed(1)) == opened.durable_state()
        channel.enforce(opened.config.model_copy(update={"fsync_interval_seconds": 0.01}))
        await append(channel, b"more")
        await until(lambda: syncs() == before + 2)
        await asyncio.sleep(0.05)
        assert syncs() == before + 2


async def test_commits_with_syncs_at_intervals_do_not_hold_back_what_needs_one(disk: SimulatedDisk) -> None:
    """A snapshot needs a sync of its own; a log that fails meanwhile is not synced any more."""
    async with file_channel(disk, fsync="interval", fsync_interval_seconds=3_600.0) as opened:
        await append(opened.channel, b"a")
        snapshot = await opened.journal.snapshot()
        assert bodies_of(snapshot.batches) == [b"a"]
        assert [one for one, _ in (await durable_state_on(disk.crashed(1))).events] == [1]
        disk.fail("sync", 1, errno.EIO)
        await append(opened.channel, b"b")
        opened.journal._sync()
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
