import asyncio
from collections.abc import Sequence
from unittest.mock import AsyncMock

import pytest

from millrace_server.channels.admission import Capacity
from millrace_server.channels.batches import Form, StoredBatch
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.committer import MemoryCommitter, remove
from millrace_server.channels.contents import Contents
from millrace_server.channels.queue import EventQueue, ResponseLimits
from millrace_server.channels.stamps import Stamp, StampLedger
from millrace_server.errors import ChannelFullError, ChannelNotFoundError, SequenceGoneError, TxnCapacityError
from tests.channel_events import bodies_of, numbered, window
from tests.virtual_clock import now, settle, started

KEEP_ALIVE = 3.0


def make(contents: Contents, commit: Commit) -> Receipt:
    """Prepares and applies a commit."""
    contents.prepare(commit)
    contents.apply(commit)
    return commit.receipt


def put(contents: Contents, *bodies: bytes, stamp: Stamp | None = None) -> Receipt:
    """Commits events for which there is space."""
    change = contents.plan([window(*bodies)], [], stamp)
    assert contents.admits(change)
    return make(contents, change)


def take(contents: Contents, events_max: int) -> list[StoredBatch]:
    return contents.take(
        ResponseLimits(events_max=events_max, body_bytes_max=1 << 30, response_bytes_max=1 << 30, form=Form.COLUMNS)
    )


async def put_when_space(contents: Contents, *bodies: bytes, takes: Sequence[StoredBatch] = ()) -> Receipt:
    """Commits events once there is space, as a channel does."""
    change = contents.plan([window(*bodies)], takes, None)
    if not contents.admits(change):
        change = await contents.wait_for_space(lambda: contents.plan([window(*bodies)], takes, None), KEEP_ALIVE)
    return make(contents, change)


@pytest.fixture
def contents() -> Contents:
    """An empty channel with capacity for 4 events and 10 bytes."""
    return Contents("orders", Capacity(4, 10))


def filled(contents: Contents) -> Contents:
    put(contents, b"a", b"b")
    put(contents, b"c", b"d")
    return contents


async def test_make_of_puts_assigns_sequences_from_one_on(contents: Contents) -> None:
    """Commit order is queue order; the receipt contains the stored sequences."""
    assert (contents.first_sequence, contents.next_sequence) == (1, 1)
    assert put(contents, b"a", b"b") == Receipt(1, 2)
    assert put(contents, b"c") == Receipt(3, 3)
    assert numbered(contents.queue) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert (contents.first_sequence, contents.next_sequence) == (1, 4)


async def test_make_of_a_swap_charges_the_difference(contents: Contents) -> None:
    """Repeated swaps do not change the accounts."""
    put(contents, b"12345", b"1")
    for number in range(50):
        taken = take(contents, 2)
        make(contents, contents.plan([window(b"12", b"1234" + b"x" * (number % 2))], taken, None))
        assert (contents.capacity.event_count, contents.capacity.body_bytes) == (2, 6 + number % 2)


async def test_first_sequence_when_all_is_taken_is_the_next(contents: Contents) -> None:
    """There are no events that could be read."""
    filled(contents)
    take(contents, 4)
    assert contents.first_sequence == contents.next_sequence == 5


@pytest.mark.parametrize(
    ("stamp", "stored"),
    [
        (Stamp("p", 3, 6), b"c d"),
        (Stamp("p", 0, 3), b"a"),
        (Stamp("p", 5, 8), b"a b c d"),
        (Stamp("p", 1, 4), b""),
    ],
)
async def test_plan_with_a_stamp_keeps_what_is_new(contents: Contents, stamp: Stamp, stored: bytes) -> None:
    """Numbers 1 to 4 were stored; of four more events, in two windows, only those with new numbers are."""
    contents.ledger.accept(Stamp("p", 1, 4))
    change = contents.plan([window(b"a"), window(b"b", b"c", b"d")], [], stamp)
    expected = stored.split()
    assert [body for one in change.puts for _, body in one.rows()] == expected
    assert change.dropped_count == 4 - len(expected)
    receipt = make(contents, change)
    assert receipt == Receipt(min(len(expected), 1), len(expected), len(expected) < 4)
    assert contents.counters.deduplicated == 4 - len(expected)
    again = contents.plan([window(b"x", b"x", b"x", b"x")], [], stamp)
    assert make(contents, again) == Receipt(0, 0, is_deduplicated=True)


async def test_plan_with_a_stamp_full_of_holes_keeps_each_new_event(contents: Contents) -> None:
    """Ranges and windows may overlap in any way."""
    for number in (1, 4, 5):
        contents.ledger.accept(Stamp("p", number, number))
    change = contents.plan([window(b"0", b"1", b"2"), window(b"3", b"4"), window(b"5", b"6")], [], Stamp("p", 0, 6))
    assert [body for one in change.puts for _, body in one.rows()] == [b"0", b"2", b"3", b"6"]


@pytest.mark.parametrize("bodies", [[b""] * 5, [b"12345", b"123456"]])
async def test_plan_of_more_than_the_channel_could_hold_is_refused(contents: Contents, bodies: list[bytes]) -> None:
    """Waiting could not help."""
    with pytest.raises(TxnCapacityError, match="the whole channel holds 4 and 10; commit less at a time"):
        _ = contents.plan([window(*bodies)], [], None)


async def test_plan_of_too_many_puts_is_refused_though_it_takes_as_many(contents: Contents) -> None:
    """Takes make space for puts, but never for more than the channel holds."""
    filled(contents)
    taken = take(contents, 4)
    _ = contents.plan([window(b"1", b"2", b"3", b"4")], taken, None)
    with pytest.raises(TxnCapacityError):
        _ = contents.plan([window(b"1", b"2", b"3", b"4", b"5")], taken, None)


async def test_admit_with_space_and_no_waiting_caller_is_immediate(contents: Contents) -> None:
    """A change that shrinks the channel, or leaves it unchanged, never waits."""
    filled(contents)
    assert not contents.admits(contents.plan([window(b"e")], [], None))
    taken = take(contents, 1)
    assert contents.admits(contents.plan([window(b"e")], taken, None))
    assert contents.admits(contents.plan([], taken, None))
    assert not contents.admits(contents.plan([window(b"1234567890")], taken, None))


async def test_goes_at_once_while_another_waits_only_without_need_of_space(contents: Contents) -> None:
    """The first caller gets the space, also between its wake-up and its next check."""
    filled(contents)
    waiting = await started(put_when_space(contents, b"e", b"f"))
    taken = take(contents, 3)
    make(contents, contents.plan([], taken, None))
    assert contents.capacity.admits(1, 1)
    assert not contents.admits(contents.plan([window(b"g")], [], None))
    assert contents.admits(contents.plan([], [], None))
    assert await waiting.result() == Receipt(5, 6)
    assert contents.admits(contents.plan([window(b"g")], [], None))


async def test_wait_for_space_of_many_serves_them_in_order(contents: Contents) -> None:
    """Calls are served in order, even if a later one would fit earlier."""
    filled(contents)
    order = list[str]()

    async def wait(name: str, *bodies: bytes) -> None:
        await put_when_space(contents, *bodies)
        order.append(name)

    for name, bodies in (("a", [b"x"] * 3), ("b", [b"x"]), ("c", [b"x"] * 2)):
        await started(wait(name, *bodies))
    for expected in ([], [], ["a"], ["a", "b"], ["a", "b"], ["a", "b", "c"]):
        make(contents, contents.plan([], take(contents, 1), None))
        await settle()
        assert order == expected
    assert len(contents.capacity.waiters) == 0


async def test_wait_for_space_when_two_changes_come_at_once_keeps_the_order(contents: Contents) -> None:
    """If space is freed twice before any caller runs, the first caller gets the first part."""
    filled(contents)
    first = await started(put_when_space(contents, b"a", b"b", b"c"))
    second = await started(put_when_space(contents, b"d"))
    for _ in range(2):
        make(contents, contents.plan([], take(contents, 1), None))
    await settle()
    assert not first.is_done
    assert not second.is_done
    make(contents, contents.plan([], take(contents, 1), None))
    await settle()
    assert first.is_done
    assert not second.is_done


async def test_wait_for_space_of_a_caller_woken_out_of_turn_overtakes_no_other(contents: Contents) -> None:
    """This holds even if there is space; a call that no longer needs space never waits."""
    put(contents, b"a", b"b")
    first = await started(put_when_space(contents, b"c", b"d", b"e"))
    second = await started(put_when_space(contents, b"f"))
    repeat = await started(_append_when_space(contents, Stamp("p", 1, 1), b"g"))
    contents.ledger.accept(Stamp("p", 1, 1))
    contents.capacity.waiters.wake_all()
    await settle()
    assert not first.is_done
    assert not second.is_done
    assert await repeat.result() == Receipt(0, 0, is_deduplicated=True)
    make(contents, contents.plan([], take(contents, 1), None))
    assert await first.result() == Receipt(3, 5)


async def _append_when_space(contents: Contents, stamp: Stamp, body: bytes) -> Receipt:
    change = await contents.wait_for_space(lambda: contents.plan([window(body)], [], stamp), KEEP_ALIVE)
    return make(contents, change)


async def test_wait_for_space_of_one_cancelled_lets_the_next_have_it(contents: Contents) -> None:
    """The next call may need less, and does not wait for the cancelled one."""
    put(contents, b"a", b"b")
    large = await started(put_when_space(contents, b"c", b"d", b"e"))
    small = await started(put_when_space(contents, b"f"))
    large.cancel()
    await settle()
    assert large.is_cancelled
    assert await small.result() == Receipt(3, 3)
    assert now() == 0


async def test_wait_for_space_of_one_cancelled_after_its_wake_up_lets_the_next_have_it(contents: Contents) -> None:
    """The wake-up is passed on."""
    filled(contents)
    first = await started(put_when_space(contents, b"e"))
    second = await started(put_when_space(contents, b"f"))
    make(contents, contents.plan([], take(contents, 1), None))
    first.cancel()
    await settle()
    assert first.is_cancelled
    assert second.is_done
    assert bodies_of(contents.queue) == [b"b", b"c", b"d", b"f"]


async def test_wait_for_space_of_one_whose_time_passes_lets_the_next_have_it(contents: Contents) -> None:
    """A refused call leaves the space that was too small for it to the next."""
    put(contents, b"a", b"b")
    large = await started(put_when_space(contents, b"c", b"d", b"e"))
    await asyncio.sleep(1)
    small = await started(put_when_space(contents, b"f"))
    assert await small.result() == Receipt(3, 3)
    assert now() == KEEP_ALIVE
    with pytest.raises(ChannelFullError):
        await large.result()


async def test_wait_for_space_that_is_there_when_the_time_passes_is_granted(contents: Contents) -> None:
    """The space is checked once more at the timeout, so a call is never refused while there is space."""
    put(contents, b"a")
    large = await started(put_when_space(contents, b"b", b"c", b"d", b"e"))
    small = await started(put_when_space(contents, b"f"))
    await asyncio.sleep(KEEP_ALIVE)
    await settle()
    with pytest.raises(ChannelFullError):
        await large.result()
    assert await small.result() == Receipt(2, 2)


async def test_wait_for_space_while_somebody_else_commits_it_ends(contents: Contents) -> None:
    """A plan whose commit was submitted by another call need not wait any more."""
    filled(contents)
    done = Commit.repeated(Receipt(7, 8))
    planned = [contents.plan([window(b"e")], [], None), done]
    call = await started(contents.wait_for_space(lambda: planned.pop(0), KEEP_ALIVE))
    for _ in range(2):
        contents.capacity.waiters.wake_next()
        await settle()
    assert await call.result() is done


async def test_wait_for_space_that_became_impossible_fails_at_once(contents: Contents) -> None:
    """The caller gets the error of the plan, and the next caller in the line continues."""
    filled(contents)
    large = await started(put_when_space(contents, b"e", b"f", b"g"))
    small = await started(put_when_space(contents, b"h"))
    make(contents, contents.plan([], take(contents, 3), None))
    assert await contents.resize(2, 10, KEEP_ALIVE)
    with pytest.raises(TxnCapacityError):
        await large.result()
    assert await small.result() == Receipt(5, 5)


async def test_resize_to_less_waits_for_space_before_all_others(contents: Contents) -> None:
    """A waiting commit does not take the space that the resize waits for, and then gets the rest."""
    filled(contents)
    commit = await started(put_when_space(contents, b"e"))
    resize = await started(contents.resize(3, 10, KEEP_ALIVE))
    make(contents, contents.plan([], take(contents, 1), None))
    await settle()
    assert resize.is_done
    assert not commit.is_done
    make(contents, contents.plan([], take(contents, 1), None))
    assert await commit.result() == Receipt(5, 5)
    assert contents.capacity.events_max == 3


async def test_resize_that_is_cancelled_lets_others_have_the_space(contents: Contents) -> None:
    """Commits behind it do not wait for it any more."""
    put(contents, b"a", b"b", b"c")
    resize = await started(contents.resize(2, 10, KEEP_ALIVE))
    commit = await started(put_when_space(contents, b"d"))
    assert not commit.is_done
    resize.cancel()
    assert await commit.result() == Receipt(4, 4)
    assert now() == 0
    assert contents.capacity.events_max == 4


async def purge(contents: Contents) -> int:
    purged = contents.take_through(contents.next_sequence)
    await remove(contents, MemoryCommitter(contents), purged, is_purge=True)
    return sum(batch.count for batch in purged)


async def test_remove_of_all_that_is_queued_leaves_the_rest(contents: Contents) -> None:
    """Taken events stay with their transactions; the removed ones count as never delivered."""
    filled(contents)
    taken = take(contents, 1)
    commit = await started(put_when_space(contents, b"e", b"f"))
    assert await purge(contents) == 3
    assert contents.capacity.event_count == 1
    await settle()
    assert await commit.result() == Receipt(5, 6)
    contents.put_back(taken)
    assert bodies_of(contents.queue) == [b"a", b"e", b"f"]
    assert contents.counters.take_successes == 0
    assert (await purge(contents), await purge(contents)) == (3, 0)
    assert (contents.capacity.event_count, contents.capacity.body_bytes) == (0, 0)


async def test_close_notifies_waiting_and_later_callers() -> None:
    """Commits, resizes and followers end; nothing waits for a deleted channel."""
    contents = filled(Contents("orders", Capacity(4, 10)))
    follower = contents.subscribe()
    commit = await started(put_when_space(contents, b"e"))
    resize = await started(contents.resize(1, 10, KEEP_ALIVE))
    contents.close()
    with pytest.raises(ChannelNotFoundError, match="channel 'orders' was deleted"):
        await commit.result()
    with pytest.raises(ChannelNotFoundError):
        await resize.result()
    assert now() == 0
    assert await follower.next_batch() is None
    with pytest.raises(ChannelNotFoundError):
        _ = contents.plan([], [], None)


async def test_follow_from_now_on_sees_each_commit() -> None:
    """Events that are taken at once are seen too; following ends with `unfollow`."""
    contents = Contents("orders", Capacity(4, 10))
    put(contents, b"a")
    follower = contents.subscribe()
    put(contents, b"b")
    take(contents, 2)
    put(contents, b"c")
    contents.unsubscribe(follower)
    contents.unsubscribe(follower)
    put(contents, b"d")
    follower.end()
    seen = []
    while (news := await follower.next_batch()) is not None:
        seen += bodies_of([news[1]])
    assert seen == [b"b", b"c"]


async def test_wake_taker_without_events_wakes_no_caller(contents: Contents) -> None:
    """The taker would find nothing."""
    calls = list[bool]()

    async def wait() -> None:
        with contents.takers.join() as place:
            calls.append(await place.wait(5))

    await started(wait())
    contents.wake_taker()
    await settle()
    assert calls == []
    put(contents, b"a")
    await settle()
    assert calls == [True]


def test_change_of_windows_counts_them() -> None:
    """Added and removed events are counted, with their bytes."""
    change = Commit([window(b"aa", b"b"), window(b"c")], [StoredBatch(1, window(b"dddd"))])
    assert (change.put_count, change.put_body_bytes, change.event_count, change.body_bytes) == (3, 4, 2, 0)


async def test_load_of_what_is_in_memory_returns_it_unchanged(contents: Contents) -> None:
    """No call waits."""
    batches = list(filled(contents).queue)
    await contents.prefetch(
        ResponseLimits(events_max=1, body_bytes_max=1 << 30, response_bytes_max=1 << 30, form=Form.COLUMNS)
    )
    assert [one async for one in contents.load(batches)] == batches
    assert [one async for one in contents.load([])] == []


async def test_held_batches_are_those_queued_and_those_taken(contents: Contents) -> None:
    """Batches are held until they are removed."""
    taken = take(filled(contents), 1)
    assert sorted(numbered(contents.held_batches())) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
    make(contents, contents.plan([], taken, None))
    assert sorted(numbered(contents.held_batches())) == [(2, b"b"), (3, b"c"), (4, b"d")]


def test_restore_of_a_queue_charges_its_space() -> None:
    """Restored events count as events committed before the restart; sequences continue after them."""
    contents = Contents("orders", Capacity(1, 1), next_sequence=9)
    queue, ledger = EventQueue(), StampLedger()
    queue.append(StoredBatch(5, window(b"aa", b"b")))
    ledger.accept(Stamp("p", 1, 2))
    contents.restore(queue, ledger, 0)
    assert (contents.capacity.event_count, contents.capacity.body_bytes, contents.taken_count) == (2, 3, 0)
    assert (contents.first_sequence, contents.next_sequence, contents.assigned_sequence) == (5, 9, 9)
    assert contents.plan([window(b"x")], [], Stamp("p", 2, 2)).dropped_count == 1


async def test_prefetch_of_what_others_consume_in_the_meantime_reads_what_is_first_now(contents: Contents) -> None:
    """What they consumed may be gone from a log that is slow to read; that is no error of this take."""
    put(contents, b"1")
    put(contents, b"2")
    limits = ResponseLimits(events_max=1, body_bytes_max=1 << 30, response_bytes_max=1 << 30, form=Form.COLUMNS)
    wanted: list[int] = []

    class Columns:
        """A log that another take empties while it is read."""

        async def load(self, batches: Sequence[StoredBatch]) -> None:
            wanted.append(batches[0].end_sequence)
            if len(wanted) == 1:
                take(contents, 1)
                raise SequenceGoneError("gone")

    contents._columns = Columns()  # type: ignore[assignment] # all that is used of it
    await contents.prefetch(limits)
    assert wanted == [2, 3]


async def test_prefetch_of_events_that_are_gone_though_they_are_queued_raises(contents: Contents) -> None:
    """It does not try for ever."""
    put(contents, b"1")
    limits = ResponseLimits(events_max=1, body_bytes_max=1 << 30, response_bytes_max=1 << 30, form=Form.COLUMNS)
    contents._columns = AsyncMock()
    contents._columns.load.side_effect = SequenceGoneError("gone")
    with pytest.raises(SequenceGoneError):
        await contents.prefetch(limits)
