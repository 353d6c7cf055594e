"""A consumer's figures, as an object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millrace_client.consuming.intake import Intake
from millrace_client.consuming.lanes import LaneState
from millrace_client.consuming.latency import LatencySummary


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMetrics:
    """One channel at one server."""

    endpoint: str
    channel: str
    state: LaneState
    """How its stream is."""
    error: Exception | None
    """What ended its last stream; None where nothing did."""
    queued_deliveries: int
    """Deliveries that wait to be handed out."""
    unsettled_deliveries: int
    """Deliveries that are out, the queued ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRates:
    """What a consumer did in a time."""

    seconds: float
    events_per_second: float
    """Events acknowledged."""
    deliveries_per_second: float
    """Deliveries acknowledged."""
    bytes_per_second: float
    """Bytes that came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMetrics:
    """What a consumer has done since it was made, and what it holds now."""

    time: float
    """When this was so, on the monotonic clock."""
    queued_deliveries: int
    """Deliveries that wait to be handed out."""
    queued_bytes: int
    """Their bytes."""
    unsettled_deliveries: int
    """Deliveries that are out: queued, in hand, or held back after a nack."""
    unsettled_bytes: int
    """Their bytes; what `prefetch_bytes_max` bounds."""
    delivered_deliveries: int
    delivered_events: int
    delivered_bytes: int
    acked_deliveries: int
    """Acknowledged. Where a connection broke at that moment, some may come again all the same."""
    acked_events: int
    nacked_deliveries: int
    """Returned."""
    nacked_events: int
    lost_deliveries: int
    """Handed out, and come to nothing, because their stream broke before they were settled."""
    lost_events: int
    handler_failures: int
    """Handlers that raised."""
    reconnects: int
    """Streams that broke, or could not be begun."""
    work: LatencySummary
    """How long deliveries were in hand."""
    lanes: Sequence[LaneMetrics]
    """Each channel at each server."""

    def rates_since(self, earlier: "ConsumerMetrics") -> ConsumerRates:
        """What was done since an earlier look."""
        seconds = self.time - earlier.time
        # Two looks at the same moment show nothing done.
        share = 1.0 / seconds if seconds > 0 else 0.0
        return ConsumerRates(
            seconds=seconds,
            events_per_second=(self.acked_events - earlier.acked_events) * share,
            deliveries_per_second=(self.acked_deliveries - earlier.acked_deliveries) * share,
            bytes_per_second=(self.delivered_bytes - earlier.delivered_bytes) * share,
        )


def metrics_of(intake: Intake[Any], now: float) -> ConsumerMetrics:
    """The figures as they are."""
    counters = intake.counters
    return ConsumerMetrics(
        time=now,
        queued_deliveries=intake.queued_count,
        queued_bytes=intake.queued_bytes,
        unsettled_deliveries=intake.unsettled_count,
        unsettled_bytes=intake.unsettled_bytes,
        delivered_deliveries=counters.delivered_deliveries,
        delivered_events=counters.delivered_events,
        delivered_bytes=counters.delivered_bytes,
        acked_deliveries=counters.acked_deliveries,
        acked_events=counters.acked_events,
        nacked_deliveries=counters.nacked_deliveries,
        nacked_events=counters.nacked_events,
        lost_deliveries=counters.lost_deliveries,
        lost_events=counters.lost_events,
        handler_failures=counters.handler_failures,
        reconnects=counters.reconnects,
        work=counters.work.summary(),
        lanes=[
            LaneMetrics(
                endpoint=lane.endpoint,
                channel=lane.channel,
                state=lane.state,
                error=lane.error,
                queued_deliveries=len(lane.queued),
                unsettled_deliveries=len(lane.unsettled),
            )
            for lane in intake.lanes
        ],
    )
