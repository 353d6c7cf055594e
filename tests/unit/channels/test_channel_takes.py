import asyncio

import pytest

from millrace_server.channels.batches import Form
from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.errors import (
    ChannelClaimedError,
    ChannelNotFoundError,
    DrainingError,
    OffsetGapError,
    TxnCapacityError,
    TxnStateError,
)
from tests.channel_events import (
    append,
    begin,
    begin_with_takes,
    bodies_of,
    check_accounts,
    numbered,
    open_channel,
    queued,
    take,
)
from tests.virtual_clock import now, settle, started


@pytest.fixture
async def channel() -> Channel:
    """Sequences 1 to 6 in batches of 3, 1 and 2; a transaction takes at most 5."""
    channel = open_channel(capacity=10, transaction_capacity=5)
    for bodies in ((b"a", b"b", b"c"), (b"dddd",), (b"e", b"f")):
        await append(channel, *bodies)
    return channel


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize(
    ("events_max", "body_bytes_max", "bodies"),
    [(0, 0, b"a b c dddd e"), (2, 0, b"a b"), (99, 0, b"a b c dddd e"), (0, 6, b"a b c"), (4, 7, b"a b c dddd")],
)
async def test_take_within_its_wishes_returns_the_oldest(
    channel: Channel, events_max: int, body_bytes_max: int, bodies: bytes, form: Form
) -> None:
    """Zero requests the maximum, which the transaction's capacity bounds."""
    limits = TakeLimits(events_max=events_max, body_bytes_max=body_bytes_max, form=form)
    batches, take_count = await channel.transactions.take(begin(channel), limits, None, None)
    assert bodies_of(batches) == bodies.split()
    assert take_count == len(bodies.split())
    check_accounts(channel)


async def test_take_when_the_transaction_is_full_is_refused(channel: Channel) -> None:
    """The remaining capacity bounds a take; if nothing remains, the transaction stays usable."""
    txn_id = begin(channel)
    assert await take(channel, txn_id, 3) == [b"a", b"b", b"c"]
    assert await take(channel, txn_id, 3) == [b"dddd", b"e"]
    with pytest.raises(TxnCapacityError, match="the transaction has taken 5 events"):
        await take(channel, txn_id, 1)
    await channel.transactions.commit([txn_id], None)
    assert queued(channel) == [b"f"]


async def test_take_of_what_another_has_taken_returns_none(channel: Channel) -> None:
    """Taken events are invisible to others until a commit removes them or a rollback returns them."""
    first = await begin_with_takes(channel, 4)
    second = begin(channel)
    assert await take(channel, second) == [b"e", b"f"]
    assert await take(channel, second) == []
    channel.transactions.rollback(first)
    assert await take(channel, second, 2) == [b"a", b"b"]
    check_accounts(channel)


async def test_take_with_an_offset_sends_again_what_was_lost(channel: Channel) -> None:
    """No new event is taken until the caller has all of it, and the counts show the progress."""
    txn_id = begin(channel)
    await take(channel, txn_id, 2)
    await take(channel, txn_id, 2)
    for offset, events_max, expected, take_count in (
        (0, 0, [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"dddd")], 4),
        (0, 3, [(1, b"a"), (2, b"b"), (3, b"c")], 3),
        (2, 0, [(3, b"c"), (4, b"dddd")], 4),
        (3, 5, [(4, b"dddd")], 4),
    ):
        batches, count = await channel.transactions.take(txn_id, TakeLimits(events_max=events_max), 0, offset)
        assert (numbered(batches), count) == (expected, take_count)
    batches, count = await channel.transactions.take(txn_id, TakeLimits(), 0, 4)
    assert (numbered(batches), count) == ([(5, b"e")], 5)
    batches, count = await channel.transactions.take(txn_id, TakeLimits(), 0, 4)
    assert (numbered(batches), count) == ([(5, b"e")], 5)
    check_accounts(channel)


async def test_take_with_an_offset_and_fewer_bytes_leaves_no_gap(channel: Channel) -> None:
    """A repetition with a smaller limit ends before an event that does not fit, even if a later one would."""
    txn_id = begin(channel)
    await take(channel, txn_id, 5)
    received = list[bytes]()
    sizes = list[int]()
    while len(received) < 5:
        batches, take_count = await channel.transactions.take(txn_id, TakeLimits(body_bytes_max=3), 0, len(received))
        received += bodies_of(batches)
        sizes.append(len(bodies_of(batches)))
        assert take_count == len(received)
    assert received == [b"a", b"b", b"c", b"dddd", b"e"]
    assert sizes == [3, 1, 1]


async def test_take_with_an_offset_in_small_responses_sends_all_again() -> None:
    """A caller that lost every response gets all events, whatever the limits of the responses were."""
    channel = open_channel(response_bytes_max=300)
    bodies = [b"%02d" % number * 15 for number in range(20)]
    await append(channel, *bodies[:9])
    await append(channel, *bodies[9:])
    txn_id = begin(channel)
    for form in (Form.COLUMNS, Form.ROWS, Form.COLUMNS):
        received = list[bytes]()
        while len(received) < 20:
            batches, take_count = await channel.transactions.take(txn_id, TakeLimits(form=form), 0, len(received))
            received += bodies_of(batches)
            assert take_count == len(received)
        assert received == bodies


async def test_take_with_a_gap_is_refused(channel: Channel) -> None:
    """Nothing is taken."""
    txn_id = await begin_with_takes(channel, 2)
    with pytest.raises(OffsetGapError, match="take_offset: is 3; the transaction has 2"):
        await channel.transactions.take(txn_id, TakeLimits(), 0, 3)
    assert len(queued(channel)) == 4


async def test_take_with_an_offset_of_a_full_transaction_sends_again(channel: Channel) -> None:
    """Repeating the take that filled it is not a new take."""
    txn_id = await begin_with_takes(channel, 5)
    batches, take_count = await channel.transactions.take(txn_id, TakeLimits(), 0, 3)
    assert (bodies_of(batches), take_count) == ([b"dddd", b"e"], 5)
    with pytest.raises(TxnCapacityError):
        await channel.transactions.take(txn_id, TakeLimits(), 0, 5)


# Waiting.


async def test_take_of_an_empty_channel_responds_in_time() -> None:
    """The time is the call's own wait, or the channel's keep-alive; zero does not wait."""
    channel = open_channel(keep_alive_seconds=3)
    txn_id = begin(channel)
    for wait_seconds, then in ((0.0, 0.0), (1.5, 1.5), (None, 4.5)):
        assert await channel.transactions.take(txn_id, TakeLimits(), wait_seconds, None) == ([], 0)
        assert now() == then
    assert len(channel._contents.takers) == 0


async def test_take_that_waits_responds_as_soon_as_there_is_any_event() -> None:
    """It waits neither for more events nor for its timeout."""
    channel = open_channel()
    call = await started(channel.transactions.take(begin(channel), TakeLimits(events_max=5), 60, None))
    await asyncio.sleep(1)
    await append(channel, b"a")
    batches, _ = await call.result()
    assert (bodies_of(batches), now()) == ([b"a"], 1)


async def test_takes_that_wait_are_woken_one_for_one_put() -> None:
    """Of a thousand waiting takes on an empty channel, one put wakes only the first."""
    channel = open_channel(capacity=1000, open_transactions_max=1000)
    calls = [await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None)) for _ in range(1000)]
    assert len(channel._contents.takers) == 1000
    attempts = channel._contents.counters.take_attempts
    for number in range(3):
        await append(channel, b"x")
        await settle()
        assert [call.is_done for call in calls[: number + 2]] == [True] * (number + 1) + [False]
        assert sum(call.is_done for call in calls) == number + 1
        assert channel._contents.counters.take_attempts == attempts + number + 1
    assert len(channel._contents.takers) == 997
    await asyncio.sleep(60)
    await settle()
    assert all(call.is_done for call in calls)
    assert len(channel._contents.takers) == 0
    check_accounts(channel)


async def test_takes_that_wait_share_what_one_put_brings() -> None:
    """A take that removes only a part wakes the next one."""
    channel = open_channel()
    calls = [
        await started(channel.transactions.take(begin(channel), TakeLimits(events_max=2), 60, None)) for _ in range(4)
    ]
    await append(channel, b"a", b"b", b"c", b"d", b"e")
    await settle()
    assert [bodies_of((await call.result())[0]) for call in calls[:3]] == [[b"a", b"b"], [b"c", b"d"], [b"e"]]
    assert not calls[3].is_done


async def test_take_that_is_cancelled_after_its_wake_up_passes_it_on() -> None:
    """The event goes to the next take, and nothing is taken for the cancelled one."""
    channel = open_channel()
    first = await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None))
    second = await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None))
    await append(channel, b"a")
    first.cancel()
    await settle()
    assert first.is_cancelled
    assert second.is_done
    assert bodies_of((await second.result())[0]) == [b"a"]
    check_accounts(channel)


async def test_take_that_is_cancelled_while_it_waits_changes_nothing() -> None:
    """Its transaction stays open, its lease runs again, and its place is free."""
    channel = open_channel(lease_seconds=5)
    txn_id = begin(channel)
    call = await started(channel.transactions.take(txn_id, TakeLimits(), 60, None))
    call.cancel()
    await settle()
    assert len(channel._contents.takers) == 0
    await append(channel, b"a")
    assert await take(channel, txn_id) == [b"a"]
    await asyncio.sleep(5)
    assert queued(channel) == [b"a"]


async def test_take_whose_event_was_stolen_keeps_its_place() -> None:
    """A take that came later never overtakes an earlier one."""
    channel = open_channel()
    first = await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None))
    second = await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None))
    thief = begin(channel)
    await append(channel, b"a")
    assert await take(channel, thief) == [b"a"]
    await settle()
    assert not first.is_done
    await append(channel, b"b")
    await settle()
    assert first.is_done
    assert not second.is_done


async def test_take_that_waits_sees_what_a_rollback_returns() -> None:
    """This includes events that an expired lease returns."""
    channel = open_channel()
    await append(channel, b"a")
    holder = await begin_with_takes(channel, 1)
    call = await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None))
    channel.transactions.rollback(holder)
    assert bodies_of((await call.result())[0]) == [b"a"]
    other = await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None))
    assert bodies_of((await other.result())[0]) == [b"a"]
    assert now() == 30


async def test_take_that_is_repeated_while_the_first_waits_gets_the_same() -> None:
    """The repetition of a waiting call returns at once with the same events, which are taken once."""
    channel = open_channel()
    txn_id = begin(channel)
    calls = [await started(channel.transactions.take(txn_id, TakeLimits(), 60, 0)) for _ in range(3)]
    bystander = await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None))
    await asyncio.sleep(1)
    await append(channel, b"a", b"b")
    await settle()
    for call in calls:
        batches, take_count = await call.result()
        assert (numbered(batches), take_count) == ([(1, b"a"), (2, b"b")], 2)
    assert now() == 1
    assert not bystander.is_done
    check_accounts(channel)


async def test_takes_of_one_transaction_without_offsets_never_share_an_event() -> None:
    """Two concurrent calls are two takes."""
    channel = open_channel()
    txn_id = begin(channel)
    calls = [await started(channel.transactions.take(txn_id, TakeLimits(events_max=1), 60, None)) for _ in range(2)]
    await append(channel, b"a", b"b")
    assert [bodies_of((await call.result())[0]) for call in calls] == [[b"a"], [b"b"]]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_take_that_waits_when_its_transaction_ends_fails_at_once(end: str) -> None:
    """It does not wait for events that it could not take."""
    channel = open_channel()
    txn_id = begin(channel)
    call = await started(channel.transactions.take(txn_id, TakeLimits(), 60, None))
    other = await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None))
    if end == "commit":
        await channel.transactions.commit([txn_id], None)
    else:
        channel.transactions.rollback(txn_id)
    with pytest.raises(TxnStateError):
        await call.result()
    assert now() == 0
    await append(channel, b"a")
    assert bodies_of((await other.result())[0]) == [b"a"]


async def test_take_that_waits_when_a_claim_comes_fails_at_once() -> None:
    """The events belong to the reader then; the transaction stays open."""
    channel = open_channel()
    txn_id = begin(channel)
    calls = [await started(channel.transactions.take(txn_id, TakeLimits(), 60, None)) for _ in range(2)]
    await channel.claim("r", None, takeover=False)
    for call in calls:
        with pytest.raises(ChannelClaimedError):
            await call.result()
    assert now() == 0
    with pytest.raises(ChannelClaimedError):
        await take(channel, txn_id)
    await channel.claims.release("r", None)
    assert await take(channel, txn_id) == []


async def test_take_that_waits_when_the_channel_drains_responds_at_once() -> None:
    """The error sends the consumer elsewhere, which an empty response would not; a take that does not wait gets one."""
    channel = open_channel()
    txn_id = begin(channel)
    call = await started(channel.transactions.take(txn_id, TakeLimits(), 60, None))
    channel.drain()
    with pytest.raises(DrainingError):
        await call.result()
    with pytest.raises(DrainingError):
        await channel.transactions.take(txn_id, TakeLimits(), 60, None)
    assert await channel.transactions.take(txn_id, TakeLimits(), 0, None) == ([], 0)
    assert now() == 0


async def test_take_that_waits_when_the_channel_is_deleted_fails_at_once() -> None:
    """This holds for all waiting takes."""
    channel = open_channel()
    await append(channel, b"a")
    await begin_with_takes(channel, 1)
    calls = [await started(channel.transactions.take(begin(channel), TakeLimits(), 60, None)) for _ in range(2)]
    channel.delete()
    for call in calls:
        with pytest.raises(ChannelNotFoundError):
            await call.result()
    assert now() == 0
    assert len(channel._contents.takers) == 0


async def test_parts_of_a_batch_each_fit_a_response() -> None:
    """Events of one request may need several responses; a small batch needs one."""
    channel = open_channel(response_bytes_max=400)
    await append(channel, *[b"x" * 50] * 20)
    (batch,) = channel._contents.queue
    for form in Form:
        parts = list(channel.parts(batch, form))
        assert len(parts) > 1
        assert numbered(parts) == numbered([batch])
    assert list(channel.parts(batch.part(3, 4), Form.ROWS)) == [batch.part(3, 4)]
    assert list(channel.parts(batch.part(3, 3), Form.ROWS)) == []
