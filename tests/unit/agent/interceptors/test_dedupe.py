import asyncio
from typing import Any

import pytest
from pydantic import TypeAdapter

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.components import ComponentState
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors import AnyInterceptorConfig
from millrace_server.agent.interceptors.context import InterceptorContext
from millrace_server.agent.interceptors.interceptor import Interceptor, RememberingInterceptor
from millrace_server.errors import ChannelFullError, DiskFullError
from tests.channel_events import append
from tests.fake_clock import FakeClock
from tests.slow_commits import SlowCommits
from tests.source_writers import batch_stamp, component_of, held, memory, outcomes_of, registry_of, table_of, writer_of
from tests.waiting import until


def dedupe(clock: FakeClock, **settings: object) -> RememberingInterceptor:
    config: Any = TypeAdapter(AnyInterceptorConfig).validate_python({"type": "dedupe", **settings})
    made: Interceptor = config.make(InterceptorContext(monotonic=clock))
    assert isinstance(made, RememberingInterceptor)
    return made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def stored(interceptor: RememberingInterceptor, table: EventTable) -> list[bytes]:
    """The events that pass and are stored."""
    screened = interceptor.screen(table)
    screened.note_stored()
    return list(screened.table.bodies)


def test_dedupe_drops_what_is_stored_already(clock: FakeClock) -> None:
    """Within a batch, too, the first event of a key passes."""
    made = dedupe(clock)
    assert stored(made, table_of(b"a", b"b", b"a")) == [b"a", b"b"]
    assert stored(made, table_of(b"b", b"c", b"")) == [b"c", b""]
    assert stored(made, table_of(b"", b"c")) == []


def test_dedupe_by_header_compares_nothing_else(clock: FakeClock) -> None:
    """An event without the header has no key and always passes."""
    made = dedupe(clock, header="id")
    assert stored(made, table_of(b"1", b"2", b"3", b"4", id=["x", "x", None, None])) == [b"1", b"3", b"4"]
    assert stored(made, table_of(b"5", b"6", id="x")) == []
    assert stored(made, table_of(b"7")) == [b"7"]


def test_dedupe_remembers_nothing_that_was_not_stored(clock: FakeClock) -> None:
    """A batch that failed passes again, as often as it comes."""
    made = dedupe(clock)
    for _ in range(3):
        assert made.screen(table_of(b"a", b"b")).table.bodies == [b"a", b"b"]
    assert stored(made, table_of(b"a")) == [b"a"]
    assert stored(made, table_of(b"a", b"b")) == [b"b"]


def test_dedupe_forgets_after_the_window(clock: FakeClock) -> None:
    """A duplicate does not make the window longer."""
    made = dedupe(clock, window_seconds=10)
    assert stored(made, table_of(b"a")) == [b"a"]
    clock.now += 9
    assert stored(made, table_of(b"a", b"b")) == [b"b"]
    clock.now += 1
    assert stored(made, table_of(b"a", b"b")) == [b"a"]


def test_dedupe_remembers_a_bounded_number_of_keys(clock: FakeClock) -> None:
    """The oldest keys are forgotten first."""
    made = dedupe(clock, window_events=3)
    assert stored(made, table_of(b"a", b"b", b"c", b"d", b"e")) == [b"a", b"b", b"c", b"d", b"e"]
    assert stored(made, table_of(b"c", b"d", b"e")) == []
    assert stored(made, table_of(b"b")) == [b"b"]
    assert stored(made, table_of(b"d", b"e", b"b", b"c")) == [b"c"]


def test_dedupe_of_batches_at_the_same_time_lets_both_pass(clock: FakeClock) -> None:
    """Of two that are being stored either may fail, so neither is dropped; the later one counts for the window."""
    made = dedupe(clock, window_seconds=10)
    first, second = made.screen(table_of(b"a")), made.screen(table_of(b"a"))
    assert first.table.bodies == second.table.bodies == [b"a"]
    first.note_stored()
    clock.now += 6
    second.note_stored()
    clock.now += 6
    assert stored(made, table_of(b"a")) == []


async def delivered(writer: ChannelWriter, *batches: EventTable) -> None:
    number = 0
    for batch in batches:
        await writer.deliver(batch, batch_stamp(number, number + batch.count - 1))
        number += batch.count


async def test_deliver_through_dedupe_stores_each_event_once(clock: FakeClock) -> None:
    """What is dropped is counted, and the source goes on."""
    registry, component = registry_of(a=memory(), b=memory()), component_of()
    writer = writer_of(registry, ["a", "b"], dedupe(clock), component=component)
    await delivered(writer, table_of(b"1", b"2"), table_of(b"2", b"3"), table_of(b"1"))
    assert held(registry, "a", "b") == {"a": [b"1", b"2", b"3"], "b": [b"1", b"2", b"3"]}
    assert outcomes_of(component) == {"filtered": 2}


async def test_deliver_through_dedupe_after_a_failed_commit_stores_the_batch(clock: FakeClock) -> None:
    """The source's own retry is no duplicate of itself, in any channel."""
    registry, component = registry_of(a=memory(), b=memory()), component_of()
    slow = SlowCommits(registry.get("b"))
    writer = writer_of(registry, ["a", "b"], dedupe(clock), component=component)
    delivering = asyncio.ensure_future(delivered(writer, table_of(b"1", b"2")))
    await until(lambda: len(slow.in_flight) == 1)
    slow.refuse(DiskFullError("no space"))
    await until(lambda: component.state is ComponentState.BACKING_OFF)
    component.retry()
    await until(lambda: len(slow.in_flight) == 1)
    slow.let_last()
    await delivering
    assert held(registry, "a", "b") == {"a": [b"1", b"2"], "b": [b"1", b"2"]}
    assert outcomes_of(component) == {}


async def test_repeat_of_a_refused_batch_through_dedupe_is_stored(clock: FakeClock) -> None:
    """A caller who was told that the channel is full sends the same events again, with another stamp."""
    registry = registry_of(a=memory(capacity=2, transaction_capacity=2, keep_alive_seconds=0))
    await append(registry.get("a"), b"x")
    writer = writer_of(registry, ["a"], dedupe(clock))
    with pytest.raises(ChannelFullError):
        await writer.try_deliver(table_of(b"1", b"2"), writer.next_stamp(2))
    await registry.get("a").purge()
    await writer.try_deliver(table_of(b"1", b"2"), writer.next_stamp(2))
    assert held(registry, "a")["a"] == [b"1", b"2"]


async def test_repeat_of_a_batch_whose_commit_was_cancelled_and_failed_is_stored(clock: FakeClock) -> None:
    """A commit that goes on without its caller may fail yet, so its events are not remembered."""
    registry = registry_of(a=memory())
    slow = SlowCommits(registry.get("a"))
    writer = writer_of(registry, ["a"], dedupe(clock))
    delivering = asyncio.ensure_future(writer.try_deliver(table_of(b"1"), writer.next_stamp(1)))
    await until(lambda: len(slow.in_flight) == 1)
    delivering.cancel()
    await asyncio.wait({delivering})
    slow.refuse(DiskFullError("no space"))
    again = asyncio.ensure_future(writer.try_deliver(table_of(b"1"), writer.next_stamp(1)))
    await until(lambda: len(slow.in_flight) == 1)
    slow.let_last()
    await again
    assert held(registry, "a")["a"] == [b"1"]
