from collections.abc import AsyncIterator

import pytest

from millrace_server.agent.components import ComponentKind, Components
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import MemoryChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.console.history import (
    HISTORY_SECONDS,
    SAMPLE_SECONDS,
    History,
    Rates,
    Sample,
    channel_key,
    rate_of_component,
    sample_of_channel,
)
from tests.unit.console.served_console import append

ORDERS = channel_key("orders")


class Hour:
    """A history whose clock tests set, with one channel."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.components = Components()
        self.registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
        self.history = History(self.registry, self.components, lambda: self.now, lambda: self.now + 1e9)
        self.channel = self.create("orders")

    def create(self, name: str) -> Channel:
        config = MemoryChannelConfig(type="memory", capacity=1_000, byte_capacity=1 << 20)
        return self.registry.create(name, config).channel

    async def sample_after(self, seconds: float) -> None:
        self.now += seconds
        await self.history.sample()

    def rates(self) -> Rates:
        return self.history.rates(ORDERS, sample_of_channel(self.registry.get("orders")))


@pytest.fixture
async def hour() -> AsyncIterator[Hour]:
    hour = Hour()
    await hour.history.sample()
    yield hour
    await hour.registry.close()


async def test_rates_soon_after_the_first_sample_are_unknown(hour: Hour) -> None:
    """A rate is that of some seconds, never of an instant."""
    hour.now += 1.0
    assert hour.rates() == (None, None)


async def test_rates_are_those_since_a_sample_that_is_some_seconds_old(hour: Hour) -> None:
    """A sample that was taken just now does not count."""
    await append(hour.channel, *[({}, b"x")] * 50)
    await hour.sample_after(SAMPLE_SECONDS)
    assert hour.rates() == (5.0, 0.0)
    hour.now += SAMPLE_SECONDS
    assert hour.rates() == (0.0, 0.0)


async def test_rates_of_a_channel_that_was_made_anew_count_from_zero(hour: Hour) -> None:
    """A counter that is lower than before has begun again."""
    await append(hour.channel, *[({}, b"x")] * 50)
    await hour.sample_after(SAMPLE_SECONDS)
    await hour.registry.delete("orders")
    await append(hour.create("orders"), *[({}, b"x")] * 20)
    hour.now += SAMPLE_SECONDS
    assert hour.rates() == (2.0, 0.0)


async def test_rate_of_a_component_is_that_of_its_events(hour: Hour) -> None:
    """Sources and sinks have a history as channels do."""
    sink = hour.components.add(ComponentKind.SINK, "out", "null")
    await hour.sample_after(SAMPLE_SECONDS)
    sink.record_progress(30, 100)
    hour.now += SAMPLE_SECONDS
    assert rate_of_component(hour.history, sink) == 3.0


async def test_span_has_the_depths_and_what_happened_between_them(hour: Hour) -> None:
    """All arrays are of one length, and times are those of the wall clock."""
    for _ in range(3):
        await append(hour.channel, *[({}, b"x")] * 20)
        await hour.sample_after(SAMPLE_SECONDS)
    span = hour.history.span(ORDERS, 10)
    assert span.depth == [0, 20, 40, 60]
    assert span.put_rate == [None, 2.0, 2.0, 2.0]
    assert span.take_rate == [None, 0.0, 0.0, 0.0]
    assert span.time[-1] == hour.now + 1e9


async def test_span_in_fewer_points_ends_with_the_newest(hour: Hour) -> None:
    """Rates are then those of longer times."""
    for _ in range(6):
        await append(hour.channel, *[({}, b"x")] * 10)
        await hour.sample_after(SAMPLE_SECONDS)
    span = hour.history.span(ORDERS, 3)
    assert span.depth == [0, 30, 60]
    assert span.put_rate == [None, 1.0, 1.0]
    assert hour.history.depths(ORDERS, 3) == span.depth


async def test_span_of_a_channel_that_is_new_begins_with_it(hour: Hour) -> None:
    """Its samples belong to the newest times."""
    await hour.sample_after(SAMPLE_SECONDS)
    hour.create("new")
    await hour.sample_after(SAMPLE_SECONDS)
    span = hour.history.span(channel_key("new"), 10)
    assert (span.depth, span.time) == ([0], [hour.now + 1e9])
    assert hour.history.span(channel_key("absent"), 10).depth == []


async def test_sample_forgets_what_is_older_than_an_hour(hour: Hour) -> None:
    """Neither time nor the number of channels that come and go lets the history grow."""
    for number in range(400):
        name = f"short-{number}"
        hour.create(name)
        await hour.sample_after(SAMPLE_SECONDS)
        await hour.registry.delete(name)
    await hour.sample_after(0.0)
    span = hour.history.span(ORDERS, 1_000)
    assert span.time[-1] - span.time[0] <= HISTORY_SECONDS
    assert set(hour.history._samples) == {ORDERS}


async def test_sample_of_thousands_of_channels_is_taken_less_often(hour: Hour) -> None:
    """So the memory has a bound that the number of channels does not raise."""
    assert hour.history.interval_seconds == SAMPLE_SECONDS
    for number in range(2_000):
        hour.create(f"c{number}")
    assert hour.history.interval_seconds == 2 * SAMPLE_SECONDS


def test_sample_of_a_channel_that_is_not_open_is_unknown() -> None:
    """The chart has a gap there."""
    assert Sample() != Sample(0.0, 0.0, 0.0)
