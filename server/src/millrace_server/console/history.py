"""The last hour of channels and components, as samples of a few numbers each."""

import asyncio
import math
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from millrace_server.agent.components import Component
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry, TimeSlices

SAMPLE_SECONDS = 10.0
"""The interval of samples of up to `_CHANNELS_OF_AN_INTERVAL` channels; of more channels it is a multiple of this."""

HISTORY_SECONDS = 3_600.0

_CHANNELS_OF_AN_INTERVAL = 2_000
_RATE_SECONDS_MIN = SAMPLE_SECONDS / 2
"""A rate is that of at least this time, so that single batches do not make it jump."""

Key = tuple[str, str]
"""A kind, `channel` or that of a component, and a name."""


class Sample(NamedTuple):
    """A channel or component at one moment; NaN for what is not known."""

    depth: float = math.nan
    """Events in the channel, queued or taken."""
    put_count: float = math.nan
    """Events that a channel has stored, or that a component has passed on, since it was opened."""
    take_count: float = math.nan


_UNKNOWN = Sample()
_WIDTH = len(_UNKNOWN)


class Rates(NamedTuple):
    """Events per second; None where they are not known yet."""

    put: float | None
    take: float | None


_UNKNOWN_RATES = Rates(None, None)


class Span(NamedTuple):
    """Samples of equal distance and what happened between them; None where it is not known."""

    time: Sequence[float]
    """Seconds since 1970."""
    depth: Sequence[float | None]
    put_rate: Sequence[float | None]
    take_rate: Sequence[float | None]


def channel_key(name: str) -> Key:
    """Returns the key of a channel's history."""
    return "channel", name


def component_key(component: Component) -> Key:
    """Returns the key of a component's history."""
    return component.kind.key, component.name


def sample_of_channel(channel: Channel | None) -> Sample:
    """Returns a channel as it is now; None stands for one that is not open."""
    if channel is None:
        return _UNKNOWN
    counters = channel.counters
    depth = channel.queued_count + channel.taken_count
    return Sample(depth, counters.put_successes, counters.take_successes)


class History:
    """Samples of all channels and components, taken at the same times.

    Each has one array, whose last sample belongs to the last of the times; one that is new has fewer. The interval
    grows with the number of channels, so that thousands of them need no more memory than some.
    """

    def __init__(
        self,
        registry: ChannelRegistry,
        components: Iterable[Component],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._components = components
        self._clock = clock
        self._wall_clock = wall_clock
        self._times = array("d")
        self._samples: dict[Key, array[float]] = {}

    @property
    def interval_seconds(self) -> float:
        return SAMPLE_SECONDS * max(1, math.ceil(len(self._registry) / _CHANNELS_OF_AN_INTERVAL))

    async def follow(self) -> None:
        """Takes samples until it is cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(self.interval_seconds)

    async def sample(self) -> None:
        slices = TimeSlices()
        found: dict[Key, Sample] = {}
        for handle in self._registry.handles():
            await slices.pause_if_over()
            if (channel := handle.channel_if_open) is not None:
                # It compares with what it was asked before: so there is an answer once somebody looks.
                channel.forecast()
            found[channel_key(handle.name)] = sample_of_channel(channel)
        for component in self._components:
            found[component_key(component)] = Sample(put_count=component.event_count)
        self._append(found)

    def _append(self, found: Mapping[Key, Sample]) -> None:
        now = self._clock()
        self._times.append(now)
        del self._times[: bisect_left(self._times, now - HISTORY_SECONDS)]
        self._samples = {key: self._samples.get(key) or array("d") for key in found}
        for key, sample in found.items():
            samples = self._samples[key]
            samples.extend(sample)
            del samples[: max(len(samples) - _WIDTH * len(self._times), 0)]

    def rates(self, key: Key, now: Sample) -> Rates:
        """Returns the rates from the latest sample that is old enough until now."""
        clock = self._clock()
        index = bisect_right(self._times, clock - _RATE_SECONDS_MIN) - 1
        samples = self._samples.get(key)
        if index < 0 or samples is None:
            return _UNKNOWN_RATES
        start = len(samples) - _WIDTH * (len(self._times) - index)
        if start < 0:
            return _UNKNOWN_RATES
        seconds = clock - self._times[index]
        return Rates(
            _rate(samples[start + 1], now.put_count, seconds), _rate(samples[start + 2], now.take_count, seconds)
        )

    def depths(self, key: Key, points_max: int) -> list[float | None]:
        """Returns the depths of the last hour, the newest last, at most so many."""
        depths = self._samples.get(key, array("d"))[::_WIDTH]
        step = _step(len(self._times), points_max)
        return [None if math.isnan(depth) else depth for depth in depths[(len(depths) - 1) % step :: step]]

    def span(self, key: Key, points_max: int) -> Span:
        """Returns the last hour in at most so many points; each rate is that of the time since the point before."""
        samples = self._samples.get(key, array("d"))
        step = _step(len(self._times), points_max)
        count = len(samples) // _WIDTH
        indexes = range((count - 1) % step if count else 0, count, step)
        clocks = self._times[len(self._times) - count :]
        set_ahead = self._wall_clock() - self._clock()

        def rates(counts: Sequence[float]) -> list[float | None]:
            known = [_rate(counts[one], counts[other], clocks[other] - clocks[one]) for one, other in pairwise(indexes)]
            return [None, *known] if count else []

        return Span(
            [clocks[index] + set_ahead for index in indexes],
            self.depths(key, points_max),
            rates(samples[1::_WIDTH]),
            rates(samples[2::_WIDTH]),
        )


def rate_of_component(history: History, component: Component) -> float | None:
    """Returns the events per second that a component passes on; None where that is not known yet."""
    return history.rates(component_key(component), Sample(put_count=component.event_count)).put


def _step(count: int, points_max: int) -> int:
    return max(math.ceil(count / points_max), 1)


def _rate(before: float, after: float, seconds: float) -> float | None:
    if not seconds or math.isnan(before) or math.isnan(after):
        return None
    # A counter begins at 0 again where a channel was opened, or a component was started, anew.
    return (after - before if after >= before else after) / seconds
