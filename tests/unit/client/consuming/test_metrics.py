import asyncio

from tests.unit.client.consuming.parts import World, answer_of
from tests.virtual_clock import settle


async def test_rates_are_what_was_done_between_two_looks() -> None:
    """By the clock between them; two looks at once show nothing."""
    world = World()
    assert await world.engine.take(0) is None
    await settle()
    before = world.engine.metrics()
    sizes = 0
    for number in range(10):
        answer = answer_of(number + 1, b"a", b"b")
        sizes += answer.ByteSize()
        world.streams[0].deliver(answer)
        assert await (await world.take()).ack()
        await asyncio.sleep(0.5)
    rates = world.engine.metrics().rates_since(before)
    assert (rates.seconds, rates.events_per_second, rates.deliveries_per_second) == (5.0, 4.0, 2.0)
    assert rates.bytes_per_second == sizes / 5.0
    assert before.rates_since(before).events_per_second == 0.0
    await world.engine.close(0.0)


async def test_metrics_tell_of_each_lane() -> None:
    """What waits where, and what ended a stream last."""
    world = World("one two")
    world.refusals = [ZeroDivisionError("bug")]
    await asyncio.gather(world.engine.take(1.0), return_exceptions=True)
    await settle()
    world.streams[0].deliver(answer_of(1), answer_of(2))
    await world.take()
    one, two = world.engine.metrics().lanes
    assert (one.endpoint, one.state, type(one.error)) == ("one", "failed", ZeroDivisionError)
    assert (two.state, two.error, two.queued_deliveries, two.unsettled_deliveries) == ("reading", None, 1, 2)
    await world.engine.close(0.0)
