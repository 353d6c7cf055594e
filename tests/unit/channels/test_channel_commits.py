import asyncio

import pytest

from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Receipt
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import (
    BadArgumentError,
    BytesFullError,
    ChannelFullError,
    ChannelNotFoundError,
    DiskFullError,
    EventTooLargeError,
    ForbiddenError,
    OffsetGapError,
    TxnCapacityError,
    TxnStateError,
)
from tests.channel_events import (
    append,
    begin,
    begin_with_puts,
    begin_with_takes,
    check_accounts,
    make_space,
    nearly_full_channel,
    open_channel,
    queued,
    stored,
    take,
)
from tests.slow_commits import SlowCommits
from tests.virtual_clock import now, settle, started


@pytest.fixture
async def channel() -> Channel:
    """A nearly full channel: 3 of 3 events, 9 of 10 bytes."""
    return await nearly_full_channel()


async def test_append_stores_all_requests_as_one(channel: Channel) -> None:
    """The rows of a request may have become several columns."""
    await make_space(channel, 3)
    assert await channel.appends.append([stored(b"x"), stored(b"y", b"z")], None) == Receipt(4, 6)
    assert queued(channel) == [b"x", b"y", b"z"]
    assert channel._contents.counters.commits == 3
    check_accounts(channel)


async def test_append_of_more_than_a_transaction_may_put_is_refused() -> None:
    """The transaction's capacity bounds an append too."""
    channel = open_channel(capacity=10, transaction_capacity=2, body_bytes_max=10)
    with pytest.raises(TxnCapacityError, match="would put 3 events; transaction_capacity is 2"):
        await channel.appends.append([stored(b"a"), stored(b"b", b"c")], None)
    with pytest.raises(TxnCapacityError, match=r"would put 11 body bytes; byte_capacity and .* allow 10 at once"):
        await append(channel, b"123456", b"12345")
    with pytest.raises(EventTooLargeError):
        await append(channel, b"x" * 11)
    assert channel._contents.next_sequence == 1


async def test_append_to_a_full_channel_waits_for_space(channel: Channel) -> None:
    """A producer that is faster than its consumers is slowed down, not refused."""
    call = await started(append(channel, b"d"))
    await asyncio.sleep(2)
    await make_space(channel)
    assert await call.result() == Receipt(4, 4)
    assert now() == 2
    check_accounts(channel)


async def test_append_that_finds_no_space_stores_nothing(channel: Channel) -> None:
    """Neither events nor stamp are stored, so the append may be repeated."""
    stamp = Stamp("p", 1, 1)
    with pytest.raises(ChannelFullError):
        await append(channel, b"d", stamp=stamp)
    assert now() == 3
    check_accounts(channel)
    await make_space(channel)
    assert await append(channel, b"d", stamp=stamp) == Receipt(4, 4)


async def test_append_that_finds_space_for_events_but_not_for_bytes_reports_it(channel: Channel) -> None:
    """The operator needs to know which limit it was."""
    await make_space(channel)
    with pytest.raises(BytesFullError):
        await append(channel, b"ddddd")
    with pytest.raises(ChannelFullError):
        await append(channel, b"", b"")


async def test_append_of_what_is_stored_already_needs_no_space(channel: Channel) -> None:
    """A repeat gets a response at once, even if the channel is full."""
    channel._contents.ledger.accept(Stamp("p", 1, 2))
    assert await append(channel, b"x", b"y", stamp=Stamp("p", 1, 2)) == Receipt(0, 0, is_deduplicated=True)
    assert now() == 0


async def test_append_repeated_while_the_first_waits_is_stored_once(channel: Channel) -> None:
    """Both wait for space; the second finds that there is nothing left to store."""
    stamp = Stamp("p", 7, 7)
    first, second = [await started(append(channel, b"d", stamp=stamp)) for _ in range(2)]
    await make_space(channel)
    assert await first.result() == Receipt(4, 4)
    assert await second.result() == Receipt(0, 0, is_deduplicated=True)
    assert now() == 0
    assert queued(channel).count(b"d") == 1
    check_accounts(channel)


async def test_append_with_overlapping_stamps_stores_each_number_once() -> None:
    """Events with known numbers are removed at both ends and in the middle."""
    channel = open_channel()
    assert await append(channel, b"3", b"4", stamp=Stamp("p", 3, 4)) == Receipt(1, 2)
    assert await append(channel, b"2", b"3", b"4", b"5", stamp=Stamp("p", 2, 5)) == Receipt(3, 4, is_deduplicated=True)
    assert await append(channel, b"0", b"1", stamp=Stamp("p", 0, 1)) == Receipt(5, 6)
    assert await append(channel, b"1", b"2", stamp=Stamp("p", 1, 2)) == Receipt(0, 0, is_deduplicated=True)
    assert await append(channel, b"1", stamp=Stamp("q", 1, 1)) == Receipt(7, 7)
    assert queued(channel) == [b"3", b"4", b"2", b"5", b"0", b"1", b"1"]
    assert channel._contents.counters.deduplicated == 4
    check_accounts(channel)


async def test_append_with_events_cut_out_of_its_middle_comes_back_as_it_was_stored() -> None:
    """A rollback does not return events that a stamp has dropped."""
    channel = open_channel()
    await append(channel, b"2", stamp=Stamp("p", 2, 2))
    await append(channel, b"1", b"2", b"3", stamp=Stamp("p", 1, 3))
    txn_id = begin(channel)
    for _ in range(3):
        await take(channel, txn_id, 1)
    channel.transactions.rollback(txn_id)
    assert queued(channel) == [b"2", b"1", b"3"]
    check_accounts(channel)


async def test_append_with_a_stamp_for_the_whole_is_stored_whole_or_not_at_all() -> None:
    """Repeated with another number of events it is a repeat; a partial overlap is refused."""
    channel = open_channel()
    assert await append(channel, b"a", b"b", stamp=Stamp("query", 5, 5)) == Receipt(1, 2)
    assert await append(channel, b"a", b"b", b"c", stamp=Stamp("query", 5, 5)) == Receipt(0, 0, is_deduplicated=True)
    with pytest.raises(BadArgumentError, match="overlaps in part"):
        await append(channel, b"d", stamp=Stamp("query", 5, 6))
    assert queued(channel) == [b"a", b"b"]


async def test_append_behind_one_that_waits_is_judged_when_its_turn_comes(channel: Channel) -> None:
    """An append that was sent before the result of the previous one is refused only if that one was."""
    first = await started(append(channel, b"d", stamp=Stamp("p", 1, 1)))
    second = await started(append(channel, b"e", stamp=Stamp("p", 2, 2, after=1)))
    await make_space(channel, 2)
    assert await first.result() == Receipt(4, 4)
    assert await second.result() == Receipt(5, 5)
    check_accounts(channel)


async def test_append_behind_one_that_was_refused_stores_nothing(channel: Channel) -> None:
    """This holds even if there is space by then: a producer's requests never overtake each other."""
    first = await started(append(channel, b"d", b"d", stamp=Stamp("p", 1, 2)))
    await asyncio.sleep(1)
    second = await started(append(channel, b"e", stamp=Stamp("p", 3, 3, after=2)))
    await make_space(channel)
    with pytest.raises(ChannelFullError):
        await first.result()
    with pytest.raises(OffsetGapError, match=r"stamp\.after_sequence: is 2"):
        await second.result()
    assert now() == 3
    assert queued(channel) == [b"bbb", b"ccc"]
    check_accounts(channel)


async def test_append_repeated_behind_what_it_came_after_is_a_repeat() -> None:
    """A condition that was met stays so, and a repeat gets a response like any other."""
    channel = open_channel()
    await append(channel, b"a", stamp=Stamp("p", 1, 1))
    stamp = Stamp("p", 2, 2, after=1)
    assert await append(channel, b"b", stamp=stamp) == Receipt(2, 2)
    assert await append(channel, b"b", stamp=stamp) == Receipt(0, 0, is_deduplicated=True)


async def test_append_that_closes_gaps_drops_what_comes_late_nevertheless() -> None:
    """A late request of an abandoned connection is dropped once its producer has moved on."""
    channel = open_channel()
    await append(channel, b"1", stamp=Stamp("p", 1, 1))
    await append(channel, b"9", stamp=Stamp("p", 9, 9, oldest_open=9))
    assert await append(channel, b"4", stamp=Stamp("p", 4, 4)) == Receipt(0, 0, is_deduplicated=True)
    assert queued(channel) == [b"1", b"9"]


# Commit.


async def test_commit_with_a_gap_before_its_stamp_leaves_its_transaction_open() -> None:
    """It can be committed once the events before it are stored."""
    channel = open_channel()
    txn_id = begin_with_puts(channel, b"b")
    with pytest.raises(OffsetGapError):
        await channel.transactions.commit([txn_id], Stamp("p", 2, 2, after=1))
    await append(channel, b"a", stamp=Stamp("p", 1, 1))
    assert await channel.transactions.commit([txn_id], Stamp("p", 2, 2, after=1)) == Receipt(2, 2)
    assert queued(channel) == [b"a", b"b"]


async def test_commit_of_a_swap_on_a_full_channel_is_at_once(channel: Channel) -> None:
    """Takes of a transaction make space for its puts."""
    txn_id = await begin_with_takes(channel, 1)
    channel.transactions.put(txn_id, [stored(b"dddd")], None)
    assert await channel.transactions.commit([txn_id], None) == Receipt(4, 4)
    assert now() == 0
    assert (channel._contents.capacity.event_count, channel._contents.capacity.body_bytes) == (3, 10)


async def test_commit_of_a_swap_with_more_bytes_waits_for_them(channel: Channel) -> None:
    """The numbers of events are equal, but there is no space for the difference in bytes."""
    txn_id = await begin_with_takes(channel, 1)
    channel.transactions.put(txn_id, [stored(b"ddddd")], None)
    with pytest.raises(BytesFullError):
        await channel.transactions.commit([txn_id], None)
    check_accounts(channel)
    channel.transactions.rollback(txn_id)
    assert queued(channel) == [b"aaa", b"bbb", b"ccc"]


async def test_commit_of_several_lets_takes_of_one_make_space_for_another(channel: Channel) -> None:
    """The transactions are one change."""
    taking, putting = await begin_with_takes(channel, 2), begin_with_puts(channel, b"d", b"e")
    assert await channel.transactions.commit([putting, taking], None) == Receipt(4, 5)
    assert now() == 0
    check_accounts(channel)


async def test_commit_of_more_than_the_channel_holds_together_is_refused(channel: Channel) -> None:
    """Each transaction could be stored, but never all; they stay open, and can be committed one by one."""
    await make_space(channel, 3)
    first, second = begin_with_puts(channel, b"1", b"2"), begin_with_puts(channel, b"3", b"4")
    with pytest.raises(TxnCapacityError, match="the commit puts 4 events"):
        await channel.transactions.commit([first, second], None)
    assert await channel.transactions.commit([first], None) == Receipt(4, 5)
    assert channel.open_transactions == 1


async def test_commit_that_finds_no_space_leaves_its_transactions_open(channel: Channel) -> None:
    """They can be committed again, or rolled back."""
    first, second = begin_with_puts(channel, b"d"), begin_with_puts(channel, b"e")
    with pytest.raises(ChannelFullError):
        await channel.transactions.commit([first, second], None)
    assert (now(), channel.open_transactions) == (3, 2)
    channel.transactions.rollback(second)
    await make_space(channel)
    assert await channel.transactions.commit([first], None) == Receipt(4, 4)


async def test_commits_that_wait_are_served_in_order(channel: Channel) -> None:
    """The first caller gets the first space, also before one that arrives during the wake-up."""
    calls = [
        await started(channel.transactions.commit([begin_with_puts(channel, body)], None))
        for body in (b"d", b"e", b"f")
    ]
    assert len(channel._contents.capacity.waiters) == 3
    for number in range(3):
        taking = await begin_with_takes(channel, 1)
        late = begin_with_puts(channel, b"late")
        await channel.transactions.commit([taking], None)
        call = await started(channel.transactions.commit([late], None))
        assert [one.is_done for one in calls] == [True] * (number + 1) + [False] * (2 - number)
        assert not call.is_done
        call.cancel()
        await settle()
        channel.transactions.rollback(late)
    assert queued(channel) == [b"d", b"e", b"f"]
    assert len(channel._contents.capacity.waiters) == 0


async def test_commit_that_takes_space_from_no_one_does_not_wait_behind_others(channel: Channel) -> None:
    """Waiting calls wait for commits of takes and rollbacks."""
    call = await started(append(channel, b"d", b"e"))
    taking = await begin_with_takes(channel, 1)
    await channel.transactions.commit([taking], None)
    swap = await begin_with_takes(channel, 1)
    channel.transactions.put(swap, [stored(b"x")], None)
    await channel.transactions.commit([swap], None)
    assert now() == 0
    await make_space(channel)
    assert await call.result() == Receipt(5, 6)


async def test_commit_that_is_cancelled_while_it_waits_changes_nothing(channel: Channel) -> None:
    """Its transaction stays open and its lease runs; its retry is safe."""
    txn_id = begin_with_puts(channel, b"d")
    call = await started(channel.transactions.commit([txn_id], None))
    call.cancel()
    await settle()
    assert (len(channel._contents.capacity.waiters), channel.open_transactions) == (0, 1)
    await make_space(channel)
    assert await channel.transactions.commit([txn_id], None) == Receipt(4, 4)


async def test_commit_repeated_while_the_first_waits_gets_the_same(channel: Channel) -> None:
    """The repetition of a waiting call returns its result, also for a part of the ids."""
    ids = [begin_with_puts(channel, b"d"), begin(channel)]
    calls = [await started(channel.transactions.commit(repeat, None)) for repeat in (ids, ids, ids[:1])]
    await asyncio.sleep(1)
    await make_space(channel)
    for call in calls:
        assert await call.result() == Receipt(4, 4)
    assert now() == 1
    assert queued(channel).count(b"d") == 1
    check_accounts(channel)


async def test_commit_that_waits_when_its_transaction_is_rolled_back_fails_at_once(channel: Channel) -> None:
    """Callers behind it do not wait for it any more."""
    txn_id = begin_with_puts(channel, b"d", b"e")
    call = await started(channel.transactions.commit([txn_id], None))
    behind = await started(append(channel, b"f"))
    await make_space(channel)
    await settle()
    assert not behind.is_done
    channel.transactions.rollback(txn_id)
    with pytest.raises(TxnStateError, match="rolled back already"):
        await call.result()
    assert await behind.result() == Receipt(4, 4)
    assert now() == 0


@pytest.mark.parametrize("what", ["commit", "append"])
async def test_what_waits_and_is_not_allowed_any_more_stores_nothing(channel: Channel, what: str) -> None:
    """It is checked again after the wait, however much space there is then."""
    is_allowed = True

    def recheck() -> None:
        if not is_allowed:
            raise ForbiddenError("no role allows it any more")

    if what == "commit":
        waiting = await started(channel.transactions.commit([begin_with_puts(channel, b"d")], None, recheck))
    else:
        waiting = await started(channel.appends.append([stored(b"d")], None, recheck))
    is_allowed = False
    await make_space(channel)
    with pytest.raises(ForbiddenError):
        await waiting.result()
    assert b"d" not in queued(channel)
    check_accounts(channel)


async def test_commit_that_waits_stores_what_is_put_in_the_meantime(channel: Channel) -> None:
    """The transaction stays open until it is committed."""
    txn_id = begin_with_puts(channel, b"d")
    call = await started(channel.transactions.commit([txn_id], None))
    channel.transactions.put(txn_id, [stored(b"e")], None)
    await make_space(channel)
    await settle()
    assert not call.is_done
    await make_space(channel)
    assert await call.result() == Receipt(4, 5)


async def test_commit_that_waits_when_the_channel_is_deleted_fails_at_once(channel: Channel) -> None:
    """No call waits for a deleted channel."""
    commit = await started(channel.transactions.commit([begin_with_puts(channel, b"d")], None))
    behind = await started(append(channel, b"e"))
    channel.delete()
    for call in (commit, behind):
        with pytest.raises(ChannelNotFoundError):
            await call.result()
    assert (now(), len(channel._contents.capacity.waiters)) == (0, 0)


async def test_commit_without_keep_alive_does_not_wait() -> None:
    """A keep-alive of zero is allowed, and does not wait."""
    channel = open_channel(capacity=1, keep_alive_seconds=0)
    await append(channel, b"a")
    with pytest.raises(ChannelFullError, match="in 0 s") as refused:
        await append(channel, b"b")
    assert refused.value.retry_delay_seconds == 0.1
    assert now() == 0


async def test_commit_with_a_stamp_covers_all_its_transactions() -> None:
    """The stamp's numbers run through their puts in the order of the ids."""
    channel = open_channel()
    await append(channel, b"2", stamp=Stamp("p", 2, 2))
    first, second = begin_with_puts(channel, b"1", b"2"), begin_with_puts(channel, b"3")
    assert await channel.transactions.commit([first, second], Stamp("p", 1, 3)) == Receipt(2, 3, is_deduplicated=True)
    assert queued(channel) == [b"2", b"1", b"3"]


async def test_commit_of_repeats_alone_still_removes_its_takes() -> None:
    """A forwarder whose events are already stored still commits its takes."""
    channel = open_channel()
    await append(channel, b"a", stamp=Stamp("p", 1, 1))
    txn_id = await begin_with_takes(channel, 1)
    channel.transactions.put(txn_id, [stored(b"a")], None)
    assert await channel.transactions.commit([txn_id], Stamp("p", 1, 1)) == Receipt(0, 0, is_deduplicated=True)
    assert channel._contents.capacity.event_count == 0
    check_accounts(channel)


async def test_commit_with_an_impossible_stamp_leaves_its_transaction_open() -> None:
    """Another stamp can still be used."""
    channel = open_channel()
    await append(channel, b"a", b"b", stamp=Stamp("p", 5, 5))
    txn_id = begin_with_puts(channel, b"c")
    with pytest.raises(BadArgumentError, match="overlaps in part"):
        await channel.transactions.commit([txn_id], Stamp("p", 4, 5))
    assert await channel.transactions.commit([txn_id], Stamp("p", 6, 6)) == Receipt(3, 3)


async def test_commit_without_events_keeps_its_stamp() -> None:
    """An empty batch counts as stored: its repetition stores nothing, whatever it contains."""
    channel = open_channel()
    assert await channel.transactions.commit([begin(channel)], Stamp("query", 8, 8)) == Receipt(0, 0)
    assert await append(channel, b"a", b"b", stamp=Stamp("query", 8, 8)) == Receipt(0, 0, is_deduplicated=True)


# A disk without space.


async def test_append_that_the_disk_refuses_twice_waits_for_it_within_one_keep_alive() -> None:
    """The second refusal does not start the wait again."""
    channel = open_channel(keep_alive_seconds=10)
    slow = SlowCommits(channel)
    call = await started(append(channel, b"a"))
    slow.refuse(DiskFullError("no space"))
    await asyncio.sleep(6)
    channel._contents.disk_waiters.wake_all()
    await settle()
    slow.refuse(DiskFullError("no space"))
    with pytest.raises(DiskFullError):
        await call.result()
    assert now() == 10
    check_accounts(channel)


async def test_commit_that_waits_for_the_disk_responds_at_once_when_its_transaction_is_ended() -> None:
    """An operator ends it, and its caller need not wait for the rest of the keep-alive."""
    channel = open_channel(keep_alive_seconds=10)
    slow = SlowCommits(channel)
    txn_id = begin_with_puts(channel, b"a")
    call = await started(channel.transactions.commit([txn_id], None))
    slow.refuse(DiskFullError("no space"))
    await settle()
    channel.end_transaction(txn_id)
    with pytest.raises(TxnStateError, match="rolled back"):
        await call.result()
    assert now() == 0
    check_accounts(channel)
