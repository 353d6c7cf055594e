import asyncio
import errno

import pytest
import structlog

from millrace_server.channels import records
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel import Channel
from millrace_server.channels.checkpointing import Checkpointing
from millrace_server.channels.journal_entries import Snapshot
from millrace_server.errors import ChannelLogFailedError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.records import Location
from tests.channel_events import append, begin, begin_with_takes, numbered, queued, take, window
from tests.file_channels import FileChannel, Gate, durable_state_on, file_channel, renames, turn
from tests.simulated_disk import SimulatedDisk
from tests.waiting import until

HAS_THREADS = True


def checkpoints_of(opened: FileChannel) -> list[Checkpoint]:
    """The checkpoints on the disk, the newest first."""
    return list(opened.checkpoints.valid_checkpoints())


async def test_make_describes_the_state_of_the_channel(disk: SimulatedDisk) -> None:
    """Taken events are included; events that arrive while it is written are not."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        await append(channel, b"a", b"b")
        await begin_with_takes(channel, 1)
        gate.close()
        making = asyncio.ensure_future(opened.checkpointing.make())
        await gate.reached()
        appending = asyncio.ensure_future(append(channel, b"c"))
        await turn()
        gate.open()
        await asyncio.gather(making, appending)
        (checkpoint,) = checkpoints_of(opened)
        message = pb.Checkpoint.FromString(checkpoint.state)
        assert message.state.next_sequence == 3
        assert sum(message.batches.stops) - sum(message.batches.starts) == 2
        assert list(message.batches.first_sequences) == sorted(message.batches.first_sequences)
        assert await durable_state_on(disk.copy()) == opened.durable_state()


async def test_make_while_nothing_has_changed_makes_none(disk: SimulatedDisk) -> None:
    """The existing checkpoint is complete."""
    async with file_channel(disk) as opened:
        await opened.checkpointing.make()
        # A log that was just begun needs none.
        assert renames(disk) == 0
        for count in (1, 2):
            await append(opened.channel, b"a")
            await opened.checkpointing.make()
            await opened.checkpointing.make()
            assert renames(disk) == count


async def test_make_twice_at_once_makes_one_after_the_other(disk: SimulatedDisk) -> None:
    """The second call finds nothing new to write."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        await asyncio.gather(opened.checkpointing.make(), opened.checkpointing.make())
        assert renames(disk) == 1


@pytest.mark.parametrize("kind", ["create", "write", "rename"])
async def test_make_that_fails_is_logged_once_and_tried_again(disk: SimulatedDisk, kind: str) -> None:
    """The channel continues, and the previous checkpoint remains valid."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        await opened.checkpointing.make()
        before = checkpoints_of(opened)
        await append(opened.channel, b"b")
        disk.fail(kind, 1, errno.ENOSPC, count=2)
        with structlog.testing.capture_logs() as logs:
            await opened.checkpointing.make()
            await opened.checkpointing.make()
        assert [one["event"] for one in logs] == ["a checkpoint could not be written; the server will retry"]
        assert checkpoints_of(opened)[0] == before[0]
        disk.heal()
        await opened.checkpointing.make()
        assert checkpoints_of(opened)[0] != before[0]
        await append(opened.channel, b"c")
        disk.fail(kind, 1, errno.EIO)
        with structlog.testing.capture_logs() as logs:
            await opened.checkpointing.make()
        assert len(logs) == 1
        disk.heal()


async def test_make_that_raises_an_unexpected_error_is_logged_and_retried(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the error ended checkpointing, the log would grow unnoticed."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        with monkeypatch.context() as broken, structlog.testing.capture_logs() as logs:
            broken.setattr("millrace_server.channels.checkpointing.batches_message", lambda _batches: 1 / 0)
            await opened.checkpointing.make()
        [reported] = logs
        assert (reported["event"], reported["exc_info"]) == (
            "a checkpoint could not be written; the server will retry",
            True,
        )
        await opened.checkpointing.make()
        assert checkpoints_of(opened)[0] is not None


def times_of(channel: Channel) -> list[tuple[int, int]]:
    """The sequence and the time of each event that the channel has."""
    return [
        (batch.first_sequence + index, batch.first_time + offset)
        for batch in channel._contents.held_batches()
        for index, offset in enumerate(batch.commit_offsets() or [0] * batch.count)
    ]


@pytest.mark.parametrize("slice_batches", [1, 2, 3])
async def test_make_of_a_checkpoint_in_slices_is_as_one_in_a_piece(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, slice_batches: int
) -> None:
    """Sequences, times, and the parts that transactions have left of batches and runs."""
    monkeypatch.setattr(records, "SLICE_ITEMS", slice_batches)
    async with file_channel(disk) as opened:
        channel = opened.channel
        for number in range(4):
            await append(channel, *[b"%d.%d" % (number, index) * 2_000 for index in range(3)])
            await append(channel, b"small")
            await append(channel, b"smaller")
            if number % 2:
                await begin_with_takes(channel, 4)
        await opened.checkpointing.make()
        killed, times, durable_state = disk.copy(), times_of(channel), opened.durable_state()
        assert len(times) == 20
        assert times == sorted(times)
    async with file_channel(killed) as found:
        assert found.recovered.replayed_records == 0
        assert times_of(found.channel) == times
        assert found.durable_state() == durable_state


@pytest.mark.parametrize("keeps_previous", [True, False])
async def test_make_removes_the_segments_that_no_checkpoint_needs(disk: SimulatedDisk, *, keeps_previous: bool) -> None:
    """Segments of queued and taken events stay, and those that the newest or the kept previous checkpoint needs."""
    async with file_channel(disk, segment_bytes_max=500, backup_checkpoint=keeps_previous) as opened:
        channel = opened.channel
        for _ in range(3):
            await append(channel, b"x" * 1000)
        await channel.transactions.commit([await begin_with_takes(channel, 1)], None)
        firsts = []
        for _ in range(3):
            txn_id = await begin_with_takes(channel, 1) if queued(channel) else begin(channel)
            await opened.checkpointing.make()
            firsts.append(opened.log.first_segment_id)
            await channel.transactions.commit([txn_id], None)
        assert firsts == ([1, 2, 3] if keeps_previous else [2, 3, 4])
        assert await durable_state_on(disk.copy()) == opened.durable_state()


async def test_make_without_space_for_checkpoints_is_reported_until_there_is(disk: SimulatedDisk) -> None:
    """The log would grow until its own disk is full as well."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        disk.fail("create", 1, errno.ENOSPC, count=2)
        await opened.checkpointing.make()
        await opened.checkpointing.make()
        trouble = "the disk has no space for checkpoints, so the log only grows; free space on the disk"
        assert (opened.journal.disk_trouble, opened.checkpointing.made_at) == (trouble, 0.0)
        await opened.checkpointing.make()
        assert opened.faults == [trouble, "checkpoints have space again"]
        assert opened.journal.disk_trouble == ""
        assert opened.checkpointing.made_at > 0.0


async def test_make_after_a_restart_needs_what_the_checkpoint_before_needs(disk: SimulatedDisk) -> None:
    """Its segments stay until a second checkpoint exists; if the newest is damaged, nothing is missing."""
    async with file_channel(disk, segment_bytes_max=500) as opened:
        await append(opened.channel, b"x" * 1000)
        await opened.checkpointing.make()
        killed = disk.copy()
    async with file_channel(killed, segment_bytes_max=500) as found:
        channel = found.channel
        assert await take(channel, begin(channel, "t")) == [b"x" * 1000]
        await channel.transactions.commit(["t"], None)
        await append(channel, b"y" * 1000)
        await found.checkpointing.make()
        assert found.log.first_segment_id == 1
        await append(channel, b"z" * 1000)
        await found.checkpointing.make()
        assert found.log.first_segment_id > 1
        assert await durable_state_on(killed.copy()) == found.durable_state()


async def test_checkpoints_come_at_intervals_and_with_new_segments(disk: SimulatedDisk) -> None:
    """The checkpoints are periodic, as long as something changes."""
    async with file_channel(disk, checkpoint_interval_seconds=0.05, segment_bytes_max=500) as opened:
        opened.checkpointing.start()
        await append(opened.channel, b"a")
        await until(lambda: renames(disk) == 1)
        opened.channel.enforce(opened.config.model_copy(update={"checkpoint_interval_seconds": 1000.0}))
        await asyncio.sleep(0.1)
        before = renames(disk)
        await append(opened.channel, b"x" * 1000)
        await append(opened.channel, b"y")
        await until(lambda: renames(disk) > before)


async def test_stop_while_one_is_made_waits_for_its_end(disk: SimulatedDisk) -> None:
    """No checkpoint is written afterwards."""
    async with file_channel(disk, checkpoint_interval_seconds=0.01) as opened:
        await append(opened.channel, b"a")
        gate = Gate(disk)
        gate.close()
        opened.checkpointing.start()
        await gate.reached()
        stopping = asyncio.ensure_future(opened.checkpointing.stop())
        await asyncio.sleep(0.03)
        assert not stopping.done()
        gate.open()
        await stopping
        assert renames(disk) == 1
        await append(opened.channel, b"a")
        await asyncio.sleep(0.05)
        assert renames(disk) == 1


async def test_checkpoints_of_a_log_that_failed_are_not_written(disk: SimulatedDisk) -> None:
    """The content of the log is unknown."""
    async with file_channel(disk, checkpoint_interval_seconds=0.02) as opened:
        disk.fail("sync", 1, errno.EIO)
        with pytest.raises(ChannelLogFailedError):
            await append(opened.channel, b"a")
        with structlog.testing.capture_logs() as logs:
            opened.checkpointing.start()
            await asyncio.sleep(0.1)
        assert (logs, renames(disk), queued(opened.channel)) == ([], 0, [])


async def test_checkpointing_that_never_started_stops_at_once(disk: SimulatedDisk) -> None:
    """This is the case of a channel whose opening failed."""
    async with file_channel(disk) as opened:
        await Checkpointing("orders", opened.journal, opened.checkpoints, opened.log, opened.recovered).stop()


async def test_snapshot_has_nothing_that_was_written_from_memory_since(disk: SimulatedDisk) -> None:
    """Its checkpoint would have these events, and the records behind it would bring them a second time."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"before")
        taken = await opened.journal.snapshot()
        late = StoredBatch(2, window(b"late"))
        late.window.stored.locate(Location(*taken.position[:2], 10), opened.columns)
        opened.channel._contents.queue.append(late)
        snapshot = Snapshot(taken.position, taken.state, opened.channel._contents.held_batches())
        assert numbered(snapshot.batches_in_log()) == [(1, b"before")]
