import asyncio

from tests.unit.client.consuming.fakes import EngineHarness, response_of
from tests.virtual_clock import settle


async def test_rates_are_what_was_done_between_two_looks() -> None:
    """Rates use the clock between two samples; two samples at the same time show nothing."""
    harness = EngineHarness()
    assert await harness.engine.take(0) is None
    await settle()
    before = harness.engine.metrics()
    sizes = 0
    for number in range(10):
        response = response_of(number + 1, b"a", b"b")
        sizes += response.ByteSize()
        harness.streams[0].deliver(response)
        assert await (await harness.take()).ack()
        await asyncio.sleep(0.5)
    rates = harness.engine.metrics().rates_since(before)
    assert (rates.seconds, rates.events_per_second, rates.deliveries_per_second) == (5.0, 4.0, 2.0)
    assert rates.bytes_per_second == sizes / 5.0
    assert before.rates_since(before).events_per_second == 0.0
    await harness.engine.close(0.0)


async def test_metrics_tell_of_each_lane() -> None:
    """The metrics show what waits in each stream, and the error that ended a stream last."""
    harness = EngineHarness("one two")
    harness.refusals = [ZeroDivisionError("bug")]
    await asyncio.gather(harness.engine.take(1.0), return_exceptions=True)
    await settle()
    harness.streams[0].deliver(response_of(1), response_of(2))
    await harness.take()
    one, two = harness.engine.metrics().lanes
    assert (one.endpoint, one.state, type(one.error)) == ("one", "failed", ZeroDivisionError)
    assert (two.state, two.error, two.queued_deliveries, two.unsettled_deliveries) == ("reading", None, 1, 2)
    await harness.engine.close(0.0)
