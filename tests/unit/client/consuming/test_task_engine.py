"""The engine for asyncio, on scripted streams and the virtual clock."""

import asyncio

import pytest

from millrace_client.aio.consumer_tasks import ConsumerDelivery, HandlerTasks
from millrace_client.consuming.subscription import SubscriptionState
from millrace_client.errors import ChannelClaimedError, ChannelNotFoundError, CorruptError, UnavailableError
from tests.unit.client.consuming.parts import World, answer_of, ids
from tests.virtual_clock import now, settle, started


async def begin(world: World) -> None:
    """Has the engine open its streams."""
    assert await world.engine.take(0) is None
    await settle()


async def test_take_waits_for_what_comes() -> None:
    """Whoever waits gets a delivery as soon as it is there, in the order of waiting or not: each goes to one."""
    world = World()
    waiting = [await started(world.engine.take()) for _ in range(2)]
    world.streams[0].deliver(answer_of(1), answer_of(2))
    taken = [await call.answer() for call in waiting]
    assert sorted(each.delivery_id for each in taken if each) == [1, 2]
    assert now() == 0
    await world.engine.close(1.0)


async def test_take_with_a_timeout_ends_in_time() -> None:
    """None after so long, to the second."""
    world = World()
    assert await world.engine.take(7.0) is None
    assert now() == 7.0
    await world.engine.close(1.0)


async def test_take_that_is_cancelled_loses_nothing() -> None:
    """What comes afterwards goes to the next who asks."""
    world = World()
    call = await started(world.engine.take())
    world.streams[0].deliver(answer_of(1))
    call.cancel()
    await settle()
    assert call.is_cancelled
    assert ids(await world.engine.take(0)) == [1]
    await world.engine.close(1.0)


async def test_streams_take_turns() -> None:
    """Every channel at every server has a stream, and none waits for another's backlog."""
    world = World("one two", "a b")
    await begin(world)
    assert [stream.subscription.name for stream in world.streams] == ["one/a", "two/a", "one/b", "two/b"]
    for stream in world.streams:
        stream.deliver(*map(answer_of, (1, 2)))
    await settle()
    taken = [await world.take() for _ in range(8)]
    assert [(each.endpoint, each.channel) for each in taken[:4]] == [
        ("one", "a"),
        ("two", "a"),
        ("one", "b"),
        ("two", "b"),
    ]
    assert [each.delivery_id for each in taken] == [1, 1, 1, 1, 2, 2, 2, 2]
    await world.engine.close(0.0)


async def test_broken_stream_is_begun_anew_with_growing_pauses() -> None:
    """Pauses double while it fails, and begin anew once something was delivered."""
    world = World(reconnect_seconds=1.0, reconnect_seconds_max=4.0)
    world.refusals = [UnavailableError("away") for _ in range(5)]
    call = await started(world.engine.take())
    await asyncio.sleep(100)
    assert world.streams[0].opened_at == 1 + 2 + 4 + 4 + 4
    assert [told[-1] for told in world.told.of("disconnected")] == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert world.engine.metrics().reconnects == 5
    world.streams[0].deliver(answer_of(1))
    assert ids(await call.answer()) == [1]
    broken_at = now()
    world.streams[0].break_off(UnavailableError("away"))
    await asyncio.sleep(100)
    assert world.streams[1].opened_at == broken_at + 1.0
    await world.engine.close(1.0)


async def test_pause_that_the_server_asks_for_is_kept() -> None:
    """A claim of another is waited out for as long as the server says, not by knocking."""
    world = World(reconnect_seconds=1.0, reconnect_seconds_max=4.0)
    world.refusals = [ChannelClaimedError("another's", retry_delay_seconds=30.0)]
    await started(world.engine.take())
    await asyncio.sleep(31)
    assert [stream.opened_at for stream in world.streams] == [30.0]
    await world.engine.close(1.0)


async def test_stream_that_lived_long_begins_pauses_anew() -> None:
    """A channel may be silent for long; when its stream breaks that is no failure in a row."""
    world = World(reconnect_seconds=1.0, reconnect_seconds_max=4.0)
    await begin(world)
    for number in range(4):
        await asyncio.sleep(5.0)
        world.streams[number].break_off(None)
        await asyncio.sleep(1.0)
        await settle()
    assert [stream.opened_at for stream in world.streams] == [0, 6, 12, 18, 24]
    await world.engine.close(1.0)


async def test_deliveries_of_a_broken_stream_are_lost() -> None:
    """What was queued is never handed out; what was in hand cannot be acknowledged, and says so; both come again."""
    world = World(reconnect_seconds=1.0)
    await begin(world)
    world.streams[0].deliver(answer_of(1), answer_of(2))
    first = await world.take()
    world.streams[0].break_off(UnavailableError("cut"))
    await settle()
    assert (first.is_lost, first.is_settled) == (True, True)
    assert (await first.ack(), await first.nack()) == (False, False)
    assert world.streams[0].settled == []
    await asyncio.sleep(1.0)
    await settle()
    world.streams[1].deliver(answer_of(1), answer_of(2))
    assert [await (await world.take()).ack() for _ in range(2)] == [True, True]
    assert world.streams[1].settled == [(1, True), (2, True)]
    metrics = world.engine.metrics()
    assert (metrics.lost_deliveries, metrics.acked_deliveries) == (1, 2)
    assert world.told.of("lost") == [(1,)]
    await world.engine.close(1.0)


async def test_ack_that_cannot_be_sent_is_lost() -> None:
    """The stream is over, though nobody has read that yet: the ack is not counted, and the caller hears of it."""
    world = World()
    await begin(world)
    world.streams[0].deliver(answer_of(1))
    delivery = await world.take()
    world.streams[0]._is_over = True
    assert not await delivery.ack()
    assert delivery.is_lost
    assert world.engine.metrics().acked_deliveries == 0
    await world.engine.close(1.0)


async def test_ack_and_nack_once_done_stay_so() -> None:
    """A repeat says the same; the other of the two says that it is too late."""
    world = World()
    await begin(world)
    world.streams[0].deliver(answer_of(1), answer_of(2))
    one, two = [await world.take() for _ in range(2)]
    assert [await one.ack(), await one.ack(), await one.nack()] == [True, True, False]
    assert [await two.nack(), await two.nack(), await two.ack(), await two.nack(5.0)] == [True, True, False, False]
    assert world.streams[0].settled == [(1, True), (2, False)]
    await world.engine.close(1.0)


async def test_nack_with_a_delay_is_held_back() -> None:
    """The wire knows no delay: the server hears of it when the delay is over, and not before."""
    world = World()
    await begin(world)
    world.streams[0].deliver(answer_of(1))
    delivery = await world.take()
    assert await delivery.nack(delay_seconds=5.0)
    assert not await delivery.ack()
    await asyncio.sleep(4.9)
    assert world.streams[0].settled == []
    await asyncio.sleep(0.2)
    assert world.streams[0].settled == [(1, False)]
    await world.engine.close(1.0)


async def test_nack_that_is_held_back_ends_with_its_stream() -> None:
    """When the stream breaks or the consumer closes, its events return at once; nothing is sent later."""
    world = World("one two", reconnect_seconds=1.0)
    await begin(world)
    for stream in world.streams:
        stream.deliver(answer_of(1))
        await (await world.take()).nack(delay_seconds=5.0)
    world.streams[0].break_off(None)
    await settle()
    await asyncio.wait_for(world.engine.close(1.0), 2.0)
    assert now() < 1.0
    await asyncio.sleep(10)
    assert [stream.settled for stream in world.streams] == [[], []]


async def test_reading_stops_where_there_is_no_room() -> None:
    """Deliveries that are not settled are bounded in bytes, whatever the server would send."""
    size = answer_of(1, b"x" * 1000).ByteSize()
    world = World(prefetch_bytes_max=3 * size)
    await begin(world)
    world.streams[0].deliver(*(answer_of(number, b"x" * 1000) for number in range(1, 11)))
    await settle()
    assert world.streams[0].read_count == 3
    assert world.engine.metrics().unsettled_bytes == 3 * size
    deliveries = [await world.take() for _ in range(3)]
    await settle()
    assert world.streams[0].read_count == 3
    await deliveries[0].ack()
    await settle()
    assert world.streams[0].read_count == 4
    await world.engine.close(0.0)


async def test_refusal_that_lasts_is_raised_once() -> None:
    """The others go on, and whoever loops on gets their deliveries."""
    world = World("one two")
    world.refusals = [ChannelNotFoundError("none called so", channel="orders")]
    with pytest.raises(ChannelNotFoundError, match="none called so"):
        await world.engine.take()
    await settle()
    assert [subscription.state for subscription in world.engine.subscriptions] == [
        SubscriptionState.FAILED,
        SubscriptionState.READING,
    ]
    world.streams[0].deliver(answer_of(1))
    assert (await world.take()).endpoint == "two"
    assert [told[:2] for told in world.told.of("failed")] == [("one", "orders")]
    await world.engine.close(0.0)


async def test_refusal_of_the_last_lane_is_raised_again() -> None:
    """Where nothing can come any more nobody is left to wait for ever."""
    world = World()
    world.refusals = [CorruptError("damaged")]
    for _ in range(3):
        with pytest.raises(CorruptError):
            await world.engine.take()
    await world.engine.close(1.0)


async def test_missing_channel_is_waited_for_by_choice() -> None:
    """It may be made later."""
    world = World(waits_for_channels=True, reconnect_seconds=1.0)
    world.refusals = [ChannelNotFoundError("none")] * 3
    await started(world.engine.take())
    await asyncio.sleep(60)
    assert [stream.opened_at for stream in world.streams] == [1 + 2 + 4]
    await world.engine.close(1.0)


async def test_bug_in_reading_is_raised_not_swallowed() -> None:
    """Whatever goes wrong, a loop never waits for a task that is gone."""
    world = World()
    world.refusals = [ZeroDivisionError("bug")]
    with pytest.raises(ZeroDivisionError):
        await world.engine.take()
    await world.engine.close(1.0)


async def test_close_waits_for_what_is_in_hand() -> None:
    """It may be acknowledged meanwhile; then streams end in order, and nothing is left."""
    world = World()
    await begin(world)
    world.streams[0].deliver(answer_of(1), answer_of(2))
    delivery = await world.take()
    closing = await started(world.engine.close(30.0))
    assert not closing.is_done
    assert not world.streams[0].is_finished
    assert await world.engine.take() is None
    await asyncio.sleep(3)
    assert await delivery.ack()
    report = await closing.answer()
    assert report.is_clean
    assert now() == 3
    assert world.streams[0].settled == [(1, True)]
    assert world.streams[0].is_finished
    assert [subscription.state for subscription in world.engine.subscriptions] == [SubscriptionState.ENDED]


async def test_close_after_its_time_says_what_was_left() -> None:
    """It returns in time all the same: time for the streams' end is kept back."""
    world = World()
    await begin(world)
    world.streams[0].deliver(answer_of(1, b"a", b"b"))
    delivery = await world.take()
    report = await world.engine.close(10.0)
    assert now() == 8.0
    # Its stream has ended, so that it is lost by now.
    assert delivery.is_lost
    assert (report.unsettled_deliveries, report.unsettled_events, report.is_clean) == (1, 2, False)


async def test_close_of_a_stream_that_does_not_end_is_bounded() -> None:
    """A server that is silent keeps nobody; that acks may be lost is told."""
    world = World()
    await begin(world)
    world.streams[0].ends_late = True
    report = await world.engine.close(10.0)
    assert now() <= 10.0
    assert not report.is_clean
    assert len(report.errors) == 1


async def test_close_may_be_called_often_and_at_once() -> None:
    """All callers return when all has ended, with the same report; one that is cancelled stops nothing."""
    world = World()
    await begin(world)
    world.streams[0].deliver(answer_of(1))
    delivery = await world.take()
    calls = [await started(world.engine.close(10.0)) for _ in range(3)]
    calls[0].cancel()
    await asyncio.sleep(1)
    await delivery.ack()
    assert await calls[1].answer() == await calls[2].answer() == await world.engine.close(0.0)


async def test_close_does_not_wait_for_its_callers_own_delivery() -> None:
    """Who closes from a loop's body cannot settle meanwhile; waiting would be in vain."""
    world = World()
    await begin(world)
    world.streams[0].deliver(answer_of(1))
    delivery = await world.take()
    delivery.taken_by = asyncio.current_task()
    report = await world.engine.close(10.0)
    assert now() == 0
    assert report.unsettled_deliveries == 1


async def test_what_comes_while_stopping_is_left_alone() -> None:
    """It returns with the stream's end, and is never handed out."""
    world = World()
    await begin(world)
    world.streams[0].deliver(answer_of(1))
    delivery = await world.take()
    world.engine.stop()
    world.streams[0].deliver(answer_of(2))
    await settle()
    assert await world.engine.take() is None
    await delivery.ack()
    assert (await world.engine.close(1.0)).is_clean
    assert world.streams[0].settled == [(1, True)]


async def test_tasks_of_an_open_consumer_can_be_cancelled() -> None:
    """Event loops cancel all tasks in the end; those of a consumer that nobody closed do not begin anew."""
    world = World()
    await begin(world)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(others) == 1
    for task in others:
        task.cancel()
    await settle()
    assert all(task.cancelled() for task in others)
    assert len(world.streams) == 1


async def test_stop_before_the_first_delivery_opens_nothing() -> None:
    """A consumer that was stopped before it began makes no call."""
    world = World()
    world.engine.stop()
    assert await world.engine.take() is None
    assert world.streams == []
    assert (await world.engine.close(1.0)).is_clean


async def test_handler_that_raises_holds_its_delivery_back() -> None:
    """Each failure doubles the pause; other deliveries go on meanwhile; success forgets the failures."""
    world = World(retry_seconds=1.0, retry_seconds_max=60.0)
    seen: list[tuple[float, int, int]] = []

    async def handle(delivery: ConsumerDelivery) -> None:
        seen.append((now(), delivery.first_sequence, delivery.attempt))
        if delivery.first_sequence == 10 and delivery.attempt < 3:
            raise ValueError("not yet")

    running = await started(HandlerTasks(world.engine, handle, ordered=False).run(1))
    stream = world.streams[0]
    stream.deliver(answer_of(1), answer_of(2))
    await asyncio.sleep(1)
    await settle()
    assert stream.settled == [(2, True), (1, False)]
    stream.deliver(answer_of(3, first_sequence=10))
    await asyncio.sleep(2)
    await settle()
    assert stream.settled == [(2, True), (1, False), (3, False)]
    stream.deliver(answer_of(4, first_sequence=10))
    await settle()
    assert seen == [(0, 10, 1), (0, 20, 1), (1, 10, 2), (3, 10, 3)]
    assert stream.settled[-1] == (4, True)
    assert world.told.of("handler_failed") == [(1, "not yet", 1.0), (3, "not yet", 2.0)]
    assert world.engine.metrics().handler_failures == 2
    world.engine.stop()
    await running.answer()
    await world.engine.close(1.0)


async def test_handler_in_order_is_called_again_before_anything_later() -> None:
    """The delivery stays in hand through the pauses, so that order is kept."""
    world = World(retry_seconds=1.0)
    seen: list[tuple[float, int, int]] = []

    async def handle(delivery: ConsumerDelivery) -> None:
        seen.append((now(), delivery.delivery_id, delivery.attempt))
        if delivery.delivery_id == 1 and delivery.attempt < 3:
            raise ValueError("not yet")

    running = await started(HandlerTasks(world.engine, handle, ordered=True).run(1))
    world.streams[0].deliver(answer_of(1), answer_of(2))
    await asyncio.sleep(10)
    assert seen == [(0, 1, 1), (1, 1, 2), (3, 1, 3), (3, 2, 1)]
    assert world.streams[0].settled == [(1, True), (2, True)]
    world.engine.stop()
    await running.answer()
    await world.engine.close(1.0)


async def test_handler_in_order_leaves_what_was_lost() -> None:
    """Where the stream breaks during a pause the delivery comes again; it is not worked on twice from here."""
    world = World(retry_seconds=5.0, reconnect_seconds=1.0)
    seen: list[tuple[float, int]] = []

    async def handle(delivery: ConsumerDelivery) -> None:
        seen.append((now(), delivery.attempt))
        if len(seen) == 1:
            raise ValueError("not yet")

    running = await started(HandlerTasks(world.engine, handle, ordered=True).run(1))
    world.streams[0].deliver(answer_of(1))
    await settle()
    world.streams[0].break_off(None)
    await asyncio.sleep(1)
    await settle()
    world.streams[1].deliver(answer_of(1))
    await asyncio.sleep(10)
    assert seen == [(0, 1), (5, 2)]
    assert world.streams[1].settled == [(1, True)]
    world.engine.stop()
    await running.answer()
    await world.engine.close(1.0)


async def test_run_that_is_stopped_finishes_what_is_in_hand() -> None:
    """Handlers go on to their end, from one of them too; nothing new is begun."""
    world = World()
    done: list[int] = []

    async def handle(delivery: ConsumerDelivery) -> None:
        if delivery.delivery_id == 2:
            world.engine.stop()
        await asyncio.sleep(delivery.delivery_id)
        done.append(delivery.delivery_id)

    running = await started(HandlerTasks(world.engine, handle, ordered=False).run(3))
    world.streams[0].deliver(*map(answer_of, range(1, 9)))
    await running.answer()
    assert len(done) <= 3
    assert sorted(world.streams[0].settled) == [(number, True) for number in sorted(done)]
    await world.engine.close(1.0)


async def test_run_when_a_channel_is_given_up_finishes_and_raises() -> None:
    """The other workers' deliveries are acknowledged before."""
    world = World("one two", reconnect_seconds=1.0)
    done: list[int] = []

    async def handle(delivery: ConsumerDelivery) -> None:
        await asyncio.sleep(5)
        done.append(delivery.delivery_id)

    running = await started(HandlerTasks(world.engine, handle, ordered=False).run(2))
    world.streams[0].deliver(answer_of(1))
    await settle()
    world.streams[1].break_off(CorruptError("damaged"))
    with pytest.raises(CorruptError):
        await running.answer()
    assert done == [1]
    assert world.streams[0].settled == [(1, True)]
    await world.engine.close(1.0)


async def test_run_that_is_cancelled_returns_what_is_in_hand() -> None:
    """Handlers are cancelled, and their deliveries come again."""
    world = World()

    async def handle(delivery: ConsumerDelivery) -> None:
        await asyncio.sleep(1000)

    running = await started(HandlerTasks(world.engine, handle, ordered=False).run(2))
    world.streams[0].deliver(answer_of(1), answer_of(2))
    await settle()
    running.cancel()
    await settle()
    assert running.is_cancelled
    assert sorted(world.streams[0].settled) == [(1, False), (2, False)]
    await world.engine.close(1.0)


async def test_error_of_a_handler_that_settled_before_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing can be undone then, but nothing is hidden."""
    world = World()

    async def handle(delivery: ConsumerDelivery) -> None:
        await delivery.ack()
        world.engine.stop()
        raise ValueError("afterwards")

    running = await started(HandlerTasks(world.engine, handle, ordered=False).run(1))
    world.streams[0].deliver(answer_of(1))
    await running.answer()
    assert world.streams[0].settled == [(1, True)]
    assert "settled before" in caplog.text
    assert "afterwards" in caplog.text
    await world.engine.close(1.0)


async def test_delivery_as_a_block_is_settled_by_it() -> None:
    """Acknowledged at the end; held back after an error; returned at once when cancelled."""
    world = World(retry_seconds=2.0)
    await begin(world)
    stream = world.streams[0]
    stream.deliver(*map(answer_of, (1, 2, 3)))
    async with await world.take():
        pass
    assert stream.settled == [(1, True)]
    with pytest.raises(ValueError, match="mine"):
        async with await world.take():
            raise ValueError("mine")
    with pytest.raises(asyncio.CancelledError):
        async with await world.take():
            raise asyncio.CancelledError
    assert stream.settled == [(1, True), (3, False)]
    await asyncio.sleep(2.1)
    assert stream.settled == [(1, True), (3, False), (2, False)]
    await world.engine.close(1.0)
