"""When a channel will be full, or empty, if it continues as it does."""

import time
from collections.abc import Callable
from typing import NamedTuple

from millrace_server.channels.admission import Capacity

_WINDOW_SECONDS = 60.0
"""A sample is compared with one that is at least this old, if there is one, and at most twice as old."""

_GAP_SECONDS = 600.0
"""After this long without a sample, the former ones say nothing about now."""

_SECONDS_MIN = 1.0
"""Over less time than this, a rate says nothing."""


class Forecast(NamedTuple):
    """How many seconds remain at the present rate; None where the channel does not move that way."""

    seconds_to_full: float | None
    """Until its events or their bytes reach the capacity; 0 while they do."""
    seconds_to_empty: float | None


_UNKNOWN = Forecast(None, None)


class _Sample(NamedTuple):
    time: float
    event_count: int
    body_bytes: int


class Forecaster:
    """Forecasts from the net growth of the last one to two minutes.

    It samples the channel when it is asked, so a channel that no one looks at costs nothing.
    """

    def __init__(self, capacity: Capacity, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._older: _Sample | None = None
        self._newer: _Sample | None = None

    def forecast(self) -> Forecast:
        """Samples the channel, and compares it with an earlier sample."""
        capacity = self._capacity
        event_count, body_bytes = capacity.event_count, capacity.body_bytes
        if self._newer is None and not event_count:
            # Most of thousands of channels: nothing is to be said about them, at the least cost.
            return _UNKNOWN
        now = _Sample(self._clock(), event_count, body_bytes)
        before = self._sample_before(now)
        is_full = event_count >= capacity.events_max or body_bytes >= capacity.body_bytes_max
        if not is_full and event_count == before.event_count and body_bytes == before.body_bytes:
            return _UNKNOWN
        seconds = now.time - before.time
        if seconds < _SECONDS_MIN:
            return Forecast(0.0 if is_full else None, None)
        grown, grown_bytes = event_count - before.event_count, body_bytes - before.body_bytes
        free = (capacity.events_max - event_count, grown), (capacity.body_bytes_max - body_bytes, grown_bytes)
        return Forecast(
            0.0 if is_full else min((space * seconds / growth for space, growth in free if growth > 0), default=None),
            event_count * seconds / -grown if grown < 0 < event_count else None,
        )

    def _sample_before(self, now: _Sample) -> _Sample:
        """Returns the sample to compare with, and keeps the new one where it is needed later."""
        if self._newer is None or now.time - self._newer.time > _GAP_SECONDS:
            self._older, self._newer = None, now
        elif now.time - self._newer.time >= _WINDOW_SECONDS:
            self._older, self._newer = self._newer, now
        return self._older or self._newer
