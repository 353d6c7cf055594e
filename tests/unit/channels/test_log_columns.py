import asyncio
import errno
import threading

import pytest

from millrace_server.channels.batches import Form
from millrace_server.channels.queue import RUN_EVENTS_MAX, ResponseLimits
from millrace_server.errors import ChannelCorruptError, ChannelLogFailedError, NotOwnerError, SequenceGoneError
from millrace_server.wal.payload_codec import KeyMismatchError, KeyMissingError
from tests.channel_events import append, begin, begin_with_takes, bodies_of, queued, take
from tests.file_channels import DATA, FileChannel, file_channel
from tests.simulated_disk import SimulatedDisk

HAS_THREADS = True
ALL = ResponseLimits(events_max=1 << 30, body_bytes_max=1 << 30, response_bytes_max=1 << 30, form=Form.COLUMNS)


def reads(disk: SimulatedDisk) -> int:
    return sum(call.kind == "read" for call in disk.calls)


def in_memory(opened: FileChannel) -> list[bool]:
    return [batch.window.stored.is_in_memory for batch in opened.channel._contents.queue]


def forget(opened: FileChannel) -> None:
    """Drops columns from memory, as after a restart."""
    for batch in opened.channel._contents.queue:
        batch.window.stored.forget()


async def test_columns_that_were_just_written_need_no_disk(disk: SimulatedDisk) -> None:
    """A consumer that keeps up with the producers never reads."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a", b"b")
        before = reads(disk)
        assert queued(opened.channel) == [b"a", b"b"]
        assert in_memory(opened) == [True]
        assert reads(disk) == before


async def test_load_of_neighbours_reads_them_together_and_keeps_them(disk: SimulatedDisk) -> None:
    """Columns in memory are not read again, and columns that are requested twice are read once."""
    async with file_channel(disk) as opened:
        for number in range(10):
            await append(opened.channel, b"%d" % number)
            # Each is an entry of its own.
            opened.channel._contents.queue.end_run()
        forget(opened)
        batches = list(opened.channel._contents.queue)
        before = reads(disk)
        await opened.columns.load([*batches[:6], *batches[:6]])
        assert reads(disk) == before + 1
        assert in_memory(opened) == [True] * 6 + [False] * 4
        await opened.columns.load(batches)
        assert bodies_of(batches) == [b"%d" % number for number in range(10)]
        assert reads(disk) == before + 2
        await opened.columns.load(batches)
        assert reads(disk) == before + 2


@pytest.mark.parametrize(("run_count", "is_on_loop"), [(2, True), (3, False)])
async def test_load_of_many_small_batches_blocks_no_other_call(
    disk: SimulatedDisk, run_count: int, *, is_on_loop: bool
) -> None:
    """Merging thousands of records takes long, so another thread does it even where nothing waits for the disk."""
    async with file_channel(disk) as opened:
        # One after the other: appends at the same time share a record.
        for _ in range(run_count * RUN_EVENTS_MAX):
            await append(opened.channel, b"a")
        runs = list(opened.channel._contents.queue)
        assert len(runs) == run_count
        readers = set[bool]()

        def note(kind: str, _name: str) -> None:
            if kind == "read":
                readers.add(threading.current_thread() is threading.main_thread())

        disk.before_call = note
        await opened.columns.load(runs)
        assert readers == {is_on_loop}
        assert in_memory(opened) == [True] * run_count


async def test_load_that_waits_for_the_disk_blocks_no_other_call(disk: SimulatedDisk) -> None:
    """Another thread reads them."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        forget(opened)
        disk.is_cached = False
        may_go, threads = threading.Event(), list[str]()

        def hold(kind: str, _name: str) -> None:
            if kind == "read":
                threads.append(threading.current_thread().name)
                assert may_go.wait(30)

        disk.before_call = hold
        taking = asyncio.ensure_future(take(opened.channel, begin(opened.channel)))
        await asyncio.sleep(0.02)
        assert not taking.done()
        may_go.set()
        assert await taking == [b"a"]
        assert threading.main_thread().name not in threads


async def test_acknowledgement_of_a_part_of_a_batch_reads_it_on_another_thread(disk: SimulatedDisk) -> None:
    """What it cuts may have to wait for the disk."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a", b"b", b"c")
        await opened.channel.claim("r", 30, takeover=False)
        forget(opened)
        disk.is_cached = False
        threads = list[str]()
        disk.before_call = lambda kind, _name: threads.append(f"{kind} {threading.current_thread().name}")
        assert await opened.channel.claims.acknowledge("r", None, 2) == 3
        assert any(call.startswith("read") for call in threads)
        assert f"read {threading.main_thread().name}" not in threads
        assert queued(opened.channel) == [b"c"]


async def test_read_of_one_that_is_not_in_memory_waits_for_the_disk(disk: SimulatedDisk) -> None:
    """The columns were not loaded before."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        forget(opened)
        assert queued(opened.channel) == [b"a"]
        assert in_memory(opened) == [True]


@pytest.mark.parametrize("is_cached", [True, False])
async def test_read_and_load_of_damage_are_reported_once(disk: SimulatedDisk, *, is_cached: bool) -> None:
    """The caller gets the error each time; the log has it once."""
    async with file_channel(disk) as opened:
        disk.is_cached = is_cached
        await append(opened.channel, b"a" * 100)
        await append(opened.channel, b"b")
        forget(opened)
        (path,) = [path for path in disk.paths() if path.suffix == ".log"]
        content = bytearray(disk.content(path))
        content[content.index(b"a" * 100)] ^= 1
        disk._directories[DATA].shown[path.name].shown[:] = content
        for _ in range(2):
            with pytest.raises(ChannelCorruptError, match="cannot be read back"):
                await begin_with_takes(opened.channel, 1)
        with pytest.raises(ChannelCorruptError):
            queued(opened.channel)
        (fault,) = opened.faults
        assert str(opened.columns.fault).startswith("stored events cannot be read back as they were written")
        assert "segment-000000000001.log: the record at byte" in fault


async def test_load_that_the_disk_refuses_is_damage(disk: SimulatedDisk) -> None:
    """The events are unavailable for any of these reasons."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        forget(opened)
        disk.fail("read", 1, errno.EIO)
        with pytest.raises(ChannelCorruptError):
            await begin_with_takes(opened.channel, 1)
        assert "Input/output error" in opened.faults[0]


async def test_load_where_another_server_may_own_the_channel_is_no_damage(disk: SimulatedDisk) -> None:
    """A later owner removes what it has consumed, before the former one knows that it was overtaken."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        forget(opened)
        txn_id = begin(opened.channel)
        opened.channel.guard_reading(lambda: False)
        disk.fail("read", 1, errno.EIO)
        with pytest.raises(NotOwnerError):
            await take(opened.channel, txn_id)
        assert (opened.faults, opened.columns.fault) == ([], None)


@pytest.mark.parametrize("kind", [KeyMissingError, KeyMismatchError])
async def test_load_without_the_right_key_is_no_damage(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, kind: type[KeyMissingError]
) -> None:
    """The fault is LOG_FAILED, and its message has no key ID."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a", b"b")
        forget(opened)

        def refuse(_locations: object, *, cached_only: bool) -> list[bytes]:
            raise kind("old")

        monkeypatch.setattr(opened.log, "read_run", refuse)
        with pytest.raises(
            ChannelLogFailedError, match="cannot be decrypted: a key is missing, or a different key was given"
        ):
            queued(opened.channel)
        txn_id = begin(opened.channel)
        with pytest.raises(ChannelLogFailedError):
            await take(opened.channel, txn_id)
        assert isinstance(opened.columns.fault, ChannelLogFailedError)
        assert opened.faults == [str(kind("old"))]
        assert opened.channel.gauges().queued_events == 2


async def test_load_of_what_was_consumed_long_ago_is_no_damage(disk: SimulatedDisk) -> None:
    """A slow peek may still refer to events of a segment that was deleted."""
    async with file_channel(disk, segment_bytes_max=500, backup_checkpoint=False) as opened:
        channel = opened.channel
        await append(channel, b"x" * 1000)
        await append(channel, b"y")
        batches = list(channel._contents.queue)
        forget(opened)
        await channel.purge()
        await opened.checkpointing.make()
        assert opened.log.first_segment_id == 2
        with pytest.raises(SequenceGoneError, match="have been consumed in the meantime, and their segment"):
            await opened.columns.load(batches)
        with pytest.raises(SequenceGoneError):
            bodies_of(batches)
        assert (opened.columns.fault, opened.faults) == (None, [])


async def test_load_of_a_segment_that_cannot_be_read_is_damage(disk: SimulatedDisk) -> None:
    """The disk returned it only once, so its content is unknown."""
    async with file_channel(disk, segment_bytes_max=500) as opened:
        await append(opened.channel, b"x" * 1000)
        await opened.checkpointing.make()
        killed = disk.copy()
    async with file_channel(killed) as found:
        killed.fail("read", 1, errno.EIO)
        with pytest.raises(ChannelCorruptError):
            await begin_with_takes(found.channel, 1)
        assert "Input/output error" in found.faults[0]
