"""Metrics of producers and consumers, as monitoring systems know them."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

LATENCY_BOUNDS_SECONDS = tuple(1e-4 * 2.0**power for power in range(23))
"""Upper bounds of all latency buckets but the last: from 0.1 ms, doubling, to 7 minutes."""

_UNITS = {"bytes": "By", "seconds": "s"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric that is a single number."""

    name: str
    """Its field, and its Prometheus name without the prefix and without the suffix of counters."""
    is_counter: bool
    noun: str
    """What it counts, in the plural."""
    help: str

    @property
    def unit(self) -> str:
        """Its unit for OpenTelemetry, in UCUM: a unit, or the noun in braces."""
        return _UNITS.get(self.noun, f"{{{self.noun}}}")

    def read(self, metrics: object) -> float:
        """Returns its value among a producer's or consumer's metrics."""
        value: float = getattr(metrics, self.name)
        return value


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """A distribution of durations."""

    count: int
    """The number of durations."""
    sum_seconds: float
    """Their sum."""
    max_seconds: float
    """The longest; 0 if there are none."""
    bucket_counts: tuple[int, ...]
    """The number in each bucket of `LATENCY_BOUNDS_SECONDS`, and in one more bucket for longer ones."""

    def quantile(self, fraction: float) -> float:
        """Returns an upper bound of this quantile, at most twice too high; 0 if there are no durations."""
        wanted = fraction * self.count
        for bound, total in zip(LATENCY_BOUNDS_SECONDS, accumulate(self.bucket_counts), strict=False):
            if total >= wanted:
                return min(bound, self.max_seconds)
        return self.max_seconds


def cumulative_buckets(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """Returns the buckets of a histogram, with one more count than bounds, as Prometheus has them."""
    return list(zip((*map(str, bounds), "+Inf"), map(float, accumulate(counts)), strict=True))


class LatencyHistogram:
    """Counts durations. Not locked."""

    def __init__(self) -> None:
        self._bucket_counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self._sum_seconds = 0.0
        self._max_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._bucket_counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self._sum_seconds += seconds
        self._max_seconds = max(self._max_seconds, seconds)

    def summary(self) -> LatencySummary:
        """Returns the distribution so far."""
        return LatencySummary(
            sum(self._bucket_counts), self._sum_seconds, self._max_seconds, tuple(self._bucket_counts)
        )
