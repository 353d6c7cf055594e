"""The producer for asyncio: the same engine on the caller's loop."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import pytest

from millrace_client import (
    BufferFullError,
    Event,
    Overflow,
    ProducerClosedError,
    ProducerConfig,
    SendFailedError,
    SendResult,
)
from millrace_client.aio import AsyncProducer
from tests.unit.client.fake_server import RefusalError
from tests.unit.client.producing.conftest import QUICK, FakeChannels


def producer_of(channels: FakeChannels, **options: Any) -> AsyncProducer:
    return AsyncProducer(channels.address, "orders", config=ProducerConfig(**{**QUICK, **options}))


def full() -> RefusalError:
    return RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL")


async def test_send_gives_the_sequence_of_each_event(channels: FakeChannels) -> None:
    """Futures can be awaited one by one, together, and repeatedly."""
    async with producer_of(channels) as producer:
        futures = [await producer.send(Event(b"%d" % index, {"n": str(index)}), key="k") for index in range(10)]
        results = await asyncio.gather(*futures)
        assert [result.sequence for result in results] == list(range(1, 11))
        assert await futures[3] == results[3]
    assert channels.stored["orders"] == [b"%d" % index for index in range(10)]


async def test_send_that_is_refused_for_good_raises_where_it_is_awaited(channels: FakeChannels) -> None:
    """The error contains the result."""
    channels.judge = lambda _bodies: RefusalError(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND", "no such channel")
    async with producer_of(channels) as producer:
        with pytest.raises(SendFailedError, match="no such channel"):
            await (await producer.send(b"a"))


async def test_send_survives_lost_replies(channels: FakeChannels) -> None:
    """Each event is stored exactly once."""
    channels.outcomes.extend(["lose", full(), "break"])
    async with producer_of(channels) as producer:
        result = await (await producer.send(b"a"))
    assert (result.stored, channels.stored["orders"]) == (True, [b"a"])


async def test_send_into_a_full_buffer_waits_without_blocking_the_loop(channels: FakeChannels) -> None:
    """Other tasks continue, including the one that makes space."""
    channels.outcomes.append(full())
    async with producer_of(channels, buffer_bytes_max=1000) as producer:
        futures = [await producer.send(bytes(300)) for _ in range(20)]
        results = await asyncio.gather(*futures)
    assert all(result.stored for result in results)
    assert producer.metrics().blocked_seconds > 0


async def test_send_into_a_full_buffer_keeps_the_policy(channels: FakeChannels) -> None:
    """Waiting ends in time; the policy RAISE raises at once."""
    channels.judge = lambda _bodies: full()
    for options in ({"max_block_seconds": 0.05}, {"overflow": Overflow.RAISE}):
        producer = producer_of(channels, buffer_bytes_max=1000, **options)
        with suppress(BufferFullError):
            while True:
                _ = await producer.send(bytes(300))
        with pytest.raises(BufferFullError):
            _ = producer.send_nowait(bytes(300))
        await producer.close(0)


async def test_await_that_is_cancelled_leaves_the_event_alone(channels: FakeChannels) -> None:
    """A caller that stops waiting does not cancel the send of the event."""
    channels.judge = lambda _bodies: full()
    async with producer_of(channels) as producer:
        future = await producer.send(b"a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await future
        channels.judge = lambda _bodies: None
        assert (await future).stored


async def test_flush_waits_for_what_was_sent(channels: FakeChannels) -> None:
    """A flush also sends lingering events, and returns how many are left at its timeout."""
    async with producer_of(channels, linger_seconds=60.0) as producer:
        future = await producer.send(b"a")
        assert await producer.flush(60) == 0
        assert future.done()
        channels.judge = lambda _bodies: full()
        _ = await producer.send(b"b")
        assert await producer.flush(0.05) == 1
        channels.judge = lambda _bodies: None


async def test_callbacks_run_on_the_loop_and_cannot_break_it(channels: FakeChannels) -> None:
    """Exceptions of callbacks are counted; each callback runs once."""
    reported: list[SendResult] = []

    def fail(_result: SendResult) -> None:
        raise ValueError

    producer = producer_of(channels)
    _ = await producer.send(b"a", callback=fail)
    _ = await producer.send(b"b", callback=reported.append)
    assert (await producer.close(60)).is_complete
    assert (len(reported), producer.metrics().callback_errors) == (1, 1)


async def test_close_may_be_called_often_and_from_a_callback(channels: FakeChannels) -> None:
    """All calls of close return, and nothing can be sent afterwards."""
    producer = producer_of(channels, linger_seconds=60.0)
    closings: list[asyncio.Task[Any]] = []
    loop = asyncio.get_running_loop()
    _ = await producer.send(b"a", callback=lambda _result: closings.append(loop.create_task(producer.close(60))))
    reports = await asyncio.gather(*(producer.close(60) for _ in range(5)))
    assert all(report.is_complete for report in [*reports, await closings[0]])
    with pytest.raises(ProducerClosedError):
        _ = await producer.send(b"b")
    assert (await producer_of(channels).close()).is_complete


async def test_close_whose_time_runs_out_says_what_is_left(channels: FakeChannels) -> None:
    """All futures are settled all the same."""
    channels.judge = lambda _bodies: full()
    producer = producer_of(channels)
    futures = [await producer.send(b"a") for _ in range(3)]
    report = await producer.close(0.1)
    assert report.events_left == 3
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(result) for result in results} == {SendFailedError}
