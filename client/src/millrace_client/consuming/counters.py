"""What a consumer counts."""

from dataclasses import dataclass, field

from millrace_client.consuming.latency import Latency


@dataclass(slots=True)
class Counters:
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
    work: Latency = field(default_factory=Latency)
