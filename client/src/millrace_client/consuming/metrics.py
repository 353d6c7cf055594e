"""The metrics of a consumer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millrace_client._metrics import LatencyHistogram, LatencySummary, Metric
from millrace_client.consuming.subscription import SubscriptionState


@dataclass(slots=True)
class ConsumerCounters:
    """Counts since the consumer was created, which `ConsumerMetrics` reports."""

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
    """Deliveries waiting to be handed out."""
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
    """Deliveries waiting to be handed out."""
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
    """How long deliveries were in progress."""
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
    Metric("queued_deliveries", False, "deliveries", "Deliveries waiting to be handed out."),
    Metric("queued_bytes", False, "bytes", "Bytes of these."),
    Metric("unsettled_deliveries", False, "deliveries", "Deliveries in progress."),
    Metric("unsettled_bytes", False, "bytes", "Bytes of these."),
    Metric("delivered_events", True, "events", "Events delivered."),
    Metric("delivered_bytes", True, "bytes", "Bytes delivered."),
    Metric("delivered_deliveries", True, "deliveries", "Deliveries that arrived."),
    Metric("acked_events", True, "events", "Events acknowledged."),
    Metric("nacked_events", True, "events", "Events returned."),
    Metric("lost_events", True, "events", "Events handed out whose stream broke before."),
    Metric("handler_failures", True, "failures", "Handlers that raised."),
    Metric("reconnects", True, "reconnects", "Streams that broke or could not be started."),
)
"""All metrics that are single numbers."""
