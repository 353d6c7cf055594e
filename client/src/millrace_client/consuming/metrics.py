"""The metrics of a consumer."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from millrace_client._metrics import Metric
from millrace_client.consuming.subscription import SubscriptionState

LATENCY_BOUNDS_SECONDS = tuple(1e-4 * 2.0**power for power in range(23))
"""Upper bounds of all latency buckets but the last: from 0.1 ms, doubling, to 7 minutes."""


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


class LatencyHistogram:
    """Counts durations. Not locked."""

    def __init__(self) -> None:
        self._bucket_counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self._sum_seconds = 0.0
        self._max_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Counts a duration."""
        self._bucket_counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self._sum_seconds += seconds
        self._max_seconds = max(self._max_seconds, seconds)

    def summary(self) -> LatencySummary:
        """Returns the distribution so far."""
        return LatencySummary(
            sum(self._bucket_counts), self._sum_seconds, self._max_seconds, tuple(self._bucket_counts)
        )


@dataclass(slots=True)
class ConsumerCounters:
    """Counts since the consumer was made; see `ConsumerMetrics`, which tells them."""

    delivered_deliveries: int = 0
    delivered_events: int = 0
    delivered_bytes: int = 0
    acked_deliveries: int = 0
    acked_events: int = 0
    nacked_deliveries: int = 0
    nacked_events: int = 0
    lost_deliveries: int = 0
    lost_events: int = 0
    handler_failures: int = 0
    reconnects: int = 0
    work: LatencyHistogram = field(default_factory=LatencyHistogram)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionMetrics:
    """One channel of one server."""

    endpoint: str
    channel: str
    state: SubscriptionState
    error: Exception | None
    """What ended its last stream; None if nothing did."""
    queued_deliveries: int
    """Deliveries that wait to be handed out."""
    unsettled_deliveries: int
    """Deliveries that are not settled, including queued ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRates:
    """The rates of a consumer over a period."""

    seconds: float
    events_per_second: float
    """Events acknowledged."""
    deliveries_per_second: float
    """Deliveries acknowledged."""
    bytes_per_second: float
    """Bytes delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMetrics:
    """The state of a consumer at one moment. Counters start at 0 with the consumer."""

    time: float
    """The moment, on the monotonic clock."""
    queued_deliveries: int
    """Deliveries that wait to be handed out."""
    queued_bytes: int
    """Their bytes."""
    unsettled_deliveries: int
    """Deliveries that are not settled: queued, in hand, or held back after a nack."""
    unsettled_bytes: int
    """Their bytes, which `prefetch_bytes_max` bounds."""
    delivered_deliveries: int
    delivered_events: int
    delivered_bytes: int
    acked_deliveries: int
    """Deliveries acknowledged. If the connection broke at that moment, some may be delivered again."""
    acked_events: int
    nacked_deliveries: int
    """Deliveries returned."""
    nacked_events: int
    lost_deliveries: int
    """Deliveries handed out whose stream broke before they were settled."""
    lost_events: int
    handler_failures: int
    """Handlers that raised."""
    reconnects: int
    """Streams that broke, or could not be started."""
    work: LatencySummary
    """How long deliveries were in hand."""
    lanes: Sequence[SubscriptionMetrics]
    """Each channel of each server."""

    def rates_since(self, earlier: "ConsumerMetrics") -> ConsumerRates:
        """Returns the rates since an earlier state."""
        seconds = self.time - earlier.time
        # Two states of the same moment show no progress.
        share = 1.0 / seconds if seconds > 0 else 0.0
        return ConsumerRates(
            seconds=seconds,
            events_per_second=(self.acked_events - earlier.acked_events) * share,
            deliveries_per_second=(self.acked_deliveries - earlier.acked_deliveries) * share,
            bytes_per_second=(self.delivered_bytes - earlier.delivered_bytes) * share,
        )


class ReportsMetrics(Protocol):
    """A `Consumer` or an `AsyncConsumer`."""

    def metrics(self) -> ConsumerMetrics:
        """Returns the current state."""


METRICS: tuple[Metric, ...] = (
    Metric("queued_deliveries", False, "deliveries", "Deliveries that wait to be handed out."),
    Metric("queued_bytes", False, "bytes", "Bytes of these."),
    Metric("unsettled_deliveries", False, "deliveries", "Deliveries that are out."),
    Metric("unsettled_bytes", False, "bytes", "Bytes of these."),
    Metric("delivered_events", True, "events", "Events delivered."),
    Metric("delivered_bytes", True, "bytes", "Bytes delivered."),
    Metric("delivered_deliveries", True, "deliveries", "Deliveries that arrived."),
    Metric("acked_events", True, "events", "Events acknowledged."),
    Metric("nacked_events", True, "events", "Events returned."),
    Metric("lost_events", True, "events", "Events handed out whose stream broke before."),
    Metric("handler_failures", True, "failures", "Handlers that raised."),
    Metric("reconnects", True, "reconnects", "Streams that broke, or could not be begun."),
)
"""All metrics that are single numbers."""
