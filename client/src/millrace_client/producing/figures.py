"""The one table of what producers tell to monitoring systems: names, kinds, units, and what each of them is."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from millrace_client.producing.metrics import ProducerMetrics


class FigureKind(Enum):
    """How a figure behaves."""

    COUNTER = "counter"
    """Only grows."""
    GAUGE = "gauge"
    """Goes up and down."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure."""

    name: str
    """In Prometheus' manner, without the suffix of counters."""
    kind: FigureKind
    unit: str
    text: str
    value: Callable[[ProducerMetrics], float]


FIGURES = (
    Figure(
        "open_events", FigureKind.GAUGE, "events", "Events that were sent and are not settled.", lambda m: m.open_events
    ),
    Figure("buffer_bytes", FigureKind.GAUGE, "bytes", "Memory that open events take.", lambda m: m.buffer_bytes),
    Figure("buffer_bytes_max", FigureKind.GAUGE, "bytes", "Memory that they may take.", lambda m: m.buffer_bytes_max),
    Figure(
        "inflight_batches", FigureKind.GAUGE, "batches", "Batches sent and not answered.", lambda m: m.inflight_batches
    ),
    Figure(
        "retrying_batches",
        FigureKind.GAUGE,
        "batches",
        "Batches that wait for another attempt.",
        lambda m: m.retrying_batches,
    ),
    Figure(
        "waiting_callbacks", FigureKind.GAUGE, "callbacks", "Callbacks that are to run.", lambda m: m.waiting_callbacks
    ),
    Figure("events_stored", FigureKind.COUNTER, "events", "Events stored.", lambda m: m.events_stored),
    Figure(
        "events_deduplicated",
        FigureKind.COUNTER,
        "events",
        "Events stored by an earlier attempt whose answer was lost.",
        lambda m: m.events_deduplicated,
    ),
    Figure("events_failed", FigureKind.COUNTER, "events", "Events not stored.", lambda m: m.events_failed),
    Figure(
        "events_dropped", FigureKind.COUNTER, "events", "Events given up for newer ones.", lambda m: m.events_dropped
    ),
    Figure("bytes_stored", FigureKind.COUNTER, "bytes", "Bytes of requests stored.", lambda m: m.bytes_stored),
    Figure("batches_stored", FigureKind.COUNTER, "batches", "Batches stored.", lambda m: m.batches_stored),
    Figure(
        "attempts_failed",
        FigureKind.COUNTER,
        "batches",
        "Batches refused or not answered, each time.",
        lambda m: m.attempts_failed,
    ),
    Figure("retries", FigureKind.COUNTER, "batches", "Batches to be sent again.", lambda m: m.retries),
    Figure("callback_errors", FigureKind.COUNTER, "callbacks", "Callbacks that raised.", lambda m: m.callback_errors),
    Figure(
        "blocked_seconds",
        FigureKind.COUNTER,
        "seconds",
        "Time that sends waited for room.",
        lambda m: m.blocked_seconds,
    ),
)
"""All of them, but for the latencies."""
