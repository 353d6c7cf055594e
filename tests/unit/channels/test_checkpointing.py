import asyncio
import errno

import pytest
import structlog

from millrace_server.channels import checkpointing, records
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel import Channel
from millrace_server.channels.checkpointing import Checkpointing
from millrace_server.channels.commit import Receipt
from millrace_server.channels.journal_entries import Snapshot
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import ChannelLogFailedError, DiskFullError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.records import Location
from tests.channel_events import append, begin, begin_with_puts, begin_with_takes, numbered, queued, take, window
from tests.file_channels import DATA, FileChannel, Gate, called, durable_state_on, file_channel, turn
from tests.log_histories import make_small
from tests.simulated_disk import SimulatedDisk
from tests.waiting import until

HAS_THREADS = True


def checkpoints_of(opened: FileChannel) -> list[Checkpoint]:
    """The checkpoints on the disk, the newest first."""
    return list(opened.checkpoints.valid_checkpoints())


def renames(disk: SimulatedDisk) -> int:
    """The number of checkpoints put in place so far."""
    return sum(call.kind == "rename" and call.name == "checkpoint" for call in disk.calls)


def creations(disk: SimulatedDisk) -> int:
    """The number of files that were to be created so far."""
    return sum(call.kind == "create" for call in disk.calls)


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


async def fill_and_drain(opened: FileChannel) -> None:
    """Fills and empties a channel with a checkpoint in between, which needs segments without queued events."""
    for _ in range(3):
        await append(opened.channel, b"x" * 1000)
    await opened.checkpointing.make()
    await opened.channel.transactions.commit([await begin_with_takes(opened.channel, 3)], None)


async def refuse_for_space(opened: FileChannel) -> None:
    """Has a put refused, since the disk lacks space."""
    opened.channel.enforce(opened.config.model_copy(update={"min_free_bytes": 1 << 50}))
    with pytest.raises(DiskFullError):
        await append(opened.channel, b"y")


async def drain_without_space(opened: FileChannel) -> None:
    """Fills and empties a channel on a disk without space, with a checkpoint afterwards."""
    await fill_and_drain(opened)
    await refuse_for_space(opened)
    await opened.checkpointing.make()


async def test_make_where_the_checkpoint_before_holds_segments_back_makes_another(disk: SimulatedDisk) -> None:
    """Otherwise an idle channel would keep consumed events, and on a full disk accept nothing more."""
    async with file_channel(disk, segment_bytes_max=500) as opened:
        await fill_and_drain(opened)
        firsts = []
        for _ in range(3):
            await opened.checkpointing.make()
            firsts.append(opened.log.first_segment_id)
        assert firsts == [1, 4, 4]
        before = renames(disk)
        await opened.checkpointing.make()
        assert renames(disk) == before


async def test_checkpoints_on_a_disk_without_space_free_at_once_what_was_consumed(disk: SimulatedDisk) -> None:
    """The next checkpoint does not wait for the interval while the previous one holds back space."""
    async with file_channel(disk, segment_bytes_max=500, checkpoint_interval_seconds=1000.0) as opened:
        await drain_without_space(opened)
        opened.checkpointing.start()
        await until(lambda: opened.log.segment_count == 1)


async def test_checkpoints_on_a_disk_without_space_that_fail_are_not_tried_again_at_once(disk: SimulatedDisk) -> None:
    """Retries do not use the processor without end; a second later there may be space."""
    async with file_channel(disk, segment_bytes_max=500, checkpoint_interval_seconds=1000.0) as opened:
        await fill_and_drain(opened)
        await refuse_for_space(opened)
        disk.fail("create", 1, errno.ENOSPC, count=1000)
        await opened.checkpointing._make_due()
        tried = creations(disk)
        await opened.checkpointing._make_due()
        assert (creations(disk), opened.checkpointing._seconds_to_next()) == (tried, 1.0)
        disk.heal()
        opened.checkpointing._frees_again_at = 0.0
        await opened.checkpointing._make_due()
        assert opened.log.segment_count == 1


async def test_checkpoints_where_nothing_can_be_freed_are_made_at_intervals_only(disk: SimulatedDisk) -> None:
    """However many puts are refused: a checkpoint of a full queue takes space and time, and gives nothing back."""
    async with file_channel(disk, segment_bytes_max=500, checkpoint_interval_seconds=1000.0) as opened:
        for _ in range(3):
            await append(opened.channel, b"x" * 1000)
        await opened.checkpointing.make()
        before = renames(disk)
        for _ in range(3):
            await refuse_for_space(opened)
            await opened.checkpointing._make_due()
        # Its events are in the segments before and behind what was taken.
        await opened.channel.transactions.commit([await begin_with_takes(opened.channel, 1)], None)
        await opened.channel.transactions.commit([await begin_with_takes(opened.channel, 1)], None)
        await opened.checkpointing._make_due()
        assert (renames(disk), opened.log.first_segment_id) == (before + 2, 3)


# A log that holds no event.


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of some KB count as large."""
    make_small(monkeypatch)
    monkeypatch.setattr(checkpointing, "KEPT_BYTES", 4000)
    monkeypatch.setattr(checkpointing, "FULL_DISK_KEPT_BYTES", 1000)


@pytest.mark.usefixtures("small_logs")
@pytest.mark.parametrize("keeps_previous", [True, False])
async def test_make_of_an_empty_channel_begins_a_segment_and_frees_the_rest(
    disk: SimulatedDisk, *, keeps_previous: bool
) -> None:
    """The newest segment goes too, with what was allocated ahead; the state survives in the new one."""
    async with file_channel(disk, backup_checkpoint=keeps_previous) as opened:
        for _ in range(3):
            number = opened.journal.state().next_sequence
            await append(opened.channel, b"x" * 3000, stamp=Stamp("p", number, number))
        taking = await begin_with_takes(opened.channel, 3)
        await opened.checkpointing.make()
        # What is taken may come back.
        assert opened.log.segment_count == 1
        await opened.channel.transactions.commit([taking], None)
        full_bytes = opened.log.byte_count()
        await opened.checkpointing.make()
        if keeps_previous:
            assert opened.log.byte_count() < full_bytes
            await opened.checkpointing.make()
        assert (opened.log.segment_count, opened.log.first_segment_id) == (1, 2)
        assert opened.log.byte_count() < 1000
        made = renames(disk)
        await opened.checkpointing.make()
        assert renames(disk) == made
        durable = opened.durable_state()
        assert await durable_state_on(disk.copy()) == durable
        assert await append(opened.channel, b"y") == Receipt(4, 4)


async def test_make_of_an_empty_channel_with_a_small_log_begins_no_segment(disk: SimulatedDisk) -> None:
    """A channel that is emptied all the time does not create a file each time."""
    async with file_channel(disk) as opened:
        for _ in range(3):
            await append(opened.channel, b"x" * 1000)
            await opened.channel.transactions.commit([await begin_with_takes(opened.channel, 1)], None)
            await opened.checkpointing.make()
        assert opened.log.first_segment_id == opened.log.newest_segment_id == 1


async def empty(opened: FileChannel) -> None:
    """Leaves a log that holds no event, but two checkpoints and more than is kept."""
    await append(opened.channel, b"x" * 9000)
    await opened.checkpointing.make()
    await append(opened.channel, b"x")
    await opened.checkpointing.make()
    await opened.channel.transactions.commit([await begin_with_takes(opened.channel, 2)], None)


@pytest.mark.usefixtures("small_logs")
@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "truncate", "unlink", "sync_directory"])
@pytest.mark.parametrize("nth", range(1, 6))
async def test_make_of_an_empty_channel_with_any_call_failing_for_space_loses_nothing(
    disk: SimulatedDisk, kind: str, nth: int
) -> None:
    """The former segment is used further, or is gone with all that it held; a failed sync fails the log."""
    async with file_channel(disk) as opened:
        await empty(opened)
        durable = opened.durable_state()
        disk.fail(kind, nth, errno.ENOSPC, count=2)
        for _ in range(3):
            await opened.checkpointing.make()
        disk.heal()
        if opened.journal.fault is None:
            assert opened.durable_state() == durable
            for _ in range(2):
                await opened.checkpointing.make()
            assert opened.log.byte_count() < 1000
            assert await append(opened.channel, b"y") == Receipt(3, 3)
        killed = await durable_state_on(disk.copy())
        assert killed.next_sequence == (4 if opened.journal.fault is None else 3)


@pytest.mark.usefixtures("small_logs")
async def test_make_of_an_empty_channel_on_a_disk_without_a_byte_gives_up_the_previous_checkpoint(
    disk: SimulatedDisk,
) -> None:
    """Its space suffices for the new segment, and that frees all the rest."""
    async with file_channel(disk) as opened:
        await empty(opened)
        disk.fail("write", 1, errno.ENOSPC)
        await opened.checkpointing.make()
        assert opened.log.newest_segment_id == 2
        assert any(call.kind == "unlink" and call.name == "checkpoint.previous" for call in disk.calls)


# Puts that wait for space on the disk.


@pytest.mark.usefixtures("small_logs")
async def test_append_on_a_full_disk_waits_until_a_checkpoint_has_freed_it(disk: SimulatedDisk) -> None:
    """The log that holds nothing any more makes space, far before the next interval."""
    async with file_channel(disk, checkpoint_interval_seconds=1000.0, keep_alive_seconds=30.0) as opened:
        opened.checkpointing.start()
        await empty(opened)
        disk.capacity_bytes -= disk.free_bytes(DATA) - 4000
        await opened.journal.measure()
        assert await append(opened.channel, b"y" * 8000) == Receipt(3, 3)
        await opened.channel.transactions.commit([await begin_with_takes(opened.channel, 1)], None)
        putting = begin_with_puts(opened.channel, b"z" * 8000)
        assert await opened.channel.transactions.commit([putting], None) == Receipt(4, 4)
        assert opened.faults == []


async def test_append_on_a_full_disk_waits_until_takes_have_freed_it(disk: SimulatedDisk) -> None:
    """A checkpoint follows when the takes have left something to free."""
    async with file_channel(
        disk, segment_bytes_max=500, checkpoint_interval_seconds=1000.0, keep_alive_seconds=30.0
    ) as opened:
        opened.checkpointing.start()
        for _ in range(3):
            await append(opened.channel, b"x" * 1000)
        await opened.checkpointing.make()
        disk.capacity_bytes -= disk.free_bytes(DATA) - 800
        await opened.journal.measure()
        (waiting,) = await called(append(opened.channel, b"y" * 900))
        await until(lambda: bool(opened.faults))
        assert not waiting.done()
        await opened.channel.transactions.commit([await begin_with_takes(opened.channel, 2)], None)
        assert await waiting == Receipt(4, 4)
        await until(lambda: opened.journal.disk_trouble == "")
        assert [sentence.partition(":")[0] for sentence in opened.faults] == [
            "the disk has no space for puts",
            "the disk has space for puts again",
        ]


async def test_append_on_a_disk_that_stays_full_is_refused_after_the_keep_alive(disk: SimulatedDisk) -> None:
    """It is told once what is lacking, and once that there is space again, whoever has freed it."""
    async with file_channel(disk, checkpoint_interval_seconds=1000.0, keep_alive_seconds=0.05) as opened:
        opened.checkpointing.start()
        await append(opened.channel, b"x" * 1000)
        opened.channel.enforce(opened.config.model_copy(update={"min_free_bytes": 1 << 50, "keep_alive_seconds": 0.05}))
        for _ in range(2):
            with pytest.raises(DiskFullError):
                await append(opened.channel, b"y")
            await until(lambda: bool(opened.faults))
        disk.capacity_bytes = 1 << 51
        await until(lambda: opened.journal.disk_trouble == "")
        assert len(opened.faults) == 2
        assert await append(opened.channel, b"y") == Receipt(2, 2)


async def test_make_without_space_for_checkpoints_is_told_until_there_is(disk: SimulatedDisk) -> None:
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
