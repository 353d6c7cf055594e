"""Samples of channels and components over the last hour."""

import asyncio
import math
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from millrace_server.agent.components import Component
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry, TimeSlices

SAMPLE_SECONDS = 10.0
"""The sampling interval with up to `_CHANNELS_OF_AN_INTERVAL` channels; with more, it is a multiple of this."""

HISTORY_SECONDS = 3_600.0

_CHANNELS_OF_AN_INTERVAL = 2_000
_RATE_SECONDS_MIN = SAMPLE_SECONDS / 2
"""The minimum time over which a rate is measured, so that single batches do not make it jump."""

Key = tuple[str, str]
"""A kind, `channel` or that of a component, and a name."""


class Sample(NamedTuple):
    """A channel or component at one moment; NaN means unknown."""

    depth: float = math.nan
    """Events in the channel, queued or taken."""
    put_count: float = math.nan
    """Events that a channel has stored, or that a component has passed on, since it was opened."""
    take_count: float = math.nan


_UNKNOWN = Sample()
_NO_SAMPLES = array("d")
_WIDTH = 1 + len(_UNKNOWN)
"""Numbers per sample in an array: its time, then its fields."""


class Rates(NamedTuple):
    """Events per second; None if not known yet."""

    put: float | None
    take: float | None


_UNKNOWN_RATES = Rates(None, None)


class Span(NamedTuple):
    """Equally spaced samples, and the rates between them; None means unknown."""

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
    """Returns the current sample of a channel; None stands for a channel that is not open."""
    if channel is None:
        return _UNKNOWN
    counters = channel.counters
    depth = channel.queued_count + channel.taken_count
    return Sample(depth, counters.put_successes, counters.take_successes)


class History:
    """Samples of all channels and components, in one array for each.

    The interval grows with the number of channels, which limits the memory for thousands of them.
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
        """Adds a sample of each channel and component, and forgets those that are gone."""
        slices = TimeSlices()
        found = set[Key]()
        for handle in self._registry.handles():
            await slices.pause_if_over()
            if (channel := handle.channel_if_open) is not None:
                # A forecast compares with earlier calls; these make it available as soon as a page is opened.
                channel.forecast()
            found.add(key := channel_key(handle.name))
            self._add(key, sample_of_channel(channel))
        for component in self._components:
            found.add(key := component_key(component))
            self._add(key, Sample(put_count=component.event_count))
        for key in self._samples.keys() - found:
            del self._samples[key]

    def _add(self, key: Key, sample: Sample) -> None:
        now = self._clock()
        samples = self._samples.setdefault(key, array("d"))
        samples.extend((now, *sample))
        start = 0
        while samples[start] < now - HISTORY_SECONDS:
            start += _WIDTH
        del samples[:start]

    def rates(self, key: Key, now: Sample) -> Rates:
        """Returns the rates since the newest sample that is old enough."""
        clock = self._clock()
        samples = self._samples.get(key, _NO_SAMPLES)
        for start in range(len(samples) - _WIDTH, -1, -_WIDTH):
            if (seconds := clock - samples[start]) >= _RATE_SECONDS_MIN:
                before = Sample(*samples[start + 1 : start + _WIDTH])
                return Rates(
                    _rate(before.put_count, now.put_count, seconds), _rate(before.take_count, now.take_count, seconds)
                )
        return _UNKNOWN_RATES

    def depths(self, key: Key, points_max: int) -> list[float | None]:
        """Returns at most `points_max` depths of the last hour, the newest last."""
        _, depths, *_ = self._points(key, points_max)
        return [None if math.isnan(depth) else depth for depth in depths]

    def span(self, key: Key, points_max: int) -> Span:
        """Returns the last hour in at most `points_max` points; each rate is that since the previous point."""
        times, _, puts, takes = self._points(key, points_max)
        set_ahead = self._wall_clock() - self._clock()

        def rates(counts: Sequence[float]) -> list[float | None]:
            between = zip(pairwise(counts), pairwise(times), strict=True)
            return [None, *(_rate(*both, other - one) for both, (one, other) in between)][: len(counts)]

        return Span(
            [time + set_ahead for time in times],
            self.depths(key, points_max),
            rates(puts),
            rates(takes),
        )

    def _points(self, key: Key, points_max: int) -> list["array[float]"]:
        """Returns the times, depths and counts of at most `points_max` samples, including the newest."""
        samples = self._samples.get(key, _NO_SAMPLES)
        count = len(samples) // _WIDTH
        step = max(math.ceil(count / points_max), 1)
        return [samples[field::_WIDTH][(count - 1) % step :: step] for field in range(_WIDTH)]


def rate_of_component(history: History, component: Component) -> float | None:
    """Returns the events per second that a component passes on; None if not known yet."""
    return history.rates(component_key(component), Sample(put_count=component.event_count)).put


def _rate(before: float, after: float, seconds: float) -> float | None:
    if not seconds or math.isnan(before) or math.isnan(after):
        return None
    # A counter restarts at 0 when its channel is reopened or its component is restarted.
    return (after - before if after >= before else after) / seconds
