"""The engine for asyncio, on scripted streams and the virtual clock."""

import asyncio

import pytest

from millrace_client.consuming.subscription import SubscriptionState
from millrace_client.errors import ChannelClaimedError, ChannelNotFoundError, UnavailableError
from tests.unit.client.consuming.fakes import EngineHarness, ids, response_of
from tests.virtual_clock import now, settle, started


async def begin(harness: EngineHarness) -> None:
    """Makes the engine open its streams."""
    assert await harness.engine.take(0) is None
    await settle()


async def test_take_waits_for_a_delivery() -> None:
    """Each delivery goes to exactly one caller, as soon as it arrives."""
    harness = EngineHarness()
    waiting = [await started(harness.engine.take()) for _ in range(2)]
    harness.streams[0].deliver(response_of(1), response_of(2))
    taken = [await call.result() for call in waiting]
    assert sorted(each.delivery_id for each in taken if each) == [1, 2]
    assert now() == 0
    await harness.engine.close(1.0)


async def test_take_with_a_timeout_ends_in_time() -> None:
    """The call returns None exactly at its timeout."""
    harness = EngineHarness()
    assert await harness.engine.take(7.0) is None
    assert now() == 7.0
    await harness.engine.close(1.0)


async def test_loop_that_ends_while_a_channel_cannot_be_read_raises_the_reason() -> None:
    """A server that does not respond or a claim is not taken for an empty channel; a reconnected stream is."""
    harness = EngineHarness(idle_seconds=7.0, reconnect_seconds=10.0)
    harness.is_answered = False
    with pytest.raises(UnavailableError, match="one has not responded yet"):
        await harness.engine.take_for_loop()
    harness.streams[0].answered.set()
    assert await harness.engine.take_for_loop() is None
    harness.streams[0].break_off(ChannelClaimedError("claimed by a reader"))
    with pytest.raises(ChannelClaimedError, match="claimed by a reader"):
        await harness.engine.take_for_loop()
    harness.is_answered = True
    assert await harness.engine.take_for_loop() is None
    await harness.engine.close(1.0)
    assert await harness.engine.take_for_loop() is None


async def test_take_that_is_cancelled_loses_nothing() -> None:
    """A later delivery goes to the next caller."""
    harness = EngineHarness()
    call = await started(harness.engine.take())
    harness.streams[0].deliver(response_of(1))
    call.cancel()
    await settle()
    assert call.is_cancelled
    assert ids(await harness.engine.take(0)) == [1]
    await harness.engine.close(1.0)


async def test_streams_take_turns() -> None:
    """Every channel on every server has a stream, and none waits for another's backlog."""
    harness = EngineHarness("one two", "a b")
    await begin(harness)
    assert [stream.subscription.name for stream in harness.streams] == ["one/a", "two/a", "one/b", "two/b"]
    for stream in harness.streams:
        stream.deliver(*map(response_of, (1, 2)))
    await settle()
    taken = [await harness.take() for _ in range(8)]
    assert [(each.endpoint, each.channel) for each in taken[:4]] == [
        ("one", "a"),
        ("two", "a"),
        ("one", "b"),
        ("two", "b"),
    ]
    assert [each.delivery_id for each in taken] == [1, 1, 1, 1, 2, 2, 2, 2]
    await harness.engine.close(0.0)


async def test_broken_stream_is_opened_again_with_growing_pauses() -> None:
    """Pauses double on each failure, and start from the first one again after a delivery."""
    harness = EngineHarness(reconnect_seconds=1.0, reconnect_seconds_max=4.0)
    harness.refusals = [UnavailableError("away") for _ in range(5)]
    call = await started(harness.engine.take())
    await asyncio.sleep(100)
    assert harness.streams[0].opened_at == 1 + 2 + 4 + 4 + 4
    assert [call[-1] for call in harness.hooks.of("disconnected")] == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert harness.engine.metrics().reconnects == 5
    harness.streams[0].deliver(response_of(1))
    assert ids(await call.result()) == [1]
    broken_at = now()
    harness.streams[0].break_off(UnavailableError("away"))
    await asyncio.sleep(100)
    assert harness.streams[1].opened_at == broken_at + 1.0
    await harness.engine.close(1.0)


async def test_pause_that_the_server_asks_for_is_kept() -> None:
    """The engine waits for another's claim as long as the server says, without retries in between."""
    harness = EngineHarness(reconnect_seconds=1.0, reconnect_seconds_max=4.0)
    harness.refusals = [ChannelClaimedError("another's", retry_delay_seconds=30.0)]
    await started(harness.engine.take())
    await asyncio.sleep(31)
    assert [stream.opened_at for stream in harness.streams] == [30.0]
    await harness.engine.close(1.0)


async def test_stream_that_lived_long_starts_pauses_from_the_first() -> None:
    """A channel may be silent; when its stream breaks later, that does not count as a repeated failure."""
    harness = EngineHarness(reconnect_seconds=1.0, reconnect_seconds_max=4.0)
    await begin(harness)
    for number in range(4):
        await asyncio.sleep(5.0)
        harness.streams[number].break_off(None)
        await asyncio.sleep(1.0)
        await settle()
    assert [stream.opened_at for stream in harness.streams] == [0, 6, 12, 18, 24]
    await harness.engine.close(1.0)


async def test_deliveries_of_a_broken_stream_are_lost() -> None:
    """Queued deliveries are never handed out; acks of leased ones return False; both come again."""
    harness = EngineHarness(reconnect_seconds=1.0)
    await begin(harness)
    harness.streams[0].deliver(response_of(1), response_of(2))
    first = await harness.take()
    harness.streams[0].break_off(UnavailableError("cut"))
    await settle()
    assert (first.is_lost, first.is_settled) == (True, True)
    assert (await first.ack(), await first.nack()) == (False, False)
    assert harness.streams[0].settled == []
    await asyncio.sleep(1.0)
    await settle()
    harness.streams[1].deliver(response_of(1), response_of(2))
    assert [await (await harness.take()).ack() for _ in range(2)] == [True, True]
    assert harness.streams[1].settled == [(1, True), (2, True)]
    metrics = harness.engine.metrics()
    assert (metrics.lost_deliveries, metrics.acked_deliveries) == (1, 2)
    assert harness.hooks.of("lost") == [(1,)]
    await harness.engine.close(1.0)


async def test_ack_that_cannot_be_sent_is_lost() -> None:
    """If the stream has ended, even unnoticed, the ack is not counted and the caller is informed."""
    harness = EngineHarness()
    await begin(harness)
    harness.streams[0].deliver(response_of(1))
    delivery = await harness.take()
    harness.streams[0]._is_over = True
    assert not await delivery.ack()
    assert delivery.is_lost
    assert harness.engine.metrics().acked_deliveries == 0
    await harness.engine.close(1.0)


async def test_ack_and_nack_once_done_stay_so() -> None:
    """Repeating a settlement returns the same; the opposite one returns False."""
    harness = EngineHarness()
    await begin(harness)
    harness.streams[0].deliver(response_of(1), response_of(2))
    one, two = [await harness.take() for _ in range(2)]
    assert [await one.ack(), await one.ack(), await one.nack()] == [True, True, False]
    assert [await two.nack(), await two.nack(), await two.ack(), await two.nack(5.0)] == [True, True, False, False]
    assert harness.streams[0].settled == [(1, True), (2, False)]
    await harness.engine.close(1.0)


async def test_nack_that_is_held_back_ends_with_its_stream() -> None:
    """When the stream breaks or the consumer closes, its events return at once; nothing is sent later."""
    harness = EngineHarness("one two", reconnect_seconds=1.0)
    await begin(harness)
    for stream in harness.streams:
        stream.deliver(response_of(1))
        await (await harness.take()).nack(delay_seconds=5.0)
    harness.streams[0].break_off(None)
    await settle()
    await asyncio.wait_for(harness.engine.close(1.0), 2.0)
    assert now() < 1.0
    await asyncio.sleep(10)
    assert [stream.settled for stream in harness.streams] == [[], []]


async def test_reading_stops_where_there_is_no_space() -> None:
    """The bytes of unsettled deliveries are bounded, whatever the server would send."""
    size = response_of(1, b"x" * 1000).ByteSize()
    harness = EngineHarness(prefetch_bytes_max=3 * size)
    await begin(harness)
    harness.streams[0].deliver(*(response_of(number, b"x" * 1000) for number in range(1, 11)))
    await settle()
    assert harness.streams[0].read_count == 3
    assert harness.engine.metrics().unsettled_bytes == 3 * size
    deliveries = [await harness.take() for _ in range(3)]
    await settle()
    assert harness.streams[0].read_count == 3
    await deliveries[0].ack()
    await settle()
    assert harness.streams[0].read_count == 4
    await harness.engine.close(0.0)


async def test_refusal_that_lasts_is_raised_once() -> None:
    """The other streams continue, and callers that continue receive their deliveries."""
    harness = EngineHarness("one two")
    harness.refusals = [ChannelNotFoundError("none called so", channel="orders")]
    with pytest.raises(ChannelNotFoundError, match="none called so"):
        await harness.engine.take()
    await settle()
    assert [subscription.state for subscription in harness.engine.subscriptions] == [
        SubscriptionState.FAILED,
        SubscriptionState.READING,
    ]
    harness.streams[0].deliver(response_of(1))
    assert (await harness.take()).endpoint == "two"
    assert [call[:2] for call in harness.hooks.of("failed")] == [("one", "orders")]
    await harness.engine.close(0.0)


async def test_missing_channel_is_waited_for_by_choice() -> None:
    """The channel may be created later."""
    harness = EngineHarness(waits_for_channels=True, reconnect_seconds=1.0)
    harness.refusals = [ChannelNotFoundError("none")] * 3
    await started(harness.engine.take())
    await asyncio.sleep(60)
    assert [stream.opened_at for stream in harness.streams] == [1 + 2 + 4]
    await harness.engine.close(1.0)


async def test_bug_in_reading_is_raised_not_swallowed() -> None:
    """A loop never waits for a task that has ended."""
    harness = EngineHarness()
    harness.refusals = [ZeroDivisionError("bug")]
    with pytest.raises(ZeroDivisionError):
        await harness.engine.take()
    await harness.engine.close(1.0)


async def test_close_waits_for_what_is_in_hand() -> None:
    """The delivery may still be acknowledged; then streams end in order, and nothing is left."""
    harness = EngineHarness()
    await begin(harness)
    harness.streams[0].deliver(response_of(1), response_of(2))
    delivery = await harness.take()
    closing = await started(harness.engine.close(30.0))
    assert not closing.is_done
    assert not harness.streams[0].is_finished
    assert await harness.engine.take() is None
    await asyncio.sleep(3)
    assert await delivery.ack()
    report = await closing.result()
    assert report.is_clean
    assert now() == 3
    assert harness.streams[0].settled == [(1, True)]
    assert harness.streams[0].is_finished
    assert [subscription.state for subscription in harness.engine.subscriptions] == [SubscriptionState.ENDED]


async def test_close_after_its_time_says_what_was_left() -> None:
    """The close returns in time: a part of its time is reserved for the end of the streams."""
    harness = EngineHarness()
    await begin(harness)
    harness.streams[0].deliver(response_of(1, b"a", b"b"))
    delivery = await harness.take()
    report = await harness.engine.close(10.0)
    assert now() == 8.0
    # The stream has ended, so the delivery is lost.
    assert delivery.is_lost
    assert (report.unsettled_deliveries, report.unsettled_events, report.is_clean) == (1, 2, False)


async def test_close_of_a_stream_that_does_not_end_is_bounded() -> None:
    """A silent server does not delay the close beyond its timeout; the report says that acks may be lost."""
    harness = EngineHarness()
    await begin(harness)
    harness.streams[0].ends_late = True
    report = await harness.engine.close(10.0)
    assert now() <= 10.0
    assert not report.is_clean
    assert len(report.errors) == 1


async def test_close_while_a_server_has_not_responded_is_clean() -> None:
    """Nothing was acknowledged on its stream, so nothing may be delivered again."""
    harness = EngineHarness()
    harness.is_answered = False
    await begin(harness)
    assert (await harness.engine.close(1.0)).is_clean


async def test_close_may_be_called_often_and_at_once() -> None:
    """All callers return at the end with the same report; a cancelled caller does not stop the close."""
    harness = EngineHarness()
    await begin(harness)
    harness.streams[0].deliver(response_of(1))
    delivery = await harness.take()
    calls = [await started(harness.engine.close(10.0)) for _ in range(3)]
    calls[0].cancel()
    await asyncio.sleep(1)
    await delivery.ack()
    assert await calls[1].result() == await calls[2].result() == await harness.engine.close(0.0)


async def test_close_does_not_wait_for_its_callers_own_delivery() -> None:
    """The body of a loop cannot settle its delivery during its own close, so the close does not wait for it."""
    harness = EngineHarness()
    await begin(harness)
    harness.streams[0].deliver(response_of(1))
    delivery = await harness.take()
    delivery.taken_by = asyncio.current_task()
    report = await harness.engine.close(10.0)
    assert now() == 0
    assert report.unsettled_deliveries == 1


async def test_what_comes_while_stopping_is_left_alone() -> None:
    """Deliveries that arrive late are returned by the end of the stream, and never handed out."""
    harness = EngineHarness()
    await begin(harness)
    harness.streams[0].deliver(response_of(1))
    delivery = await harness.take()
    harness.engine.stop()
    harness.streams[0].deliver(response_of(2))
    await settle()
    assert await harness.engine.take() is None
    await delivery.ack()
    assert (await harness.engine.close(1.0)).is_clean
    assert harness.streams[0].settled == [(1, True)]


async def test_tasks_of_an_open_consumer_can_be_cancelled() -> None:
    """At their end, event loops cancel all tasks; the tasks of a consumer that is still open do not start again."""
    harness = EngineHarness()
    await begin(harness)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(others) == 1
    for task in others:
        task.cancel()
    await settle()
    assert all(task.cancelled() for task in others)
    assert len(harness.streams) == 1


async def test_stop_before_the_first_delivery_opens_nothing() -> None:
    """A consumer that was stopped before its start makes no call."""
    harness = EngineHarness()
    harness.engine.stop()
    assert await harness.engine.take() is None
    assert harness.streams == []
    assert (await harness.engine.close(1.0)).is_clean


async def test_delivery_as_a_block_is_settled_by_it() -> None:
    """The delivery is acknowledged at the end of the block, held back after an error, returned at once if cancelled."""
    harness = EngineHarness(retry_seconds=2.0)
    await begin(harness)
    stream = harness.streams[0]
    stream.deliver(*map(response_of, (1, 2, 3)))
    async with await harness.take():
        pass
    assert stream.settled == [(1, True)]
    with pytest.raises(ValueError, match="mine"):
        async with await harness.take():
            raise ValueError("mine")
    with pytest.raises(asyncio.CancelledError):
        async with await harness.take():
            raise asyncio.CancelledError
    assert stream.settled == [(1, True), (3, False)]
    await asyncio.sleep(2.1)
    assert stream.settled == [(1, True), (3, False), (2, False)]
    await harness.engine.close(1.0)
