import asyncio
from typing import Any

import pytest
from pydantic import TypeAdapter

from millrace_server.agent.interceptors import AnyInterceptorConfig
from millrace_server.agent.interceptors.context import InterceptorContext
from millrace_server.agent.interceptors.interceptor import Interceptor, MustWaitError
from tests.source_writers import batch_stamp, component_of, held, memory, outcomes_of, registry_of, table_of, writer_of
from tests.unit.agent.interceptors.configured_interceptors import problem_with
from tests.virtual_clock import now

HAS_VIRTUAL_CLOCK = True


def throttle(**settings: object) -> Interceptor:
    """An interceptor that runs on the clock of the loop."""
    config: Any = TypeAdapter(AnyInterceptorConfig).validate_python({"type": "throttle", **settings})
    made: Interceptor = config.make(InterceptorContext(monotonic=now))
    return made


async def test_throttle_lets_the_source_wait_for_its_turn() -> None:
    """Batches pass at the rate, in order; none is lost, and the source does not seem to fail."""
    registry, component = registry_of(a=memory(capacity=1_000)), component_of()
    writer = writer_of(registry, ["a"], throttle(events_per_second=10), component=component)
    began = now()
    for number in range(6):
        await writer.deliver(table_of(*[b"%d" % number] * 5), batch_stamp(5 * number, 5 * number + 4))
        # One second's worth passes at once.
        assert now() - began == pytest.approx(max(number - 1, 0) * 0.5, abs=0.01)
    assert held(registry, "a")["a"] == [b"%d" % number for number in range(6) for _ in range(5)]
    assert (component.failure_count, outcomes_of(component)) == (0, {})


async def test_throttle_passes_a_large_batch_whole_and_makes_the_next_one_wait() -> None:
    """The rate holds on average."""
    limiting = throttle(bytes_per_second=10)
    assert limiting.intercept(table_of(b"x" * 35)).count == 1
    with pytest.raises(MustWaitError) as waiting:
        limiting.intercept(table_of(b"x" * 5))
    assert waiting.value.seconds == pytest.approx(3, abs=0.01)
    await asyncio.sleep(waiting.value.seconds)
    assert limiting.intercept(table_of(b"x" * 5)).count == 1


async def test_throttle_counts_nothing_while_a_batch_waits() -> None:
    """A sender that gives up and comes again does not make others wait for what never passed."""
    limiting = throttle(events_per_second=1, bytes_per_second=1_000)
    limiting.intercept(table_of(b"1"))
    for _ in range(100):
        with pytest.raises(MustWaitError):
            limiting.intercept(table_of(b"2"))
    await asyncio.sleep(1.1)
    assert limiting.intercept(table_of(b"2")).bodies == [b"2"]


async def test_throttle_that_drops_passes_the_first_events() -> None:
    """What exceeds the rate is dropped and counted, and the source never waits."""
    registry, component = registry_of(a=memory()), component_of()
    limiting = throttle(events_per_second=3, when_exceeded="drop")
    writer = writer_of(registry, ["a"], limiting, component=component)
    await writer.deliver(table_of(b"1", b"2"), batch_stamp(0, 1))
    await writer.deliver(table_of(b"3", b"4", b"5"), batch_stamp(2, 4))
    await writer.deliver(table_of(b"6"), batch_stamp(5, 5))
    assert held(registry, "a")["a"] == [b"1", b"2", b"3"]
    assert outcomes_of(component) == {"filtered": 3}
    await asyncio.sleep(0.5)
    await writer.deliver(table_of(b"7", b"8"), batch_stamp(6, 7))
    assert held(registry, "a")["a"] == [b"1", b"2", b"3", b"7"]


async def test_throttle_that_drops_counts_bytes_of_bodies() -> None:
    """An event that is larger than the limit passes when nothing else has for a second."""
    limiting = throttle(bytes_per_second=10, when_exceeded="drop")
    assert limiting.intercept(table_of(b"x" * 4, b"y" * 6, b"z")).bodies == [b"x" * 4, b"y" * 6]
    assert limiting.intercept(table_of(b"z" * 50)).count == 0
    await asyncio.sleep(1)
    assert limiting.intercept(table_of(b"z" * 50, b"a")).bodies == [b"z" * 50]
    await asyncio.sleep(1)
    assert limiting.intercept(table_of(b"a")).count == 0


async def test_throttle_whose_source_stops_ends_at_once() -> None:
    """A batch that waits for its turn does not hold up the stop."""
    registry = registry_of(a=memory())
    writer = writer_of(registry, ["a"], throttle(events_per_second=1))
    await writer.deliver(table_of(*[b"x"] * 60), batch_stamp(0, 59))
    waiting = asyncio.ensure_future(writer.deliver(table_of(b"late"), batch_stamp(60, 60)))
    await asyncio.sleep(1)
    waiting.cancel()
    began = now()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert now() == began
    assert b"late" not in held(registry, "a")["a"]


def test_throttle_without_a_limit_is_refused() -> None:
    """It would do nothing."""
    assert problem_with(type="throttle").startswith("when_exceeded: has no limit to apply to")
