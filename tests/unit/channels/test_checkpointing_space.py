"""Checkpoints that free space of the log, and puts that wait for it."""

import errno

import pytest

from millrace_server.channels import checkpointing
from millrace_server.channels.commit import Receipt
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import DiskFullError
from tests.channel_events import append, begin_with_puts, begin_with_takes, make_space
from tests.file_channels import DATA, FileChannel, called, durable_state_on, file_channel, renames
from tests.log_histories import make_small
from tests.simulated_disk import SimulatedDisk
from tests.waiting import until

HAS_THREADS = True


async def fill_and_drain(opened: FileChannel) -> None:
    """Fills and empties a channel with a checkpoint in between, which needs segments without queued events."""
    for _ in range(3):
        await append(opened.channel, b"x" * 1000)
    await opened.checkpointing.make()
    await make_space(opened.channel, 3)


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


async def test_checkpoints_on_a_disk_without_space_that_fail_are_not_tried_again_at_once(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retries do not use the processor without end; after a while there may be space."""
    monkeypatch.setattr(checkpointing, "DISK_RETRY_DELAY_SECONDS", 900.0)
    async with file_channel(disk, segment_bytes_max=500, checkpoint_interval_seconds=1000.0) as opened:
        await fill_and_drain(opened)
        await refuse_for_space(opened)
        disk.fail("create", 1, errno.ENOSPC, count=1000)
        await opened.checkpointing._make_due()
        tried = [call.kind for call in disk.calls].count("create")
        await opened.checkpointing._make_due()
        assert [call.kind for call in disk.calls].count("create") == tried
        assert opened.checkpointing._seconds_to_next() == 900.0
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
        await make_space(opened.channel, 1)
        await make_space(opened.channel, 1)
        await opened.checkpointing._make_due()
        assert (renames(disk), opened.log.first_segment_id) == (before + 2, 3)


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
            await make_space(opened.channel, 1)
            await opened.checkpointing.make()
        assert opened.log.first_segment_id == opened.log.newest_segment_id == 1


async def empty(opened: FileChannel) -> None:
    """Leaves a log that holds no event, but two checkpoints and more than is kept."""
    await append(opened.channel, b"x" * 9000)
    await opened.checkpointing.make()
    await append(opened.channel, b"x")
    await opened.checkpointing.make()
    await make_space(opened.channel, 2)


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


@pytest.mark.usefixtures("small_logs")
async def test_append_on_a_full_disk_waits_until_a_checkpoint_has_freed_it(disk: SimulatedDisk) -> None:
    """The log that holds nothing any more makes space, far before the next interval."""
    async with file_channel(disk, checkpoint_interval_seconds=1000.0, keep_alive_seconds=30.0) as opened:
        opened.checkpointing.start()
        await empty(opened)
        disk.capacity_bytes -= disk.free_bytes(DATA) - 4000
        await opened.journal.measure()
        assert await append(opened.channel, b"y" * 8000) == Receipt(3, 3)
        await make_space(opened.channel, 1)
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
        await make_space(opened.channel, 2)
        assert await waiting == Receipt(4, 4)
        await until(lambda: opened.journal.disk_trouble == "")
        assert [sentence.partition(":")[0] for sentence in opened.faults] == [
            "the disk has no space for puts",
            "the disk has space for puts again",
        ]


async def test_append_on_a_disk_that_stays_full_is_refused_after_the_keep_alive(disk: SimulatedDisk) -> None:
    """What is lacking is reported once, and once that there is space again, however it was freed."""
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
