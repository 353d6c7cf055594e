"""How long things take, in buckets."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

BOUNDS_SECONDS = tuple(1e-4 * 2.0**power for power in range(23))
"""Upper bounds of all buckets but the last: 0.1 ms, doubling, to 7 minutes."""


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """How long things took, all in all."""

    count: int
    """How many."""
    sum_seconds: float
    """All of them together."""
    max_seconds: float
    """The longest; 0 where there was none."""
    bucket_counts: tuple[int, ...]
    """How many in each bucket of `BOUNDS_SECONDS`, and one more bucket for what is longer."""

    def quantile(self, fraction: float) -> float:
        """What this fraction of all took at most; up to twice too high. 0 where there was none."""
        wanted = fraction * self.count
        for bound, total in zip(BOUNDS_SECONDS, accumulate(self.bucket_counts), strict=False):
            if total >= wanted:
                return min(bound, self.max_seconds)
        return self.max_seconds


class Latency:
    """Counts what is observed. Holds no lock."""

    def __init__(self) -> None:
        self._bucket_counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._sum_seconds = 0.0
        self._max_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one."""
        self._bucket_counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self._sum_seconds += seconds
        self._max_seconds = max(self._max_seconds, seconds)

    def summary(self) -> LatencySummary:
        """All so far."""
        return LatencySummary(
            sum(self._bucket_counts), self._sum_seconds, self._max_seconds, tuple(self._bucket_counts)
        )
