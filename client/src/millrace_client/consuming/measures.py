"""A consumer's figures, as systems that gather figures know them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from millrace_client.consuming.metrics import ConsumerMetrics


class Measured(Protocol):
    """A `Consumer` or an `AsyncConsumer`."""

    def metrics(self) -> ConsumerMetrics:
        """The figures now."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure."""

    name: str
    """Its name, behind a prefix."""
    help: str
    """What it is."""
    is_counter: bool
    """Whether it only grows."""
    read: Callable[[ConsumerMetrics], Any]
    """Its value."""


MEASURES = (
    Measure("queued_deliveries", "Deliveries that wait to be handed out.", False, lambda it: it.queued_deliveries),
    Measure("queued_bytes", "Bytes of these.", False, lambda it: it.queued_bytes),
    Measure("unsettled_deliveries", "Deliveries that are out.", False, lambda it: it.unsettled_deliveries),
    Measure("unsettled_bytes", "Bytes of these.", False, lambda it: it.unsettled_bytes),
    Measure("delivered_events", "Events that came.", True, lambda it: it.delivered_events),
    Measure("delivered_bytes", "Bytes that came.", True, lambda it: it.delivered_bytes),
    Measure("delivered_deliveries", "Deliveries that came.", True, lambda it: it.delivered_deliveries),
    Measure("acked_events", "Events acknowledged.", True, lambda it: it.acked_events),
    Measure("nacked_events", "Events returned.", True, lambda it: it.nacked_events),
    Measure("lost_events", "Events handed out whose stream broke before.", True, lambda it: it.lost_events),
    Measure("handler_failures", "Handlers that raised.", True, lambda it: it.handler_failures),
    Measure("reconnects", "Streams that broke, or could not be begun.", True, lambda it: it.reconnects),
)
"""All that are single numbers."""
