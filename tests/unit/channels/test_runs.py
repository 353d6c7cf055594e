"""Runs: consecutive small batches in the log as one entry of the queue."""

import asyncio
import errno
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from millrace.columns import HEADER_CELLS_MAX, HEADER_KEYS_MAX, ColumnsCutter, check_columns
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer
from millrace_server.channels.batches import Form, StoredBatch, StoredColumns, Window
from millrace_server.channels.commit import Receipt
from millrace_server.channels.log_columns import read_columns
from millrace_server.channels.queue import (
    RUN_BYTES_MAX,
    RUN_EVENTS_MAX,
    EventQueue,
    ResponseLimits,
    _may_join_run,
    _run_of,
)
from millrace_server.channels.runs import merged
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import ChannelCorruptError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import RECORD_HEAD_BYTES, Kind
from millrace_server.wal.records import Location
from millrace_server.wal.segments import LogCorruptError
from tests.channel_events import Row, append, begin, begin_with_puts, bodies_of, numbered, stored, stored_rows, take
from tests.file_channels import DATA, FileChannel, Gate, called, durable_state_on, file_channel, held_append
from tests.simulated_disk import SimulatedDisk
from tests.unit.channels.test_queue import QueueModel

HAS_THREADS = True
RESPONSE = ResponseLimits(events_max=1 << 30, body_bytes_max=1 << 30, response_bytes_max=1 << 30, form=Form.COLUMNS)

ROWS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["a", "b", "ä"]), st.sampled_from(["", "x", "ü", "y" * 200]), max_size=3),
        st.binary(max_size=3),
    ),
    min_size=1,
    max_size=4,
)


class FakeLog:
    """Keeps columns at positions of one segment, with other records between them."""

    def __init__(self) -> None:
        self._raws: dict[int, bytes] = {}
        self._position = 64

    def add(self, columns: StoredColumns) -> StoredColumns:
        """Writes columns after all others; returns them as after a restart."""
        raw = bytes(columns.raw)
        location = Location(1, self._position, len(raw))
        self._raws[self._position] = raw
        self._position += len(raw) + 100
        return StoredColumns.in_log(location, self, columns.count, columns.body_bytes, len(raw))

    def read(self, stored: StoredColumns) -> Buffer:
        assert stored.location is not None
        _, start, length = stored.location
        raws = [raw for position, raw in self._raws.items() if start <= position < start + RECORD_HEAD_BYTES + length]
        assert len(raws) == stored.record_count
        return merged(raws)[0]


def batch_in(log: FakeLog, first_sequence: int, *bodies: bytes) -> StoredBatch:
    return StoredBatch(first_sequence, Window.whole(log.add(stored(*bodies))))


def rows_of(raw: bytes) -> list[Row]:
    cutter = ColumnsCutter(event_pb2.EventColumns.FromString(raw))
    return list(cutter.rows(0, cutter.count))


@given(st.lists(ROWS, min_size=2, max_size=5))
def test_merged_columns_have_the_rows_of_all(requests: list[list[Row]]) -> None:
    """The rows are in order with their own headers, whether all requests have the same ones or not."""
    raw, _ = merged([stored_rows(rows).raw for rows in requests])
    check_columns(event_pb2.EventColumns.FromString(raw))
    assert rows_of(raw) == [(dict(headers), body) for rows in requests for headers, body in rows]


def test_merged_columns_state_a_value_of_all_events_once() -> None:
    """The response to a take of a thousand events is no larger than if they had been appended together."""
    raw, _ = merged([stored_rows([({"host": "web-1"}, b"x")]).raw] * 1_000)
    [header] = event_pb2.EventColumns.FromString(raw).headers
    assert (header.key, list(header.sizes), header.values) == ("host", [6], b"web-1")


def test_run_with_more_header_keys_than_a_batch_may_have_is_taken_in_parts() -> None:
    """Each part is a batch that clients accept, and together they have all events."""
    log, queue = FakeLog(), EventQueue()
    for number in range(HEADER_KEYS_MAX + 10):
        columns = log.add(stored_rows([({f"key-{number}": "x"}, b"%d" % number)]))
        queue.append(StoredBatch(number + 1, Window.whole(columns)))
    assert len(list(queue)) == 1
    parts = queue.take(RESPONSE)
    assert [part.count for part in parts] == [HEADER_KEYS_MAX, 10]
    for part in parts:
        check_columns(event_pb2.EventColumns.FromString(bytes(part.window.columns())))
    assert queue.event_count == 0


def test_batches_join_up_to_the_limits_of_a_run() -> None:
    """A run ends at a gap in the sequences, at the end of a segment, and at its limits."""
    log = FakeLog()
    first, second, far = batch_in(log, 1, b"a"), batch_in(log, 2, b"b"), batch_in(log, 4, b"c")
    run = _run_of(first, second)
    assert run is not None
    assert (run.count, run.window.stored.record_count, first.count) == (2, 2, 1)
    assert _run_of(run, far) is None
    elsewhere = batch_in(log, 3, b"c")
    assert elsewhere.window.stored.location is not None
    elsewhere.window.stored.location = elsewhere.window.stored.location._replace(segment_id=2)
    assert _run_of(run, elsewhere) is None
    behind = batch_in(log, 3, b"c")
    assert behind.window.stored.location is not None
    behind.window.stored.location = behind.window.stored.location._replace(position=RUN_BYTES_MAX + 64)
    assert _run_of(run, behind) is None
    run.window.stored.count = run.window.stop = RUN_EVENTS_MAX
    assert _run_of(run, batch_in(log, RUN_EVENTS_MAX + 1, b"d")) is None


def test_run_ends_before_its_header_keys_are_too_many() -> None:
    """Merged, each of them has a size for each event, so a thousand events with new keys would take long to read."""
    log, queue = FakeLog(), EventQueue()
    for number in range(400):
        columns = log.add(stored_rows([({f"{number}-{key}": "" for key in range(8)}, b"x")]))
        queue.append(StoredBatch(number + 1, Window.whole(columns)))
    runs = list(queue)
    assert [sum(run.count for run in runs), len(runs) > 1] == [400, True]
    for run in runs:
        columns_read = event_pb2.EventColumns.FromString(bytes(run.window.columns()))
        assert len(columns_read.headers) * run.count <= HEADER_CELLS_MAX


def test_columns_that_are_large_or_in_memory_join_no_run() -> None:
    """Merging them would cost more than an entry of the queue."""
    log = FakeLog()
    assert _may_join_run(batch_in(log, 1, b"a").window.stored)
    assert not _may_join_run(batch_in(log, 1, b"x" * 5_000).window.stored)
    assert not _may_join_run(batch_in(log, 1, *[b"x"] * 33).window.stored)
    assert not _may_join_run(stored(b"a"))


def test_append_of_a_part_begins_no_run() -> None:
    """A run's place in the log has whole records only."""
    log, queue = FakeLog(), EventQueue()
    queue.append(batch_in(log, 1, b"a", b"b").part(0, 1))
    queue.append(batch_in(log, 2, b"c"))
    assert [batch.count for batch in queue.entries()] == [1, 1]


def test_run_grows_until_something_reads_it() -> None:
    """Batches that a reader, a taker or a checkpoint refers to stay unchanged."""
    log, queue = FakeLog(), EventQueue()
    for sequence in (1, 2):
        queue.append(batch_in(log, sequence, b"%d" % sequence))
    [held] = queue.read(1, 3)
    for sequence in (3, 4):
        queue.append(batch_in(log, sequence, b"%d" % sequence))
    assert numbered([held]) == [(1, b"1"), (2, b"2")]
    assert [batch.count for batch in queue] == [2, 2]
    queue.append(batch_in(log, 5, b"5"))
    assert [batch.count for batch in queue] == [2, 2, 1]


class RunsModel(QueueModel):
    """The same queue, whose batches are in a log."""

    def __init__(self) -> None:
        super().__init__()
        self.log = FakeLog()

    def batch_of(self, *bodies: bytes) -> StoredBatch:
        return batch_in(self.log, self.next_sequence, *bodies)

    @rule(count=st.integers(1, 20))
    def append_many(self, count: int) -> None:
        for number in range(count):
            self.queue.append(self.batch_of(b"%d" % number))
            self.expected.append((self.next_sequence, b"%d" % number))
            self.next_sequence += 1

    @rule(counts=st.lists(st.integers(1, 3), min_size=2, max_size=5))
    def append_parts_of_a_record(self, counts: list[int]) -> None:
        whole = self.batch_of(*[b"%d" % (number % 10) for number in range(sum(counts))])
        self.expected += numbered([whole])
        for count in counts:
            start = self.next_sequence - whole.first_sequence
            window = Window(whole.window.stored, start, start + count, count)
            self.queue.append(StoredBatch(self.next_sequence, window))
            self.next_sequence += count

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove_range(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.expected) - 1))
        first = self.expected[start][0]
        length = next((n for n, event in enumerate(self.expected[start:]) if event[0] != first + n), None)
        stop = data.draw(st.integers(start + 1, start + (length or len(self.expected) - start)))
        removed = self.expected[start:stop]
        del self.expected[start:stop]
        body_bytes = sum(len(body) for _, body in removed)
        assert self.queue.remove_range(first, len(removed), body_bytes) == len(removed)

    @rule()
    def look(self) -> None:
        assert numbered(self.queue) == self.expected

    @invariant()
    def holds_what_is_expected(self) -> None:
        # Reading the events would end each run.
        assert self.queue.event_count == len(self.expected)
        assert self.queue.first_sequence == (self.expected[0][0] if self.expected else None)

    def teardown(self) -> None:
        for batch in self.queue if hasattr(self, "queue") else ():
            assert batch.window.body_bytes == sum(map(len, bodies_of([batch])))


def test_queue_with_runs_driven_at_random_is_a_sorted_list() -> None:
    """Takes, rollbacks, acknowledgements and replayed takes split the runs anywhere."""
    run_state_machine_as_test(RunsModel)


async def append_each(opened: FileChannel, numbers: range) -> None:
    for number in numbers:
        await append(opened.channel, b"%d" % number)


def entry_counts(opened: FileChannel) -> list[int]:
    return [batch.count for batch in opened.channel._contents.queue]


@pytest.fixture(params=[True, False], ids=["checkpoint", "log"])
def has_checkpoint(request: pytest.FixtureRequest) -> bool:
    """Whether a checkpoint is made before the kill."""
    return bool(request.param)


async def test_single_events_are_one_entry_before_and_after_a_kill(
    disk: SimulatedDisk, *, has_checkpoint: bool
) -> None:
    """This includes events appended after a checkpoint, and takes of a part of them."""
    async with file_channel(disk) as opened:
        await append_each(opened, range(50))
        assert entry_counts(opened) == [50]
        transaction = begin(opened.channel)
        assert await take(opened.channel, transaction, 20) == [b"%d" % number for number in range(20)]
        await opened.channel.transactions.commit([transaction], None)
        if has_checkpoint:
            await opened.checkpointing.make()
        await append_each(opened, range(50, 60))
        killed = disk.copy()
    async with file_channel(killed) as found:
        assert entry_counts(found) == [30, 10]
        assert await take(found.channel, begin(found.channel)) == [b"%d" % number for number in range(20, 60)]


async def test_appends_that_wait_for_the_same_sync_share_a_record(disk: SimulatedDisk) -> None:
    """Each caller gets its own sequences, and all stamps are kept; they are one entry of the queue."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        first = await held_append(gate, channel, b"0")
        stamps = [None, Stamp("p", 1, 1), Stamp("q", 7, 7), Stamp("p", 2, 3), Stamp("p", 2, 2), None]
        bodies = [[b"1"], [b"2"], [b"3"], [b"4", b"5"], [b"4"], [b"6"]]
        calls = await called(*[append(channel, *own, stamp=stamp) for own, stamp in zip(bodies, stamps, strict=True)])
        gate.open()
        await first
        receipts = [Receipt(2, 2), Receipt(3, 3), Receipt(4, 4), Receipt(5, 6), Receipt(0, 0, True), Receipt(7, 7)]
        assert [await call for call in calls] == receipts
        # The repeat has no record, but its neighbours are not written together.
        assert opened.kinds() == [Kind.STATE, *[Kind.PUT, Kind.COMMIT] * 3]
        assert entry_counts(opened) == [7]
        held, killed = opened.durable_state(), disk.copy()
        assert [body for _, body in held.events] == [b"%d" % number for number in range(7)]
        assert held.stamps == {"p": [(1, 3)], "q": [(7, 7)]}
        assert await take(channel, begin(channel), 3) == [b"0", b"1", b"2"]
    assert await durable_state_on(killed) == held


@pytest.mark.parametrize("between", ["transaction", "large", "keys"])
async def test_appends_that_do_not_fit_together_have_records_of_their_own(disk: SimulatedDisk, between: str) -> None:
    """This concerns commits of transactions, large requests, and those that have many header keys together."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        first = await held_append(gate, channel, b"0")
        many = [stored_rows([({f"{kind}{number}": "" for number in range(200)}, b"x")]) for kind in "ab"]
        others = {
            "transaction": lambda: [channel.transactions.commit([begin_with_puts(channel, b"t")], None)],
            "large": lambda: [append(channel, bytes(5_000))],
            "keys": lambda: [channel.appends.append([columns], None) for columns in many],
        }
        calls = await called(append(channel, b"1"), *others[between](), append(channel, b"2"))
        gate.open()
        await asyncio.gather(first, *calls)
        kinds = opened.kinds()
        assert kinds.count(Kind.COMMIT) == kinds.count(Kind.PUT) == 1 + len(calls)
        held = opened.durable_state()
        assert len(held.events) == 1 + len(calls)
        killed = disk.copy()
    assert await durable_state_on(killed) == held


async def test_small_shared_records_are_parts_of_a_run(disk: SimulatedDisk) -> None:
    """A few callers at a time leave one entry, as one caller does."""
    async with file_channel(disk) as opened:
        channel, gate = opened.channel, Gate(disk)
        for number in range(0, 12, 4):
            first = await held_append(gate, channel, b"%d" % number)
            calls = await called(*[append(channel, b"%d" % other) for other in range(number + 1, number + 4)])
            gate.open()
            await asyncio.gather(first, *calls)
        assert opened.kinds().count(Kind.PUT) == 6
        assert entry_counts(opened) == [12]
        assert await take(channel, begin(channel)) == [b"%d" % number for number in range(12)]


async def test_put_without_a_commit_is_no_part_of_a_run(disk: SimulatedDisk, *, has_checkpoint: bool) -> None:
    """A crash may leave the beginning of a commit; the next process writes behind it, and so the one after finds it."""
    async with file_channel(disk) as opened:
        await append_each(opened, range(3))
        opened.log.submit([(Kind.PUT, [stored(b"lost").raw])], needs_sync=False, done=lambda _submission, _error: None)
        await opened.journal.snapshot()
        killed = disk.copy()
    async with file_channel(killed) as found:
        await append_each(found, range(3, 6))
        assert entry_counts(found) == [3, 3]
        if has_checkpoint:
            await found.checkpointing.make()
        again = killed.copy()
    async with file_channel(again) as found:
        assert entry_counts(found) == [3, 3]
        assert await take(found.channel, begin(found.channel)) == [b"%d" % number for number in range(6)]


def put_positions(content: bytes) -> Iterator[int]:
    """Yields the positions of a segment's PUT records."""
    position = 64
    while length := int.from_bytes(content[position + 8 : position + 12], "little"):
        if content[position + 12] == Kind.PUT:
            yield position
        position += RECORD_HEAD_BYTES + length


async def test_any_byte_of_a_run_flipped_is_found_or_harms_nothing(disk: SimulatedDisk) -> None:
    """Heads and payloads of its PUT records are checked; other records between them do not matter."""
    async with file_channel(disk) as opened:
        await append_each(opened, range(4))
        [run] = opened.channel._contents.queue
        (path,) = [path for path in disk.paths() if path.suffix == ".log"]
        good = disk.content(path)
        location = run.window.stored.location
        assert location is not None
        assert len(list(put_positions(good))) == run.window.stored.record_count == 4
        found = 0
        for position in range(location.position, location.position + RECORD_HEAD_BYTES + location.payload_length):
            content = bytearray(good)
            content[position] ^= 0x10
            disk._directories[DATA].shown[path.name].shown[:] = content
            run.window.stored.forget()
            try:
                assert bodies_of([run]) == [b"0", b"1", b"2", b"3"]
            except ChannelCorruptError:
                found += 1
        assert found >= 4 * RECORD_HEAD_BYTES
        disk._directories[DATA].shown[path.name].shown[:] = good
        run.window.stored.forget()
        disk.fail("read", 1, errno.EIO)
        with pytest.raises(ChannelCorruptError):
            bodies_of([run])


async def test_run_that_another_thread_has_read_has_its_merged_size(disk: SimulatedDisk) -> None:
    """A take at this moment responds with no more bytes than it may; the records alone are smaller than the run."""
    async with file_channel(disk) as opened:
        for value in ("a", "b"):
            rows = [({"header": value * 100}, b"")] * 30
            await opened.channel.appends.append([stored_rows(rows)], None)
        [run] = opened.channel._contents.queue
        [raw] = read_columns(opened.log, [run.window.stored])
        fit = run.window.fit(1 << 30, len(raw), Form.COLUMNS)
        assert fit.count < run.count
        assert fit.response_bytes <= len(raw)


async def test_replay_of_a_take_amid_a_run_that_cannot_be_read_shares_out_its_bytes(disk: SimulatedDisk) -> None:
    """The channel opens with the other events; reading the damaged ones raises an error."""
    async with file_channel(disk, segment_bytes_max=1_000) as opened:
        await append_each(opened, range(8))
        transactions = [begin(opened.channel), begin(opened.channel)]
        for transaction in transactions:
            assert len(await take(opened.channel, transaction, 3)) == 3
        await opened.checkpointing.make()
        await opened.channel.transactions.commit(transactions[1:], None)
        killed = disk.copy()
    path = min(path for path in killed.paths() if path.suffix == ".log")
    content = bytearray(killed.content(path))
    content[next(put_positions(bytes(content)))] ^= 1
    killed.set_content(path, content)
    async with file_channel(killed) as reopened:
        queue = reopened.channel._contents.queue
        assert [(batch.first_sequence, batch.count, batch.window.body_bytes) for batch in queue] == [
            (1, 3, 3),
            (7, 2, 2),
        ]
        with pytest.raises(ChannelCorruptError):
            bodies_of(list(queue)[:1])


async def test_replay_of_a_take_beyond_what_is_there_is_a_contradiction(disk: SimulatedDisk) -> None:
    """It says which events it names, and no index runs out of range."""
    async with file_channel(disk) as opened:
        await append_each(opened, range(2))
        take = pb.Take(first_sequences=[2], counts=[3], body_bytes=[3])
        commit = pb.Commit(first_sequence=3, take_records=1)
        records = [(Kind.TAKE, [take.SerializeToString()]), (Kind.COMMIT, [commit.SerializeToString()])]
        opened.log.submit(records, needs_sync=True, done=lambda *_: None)
        opened.log.close()
        killed = disk.copy()
    with pytest.raises(LogCorruptError, match="takes events 2 to 4; only some are in the channel"):
        async with file_channel(killed):
            pass
