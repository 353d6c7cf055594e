"""Histograms of what the server does.

Those of Prometheus' library take two to five microseconds for an observation, which is too much for each call; these
take a fraction of one. Code that observes finds its histogram once; the text is made from the counts at each scrape.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from time import time
from typing import NamedTuple

LATENCY_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
QUEUE_SECONDS = (0.001, 0.01, 0.1, 1, 10, 60, 300, 1800, 3600, 21600, 86400, 604800)
GROUP_COMMITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Exemplar(NamedTuple):
    """One observation, and the trace that it was part of."""

    trace_id: str
    value: float
    time: float
    """When it was observed, in seconds since 1970."""


class Histogram:
    """Counts observations by their size; not thread-safe.

    Attributes:
        bounds: The upper bounds of all buckets but the last, which has none; a bound belongs to its bucket.
        counts: The observations in each bucket, without those in smaller ones.
        total: The sum of all observations.
        exemplars: The newest traced observation of a bucket, by its index.
    """

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float, count: int = 1) -> None:
        """Counts a number of equal observations."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def observe_traced(self, value: float, trace_id: str | None) -> None:
        """Counts an observation; one that is part of a trace becomes the exemplar of its bucket."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if trace_id is not None:
            self.exemplars[bucket] = Exemplar(trace_id, value, time())


class SharedHistogram(Histogram):
    """A histogram that several threads may use."""

    __slots__ = ("_lock",)

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__(bounds)
        self._lock = threading.Lock()

    def observe(self, value: float, count: int = 1) -> None:
        bucket = bisect_left(self.bounds, value)
        with self._lock:
            self.counts[bucket] += count
            self.total += value * count


class HistogramFamily:
    """The histograms of one metric, by the values of its labels."""

    def __init__(
        self,
        name: str,
        description: str,
        bounds: Sequence[float],
        labels: Sequence[str] = (),
        kind: type[Histogram] = Histogram,
    ) -> None:
        self.name = name
        self.description = description
        self.labels = labels
        self._bounds = bounds
        self._kind = kind
        self._histograms: dict[tuple[str, ...], Histogram] = {}

    def of(self, *values: str) -> Histogram:
        """Returns the histogram of these values, the same each time."""
        if (histogram := self._histograms.get(values)) is None:
            # By one operation, since logs are opened on several threads.
            histogram = self._histograms.setdefault(values, self._kind(self._bounds))
        return histogram

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], Histogram]]:
        return iter(list(self._histograms.items()))


class Histograms:
    """All histograms of a server."""

    def __init__(self) -> None:
        self.rpcs = HistogramFamily(
            "millrace_rpc_duration_seconds",
            "Durations of calls, including streams and waiting calls.",
            LATENCY_SECONDS,
            ("method", "code"),
        )
        self.stream_appends = HistogramFamily(
            "millrace_stream_append_duration_seconds",
            "Durations of the appends in an AppendStream, from their arrival to their response.",
            LATENCY_SECONDS,
            ("code",),
        )
        self.commits = HistogramFamily(
            "millrace_commit_duration_seconds",
            "Time from a commit's submission to its log until it is durable.",
            LATENCY_SECONDS,
            ("type",),
        )
        self.syncs = HistogramFamily(
            "millrace_log_sync_duration_seconds", "Durations of a log's syncs.", LATENCY_SECONDS, kind=SharedHistogram
        )
        self.groups = HistogramFamily(
            "millrace_log_group_commits", "Commits that share one write of a log.", GROUP_COMMITS, kind=SharedHistogram
        )
        self.queue_times = HistogramFamily(
            "millrace_queue_duration_seconds",
            "Time from an event's commit until it was consumed.",
            QUEUE_SECONDS,
            ("type",),
        )
        self.loop_lags = HistogramFamily(
            "millrace_event_loop_lag_seconds", "How late the event loop runs a timer.", LATENCY_SECONDS
        )

    def __iter__(self) -> Iterator[HistogramFamily]:
        return iter(vars(self).values())
