"""The times of commits: in order, in each response and with each event, kept by the log and its checkpoints."""

import asyncio
from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.channels.batches import StoredBatch, StoredColumns, Window
from millrace_server.channels.commit import Receipt
from millrace_server.channels.queue import EventQueue, TakeLimits
from millrace_server.channels.records import batches_message, restore_batches
from millrace_server.channels.stamps import Stamp
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import NEWEST
from millrace_server.wal.format import Kind
from millrace_server.wal.records import Location
from millrace_server.wal.segments import segment_name
from tests.channel_events import append, begin, begin_with_puts, begin_with_takes, open_channel, stored, times_of
from tests.file_channels import DATA, FileChannel, file_channel, put_version_1, recovered_from
from tests.simulated_disk import SimulatedDisk
from tests.unit.channels.test_runs import FakeLog
from tests.virtual_clock import WallClock

HAS_THREADS = True
NOW = 1_790_000_000_000_000


def held_times(opened: FileChannel) -> dict[int, int]:
    return times_of(opened.channel._contents.held_batches())


async def append_at(opened: FileChannel, clock: WallClock, *micros: int) -> None:
    """Appends one event at each time."""
    for clock.micros in micros:
        assert (await append(opened.channel, b"x")).commit_time == clock.micros


async def test_commit_when_the_clock_steps_back_has_the_time_of_the_last(wall_clock: WallClock) -> None:
    """Times never descend, whatever the clock does."""
    channel = open_channel()
    times = []
    for wall_clock.micros in (NOW, NOW - 5, NOW + 3):
        times.append((await append(channel, b"x")).commit_time)
    assert times == [NOW, NOW, NOW + 3]
    assert times_of(channel._contents.held_batches()) == {1: NOW, 2: NOW, 3: NOW + 3}


async def test_responses_have_the_time_of_what_they_stored(wall_clock: WallClock) -> None:
    """An append that stores nothing has none; a commit of takes, or of nothing, has its own; a repeat the first's."""
    channel = open_channel()
    wall_clock.micros = NOW
    await append(channel, b"a", b"b", stamp=Stamp("p", 1, 2))
    wall_clock.micros += 1
    assert await append(channel, b"a", b"b", stamp=Stamp("p", 1, 2)) == Receipt(0, 0, is_deduplicated=True)
    partial = await append(channel, b"b", b"c", stamp=Stamp("p", 2, 3))
    assert partial == Receipt(3, 3, is_deduplicated=True, commit_time=NOW + 1)
    wall_clock.micros += 1
    taking, empty = await begin_with_takes(channel, 1), begin(channel)
    for txn_id in (taking, empty):
        assert await channel.transactions.commit([txn_id], None) == Receipt(commit_time=NOW + 2)
    wall_clock.micros += 1
    assert await channel.transactions.commit([taking], None) == Receipt(commit_time=NOW + 2)
    repeating = begin_with_puts(channel, b"a")
    assert await channel.transactions.commit([repeating], Stamp("p", 1, 1)) == Receipt(is_deduplicated=True)


async def test_events_that_are_returned_keep_their_time(wall_clock: WallClock) -> None:
    """Parts of a request, taken and rolled back, are as they were."""
    channel = open_channel()
    wall_clock.micros = NOW
    await append(channel, b"a", b"b", b"c")
    wall_clock.micros += 7
    txn_id = await begin_with_takes(channel, 2)
    channel.transactions.rollback(txn_id)
    delivery = await channel.deliveries.deliver(TakeLimits(events_max=2))
    assert times_of(delivery.takes) == {1: NOW, 2: NOW}
    channel.deliveries.nack(delivery)
    assert times_of(channel._contents.held_batches()) == {1: NOW, 2: NOW, 3: NOW}


@pytest.mark.parametrize("has_checkpoint", [True, False], ids=["checkpoint", "log"])
@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "killed"])
async def test_times_survive_the_end_of_the_process(
    disk: SimulatedDisk, wall_clock: WallClock, *, has_checkpoint: bool, is_stopped: bool
) -> None:
    """This includes those of runs in parts, of ended transactions, and the last one, below which no later one lies."""
    async with file_channel(disk) as opened:
        await append_at(opened, wall_clock, NOW, NOW, NOW + 4, NOW + 9)
        txn_id = await begin_with_takes(opened.channel, 2)
        wall_clock.micros = NOW + 20
        receipt = await opened.channel.transactions.commit([txn_id], None)
        if has_checkpoint:
            await opened.checkpointing.make()
        await append_at(opened, wall_clock, NOW + 30, NOW + 31)
        await opened.channel.transactions.commit([begin_with_puts(opened.channel, b"y")], None)
        expected = held_times(opened)
        assert expected == {3: NOW + 4, 4: NOW + 9, 5: NOW + 30, 6: NOW + 31, 7: NOW + 31}
        if is_stopped:
            await opened.checkpointing.make()
        after = disk.copy()
    wall_clock.micros = 5
    async with file_channel(after) as found:
        assert held_times(found) == expected
        assert await found.channel.transactions.commit([txn_id], None) == receipt
        assert (await append(found.channel, b"z")).commit_time == NOW + 31


async def test_last_time_survives_the_removal_of_all_that_has_it(disk: SimulatedDisk, wall_clock: WallClock) -> None:
    """The segment of a commit may be gone; the state with which the next one begins has its time."""
    wall_clock.micros = NOW
    async with file_channel(disk, segment_bytes_max=1) as opened:
        await append(opened.channel, b"x")
        await opened.channel.purge()
        wall_clock.micros = 5
        for _ in range(3):
            await append(opened.channel, b"x")
            await opened.channel.purge()
            await opened.checkpointing.make()
        assert opened.log.first_segment_id > 1
        killed = disk.copy()
    for name in killed.list(DATA):
        if name.startswith(NEWEST):
            killed.remove(DATA / name)
    assert recovered_from(killed).last_commit_time == NOW


async def test_commits_that_are_too_far_apart_are_no_run(disk: SimulatedDisk, wall_clock: WallClock) -> None:
    """In a response an event's time has 32 bits more than its batch's."""
    async with file_channel(disk) as opened:
        await append_at(opened, wall_clock, NOW, NOW + (1 << 32) - 1, NOW + (1 << 32))
        assert [batch.count for batch in opened.channel._contents.queue] == [2, 1]
        assert held_times(opened) == {1: NOW, 2: NOW + (1 << 32) - 1, 3: NOW + (1 << 32)}


async def test_commits_of_one_record_keep_their_times_apart(disk: SimulatedDisk) -> None:
    """A COMMIT may be that of several callers, and then says when each event was committed."""
    async with file_channel(disk) as opened:
        one, other = stored(b"a", b"b"), stored(b"c")
        message = pb.Commit(first_sequence=1, commit_time=NOW, commit_offsets=[0, 3, 8], txn_ids=["t"])
        for columns in (one, other):
            message.put_counts.append(columns.count)
            message.put_body_bytes.append(columns.body_bytes)
            message.put_raw_bytes.append(columns.raw_bytes)
        records = [(Kind.PUT, [columns.raw]) for columns in (one, other)]
        opened.log.submit(
            [*records, (Kind.COMMIT, [message.SerializeToString()])],
            needs_sync=True,
            done=lambda _submission, _error: None,
        )
        await asyncio.to_thread(opened.log.close)
        after = disk.copy()
    async with file_channel(after) as found:
        assert held_times(found) == {1: NOW, 2: NOW + 3, 3: NOW + 8}
        await found.checkpointing.make()
        again = after.copy()
    async with file_channel(again) as found:
        assert held_times(found) == {1: NOW, 2: NOW + 3, 3: NOW + 8}
        assert found.recovered.last_commit_time == NOW + 8


steps = st.lists(st.sampled_from([0, 0, 1, 5, 1 << 31, 1 << 33]), min_size=1, max_size=30)


@given(steps, st.data())
def test_runs_in_parts_and_in_checkpoints_have_each_events_time(steps: list[int], data: st.DataObject) -> None:
    """However a queue is split, joined, saved and searched, each event has its own time."""
    log, queue = FakeLog(), EventQueue()
    expected: dict[int, int] = {}
    sequence = 1
    for time in accumulate(steps, initial=data.draw(st.sampled_from([0, NOW]))):
        bodies = [b"%d" % index for index in range(data.draw(st.integers(1, 3)))]
        stored_at = log.add(stored(*bodies))
        queue.append(StoredBatch(sequence, Window.whole(stored_at), time))
        expected |= dict.fromkeys(range(sequence, sequence + len(bodies)), time)
        sequence += len(bodies)
    for _ in range(3):
        through = data.draw(st.integers(0, sequence))
        taken = queue.remove_through(through)
        assert times_of(taken) == {one: time for one, time in expected.items() if one <= through}
        queue.put_back(taken)
    removed = data.draw(st.integers(1, sequence - 1))
    queue.remove_range(removed, 1, 1)
    del expected[removed]
    message = pb.Batches.FromString(batches_message(list(queue)).SerializeToString())
    for batches in (list(queue), list(restore_batches(message, log))):
        assert times_of(batches) == expected
    for time in {*expected.values(), *(time + 1 for time in expected.values())}:
        found = queue.first_since(time)
        since = found and found.first_sequence + found.index_since(time)
        assert since == min((one for one in expected if expected[one] >= time), default=None)


def test_index_since_finds_the_first_event_of_a_time() -> None:
    """In a run, whose events have times of their own, and in a batch of one commit."""
    run = StoredColumns.in_log(Location(1, 64, 100), FakeLog(), 4, 4, 100, record_count=4)
    run.offsets = array("I", [0, 2, 2, 9])
    part = StoredBatch(2, Window(run, 1, 4, 3), NOW)
    assert [part.index_since(NOW + offset) for offset in (0, 2, 3, 9, 10)] == [0, 0, 2, 2, 3]
    assert (part.first_time, part.last_time, list(part.commit_offsets())) == (NOW + 2, NOW + 9, [0, 0, 7])
    whole = StoredBatch(1, Window.whole(stored(b"a", b"b")), NOW)
    assert [whole.index_since(NOW + offset) for offset in (0, 1)] == [0, 2]


async def test_log_of_the_release_before_times_goes_on(disk: SimulatedDisk, wall_clock: WallClock) -> None:
    """Its events and transactions have no time, and do not mix with later ones, also after more kills."""
    put_version_1(disk)
    assert disk.content(DATA / segment_name(1))[8] == 1
    for has_checkpoint in (True, False):
        old = disk.copy()
        if not has_checkpoint:
            old.remove(DATA / NEWEST)
        async with file_channel(old) as opened:
            assert held_times(opened) == dict.fromkeys(range(4, 50), 0)
            assert await opened.channel.transactions.commit(["moved"], None) == Receipt(45, 45)
            await append_at(opened, wall_clock, NOW, NOW + 1)
            assert [batch.count for batch in opened.channel._contents.queue][-1] == 2
            killed = old.copy()
        async with file_channel(killed) as found:
            assert held_times(found) == {**dict.fromkeys(range(4, 50), 0), 50: NOW, 51: NOW + 1}
            await found.checkpointing.make()
            stopped = killed.copy()
        async with file_channel(stopped) as again:
            assert held_times(again) == {**dict.fromkeys(range(4, 50), 0), 50: NOW, 51: NOW + 1}
