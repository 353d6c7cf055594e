"""Detects slow syncs of the logs in the last minute."""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from millrace_server.console.troubles import Severity, Trouble
from millrace_server.histograms import HistogramFamily

_SLOW_SECONDS = 0.25
_SLOW_FRACTION = 0.01
_WINDOW_SECONDS = 60.0
_COUNTS_MAX = 1_000

_ADVICE = "The disk is slow: check whether another program is using it, or whether it is failing. Commits wait for it."


class _Count(NamedTuple):
    time: float
    slow_count: int
    sync_count: int


class SlowSyncs:
    """Compares the counts of syncs with those of up to a minute ago.

    They are read only when `trouble` is called, which costs nothing while no page is open.
    """

    def __init__(self, syncs: HistogramFamily, clock: Callable[[], float] = time.monotonic) -> None:
        self._syncs = syncs
        self._clock = clock
        self._counts: deque[_Count] = deque(maxlen=_COUNTS_MAX)

    def trouble(self) -> Trouble | None:
        """Returns a warning if at least one in a hundred syncs was slow; None otherwise, and at the first call."""
        now = self._count()
        self._counts.append(now)
        while now.time - self._counts[0].time > _WINDOW_SECONDS:
            self._counts.popleft()
        slow_count = now.slow_count - self._counts[0].slow_count
        sync_count = now.sync_count - self._counts[0].sync_count
        if slow_count == 0 or slow_count < _SLOW_FRACTION * sync_count:
            return None
        reason = f"{slow_count:,} of {sync_count:,} syncs in the last minute took over {_SLOW_SECONDS} s"
        return Trouble("server", "logs", Severity.WARNING, reason, _ADVICE)

    def _count(self) -> _Count:
        histograms = [histogram for _, histogram in self._syncs]
        slow_count = sum(sum(one.counts[bisect_right(one.bounds, _SLOW_SECONDS) :]) for one in histograms)
        return _Count(self._clock(), slow_count, sum(sum(one.counts) for one in histograms))
