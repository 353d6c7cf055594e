"""Handlers as asyncio tasks, on scripted streams and the virtual clock."""

import asyncio

import pytest

from millrace_client.aio.consumer_tasks import ConsumerDelivery, HandlerTasks
from millrace_client.errors import CorruptError
from tests.unit.client.consuming.fakes import EngineHarness, response_of
from tests.virtual_clock import now, settle, started


async def test_handler_that_raises_holds_its_delivery_back() -> None:
    """Each failure doubles the pause; other deliveries continue meanwhile; a success resets the pause."""
    harness = EngineHarness(retry_seconds=1.0, retry_seconds_max=60.0)
    seen: list[tuple[float, int, int]] = []

    async def handle(delivery: ConsumerDelivery) -> None:
        seen.append((now(), delivery.first_sequence, delivery.attempt))
        if delivery.first_sequence == 10 and delivery.attempt < 3:
            raise ValueError("not yet")

    running = await started(HandlerTasks(harness.engine, handle, ordered=False).run(1))
    stream = harness.streams[0]
    stream.deliver(response_of(1), response_of(2))
    await asyncio.sleep(1)
    await settle()
    assert stream.settled == [(2, True), (1, False)]
    stream.deliver(response_of(3, first_sequence=10))
    await asyncio.sleep(2)
    await settle()
    assert stream.settled == [(2, True), (1, False), (3, False)]
    stream.deliver(response_of(4, first_sequence=10))
    await settle()
    assert seen == [(0, 10, 1), (0, 20, 1), (1, 10, 2), (3, 10, 3)]
    assert stream.settled[-1] == (4, True)
    assert harness.hooks.of("handler_failed") == [(1, "not yet", 1.0), (3, "not yet", 2.0)]
    assert harness.engine.metrics().handler_failures == 2
    harness.engine.stop()
    await running.result()
    await harness.engine.close(1.0)


async def test_handler_in_order_leaves_what_was_lost() -> None:
    """If the stream breaks during a pause, the delivery comes again; the handler is not called twice for it."""
    harness = EngineHarness(retry_seconds=5.0, reconnect_seconds=1.0)
    seen: list[tuple[float, int]] = []

    async def handle(delivery: ConsumerDelivery) -> None:
        seen.append((now(), delivery.attempt))
        if len(seen) == 1:
            raise ValueError("not yet")

    running = await started(HandlerTasks(harness.engine, handle, ordered=True).run(1))
    harness.streams[0].deliver(response_of(1))
    await settle()
    harness.streams[0].break_off(None)
    await asyncio.sleep(1)
    await settle()
    harness.streams[1].deliver(response_of(1))
    await asyncio.sleep(10)
    assert seen == [(0, 1), (5, 2)]
    assert harness.streams[1].settled == [(1, True)]
    harness.engine.stop()
    await running.result()
    await harness.engine.close(1.0)


async def test_run_that_is_stopped_finishes_what_is_in_hand() -> None:
    """Handlers complete, also the one that stops the run; no new delivery is handed out."""
    harness = EngineHarness()
    done: list[int] = []

    async def handle(delivery: ConsumerDelivery) -> None:
        if delivery.delivery_id == 2:
            harness.engine.stop()
        await asyncio.sleep(delivery.delivery_id)
        done.append(delivery.delivery_id)

    running = await started(HandlerTasks(harness.engine, handle, ordered=False).run(3))
    harness.streams[0].deliver(*map(response_of, range(1, 9)))
    await running.result()
    assert len(done) <= 3
    assert sorted(harness.streams[0].settled) == [(number, True) for number in sorted(done)]
    await harness.engine.close(1.0)


async def test_run_when_a_channel_is_given_up_finishes_and_raises() -> None:
    """The deliveries of other workers are acknowledged before the error is raised."""
    harness = EngineHarness("one two", reconnect_seconds=1.0)
    done: list[int] = []

    async def handle(delivery: ConsumerDelivery) -> None:
        await asyncio.sleep(5)
        done.append(delivery.delivery_id)

    running = await started(HandlerTasks(harness.engine, handle, ordered=False).run(2))
    harness.streams[0].deliver(response_of(1))
    await settle()
    harness.streams[1].break_off(CorruptError("damaged"))
    with pytest.raises(CorruptError):
        await running.result()
    assert done == [1]
    assert harness.streams[0].settled == [(1, True)]
    await harness.engine.close(1.0)


async def test_run_that_is_cancelled_returns_what_is_in_hand() -> None:
    """Handlers are cancelled, and their deliveries come again."""
    harness = EngineHarness()

    async def handle(delivery: ConsumerDelivery) -> None:
        await asyncio.sleep(1000)

    running = await started(HandlerTasks(harness.engine, handle, ordered=False).run(2))
    harness.streams[0].deliver(response_of(1), response_of(2))
    await settle()
    running.cancel()
    await settle()
    assert running.is_cancelled
    assert sorted(harness.streams[0].settled) == [(1, False), (2, False)]
    await harness.engine.close(1.0)


async def test_error_of_a_handler_that_settled_before_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The settlement stands, and the error is logged."""
    harness = EngineHarness()

    async def handle(delivery: ConsumerDelivery) -> None:
        await delivery.ack()
        harness.engine.stop()
        raise ValueError("afterwards")

    running = await started(HandlerTasks(harness.engine, handle, ordered=False).run(1))
    harness.streams[0].deliver(response_of(1))
    await running.result()
    assert harness.streams[0].settled == [(1, True)]
    assert "settled before" in caplog.text
    assert "afterwards" in caplog.text
    await harness.engine.close(1.0)
