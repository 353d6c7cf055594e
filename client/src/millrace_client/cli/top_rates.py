"""Events a second, from two looks at a channel's counters."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from millrace_client import ChannelInfo, ComponentInfo
from millrace_client.cli.component_view import component_path


@dataclass(frozen=True, slots=True)
class Rates:
    """Events a second between two looks."""

    put: float
    """Stored by commits."""
    taken: float
    """Removed by commits, acks and acknowledgements."""


class RateMeter:
    """Remembers the last look and measures against it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = 0.0
        self._last: dict[str, ChannelInfo] = {}

    def measure(self, channels: Iterable[ChannelInfo]) -> dict[str, Rates]:
        """Rates by the channel's name since the last call.

        A channel that was not there then, or was made anew or counts from 0 again since, has none.
        """
        now = self._clock()
        seconds = now - self._looked_at
        looked = {channel.name: channel for channel in channels}
        rates = {
            name: measured
            for name, channel in looked.items()
            if (last := self._last.get(name)) and (measured := _rates(last, channel, seconds))
        }
        self._looked_at, self._last = now, looked
        return rates


class ComponentRateMeter:
    """Remembers the last look at components and measures against it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = 0.0
        self._last: dict[str, int] = {}

    def measure(self, components: Iterable[ComponentInfo]) -> dict[str, float]:
        """Events a second by the component's path since the last call.

        A component that was not there then, or counts from 0 again since, has no rate.
        """
        now = self._clock()
        seconds = now - self._looked_at
        counts = {component_path(component): component.counters.event_count for component in components}
        rates = {
            path: (count - self._last[path]) / seconds
            for path, count in counts.items()
            if seconds > 0 and count >= self._last.get(path, count + 1)
        }
        self._looked_at, self._last = now, counts
        return rates


def _rates(last: ChannelInfo, channel: ChannelInfo, seconds: float) -> Rates | None:
    put = channel.counters.event_put_success_count - last.counters.event_put_success_count
    taken = channel.counters.event_take_success_count - last.counters.event_take_success_count
    is_same = channel.channel_id == last.channel_id and channel.start_time == last.start_time
    if seconds <= 0 or not is_same or put < 0 or taken < 0:
        return None
    return Rates(put / seconds, taken / seconds)
