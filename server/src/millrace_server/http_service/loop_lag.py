"""Measures the lag of the event loop that all calls of the server share."""

import asyncio
from time import monotonic

from millrace_server.histograms import Histogram

_INTERVAL_SECONDS = 0.25
"""A shorter interval would only wake an idle server more often: long delays are observed with any."""


class LoopLag:
    """Observes at regular intervals how late a timer of the running event loop fires."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def _schedule(self) -> None:
        self._due = monotonic() + _INTERVAL_SECONDS
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._observe)

    def _observe(self) -> None:
        # With a coarse clock, a timer may fire early.
        self._histogram.observe(max(monotonic() - self._due, 0.0))
        self._schedule()

    def stop(self) -> None:
        self._timer.cancel()
