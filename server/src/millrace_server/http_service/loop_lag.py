"""How late the event loop is, which all calls of the server share."""

import asyncio
from time import monotonic

from millrace_server.histograms import Histogram

_INTERVAL_SECONDS = 0.25
"""More often would wake an idle server for little: a longer delay is met at any interval."""


class LoopLag:
    """Observes at an interval how much later than due a timer of the running event loop is run."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def _schedule(self) -> None:
        self._due = monotonic() + _INTERVAL_SECONDS
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._observe)

    def _observe(self) -> None:
        # A loop with a coarse clock may be early.
        self._histogram.observe(max(monotonic() - self._due, 0.0))
        self._schedule()

    def stop(self) -> None:
        self._timer.cancel()
