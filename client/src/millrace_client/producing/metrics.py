"""The metrics of a producer, and the hooks that it calls."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millrace_client._metrics import Metric
from millrace_client.errors import SendAttempt

LATENCY_BOUNDS_SECONDS = (
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0,
)  # fmt: skip
"""Upper bounds of the latency buckets; a last bucket holds longer latencies."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """The times from `send` until an event was stored; all events of a batch count as its first one."""

    counts: tuple[int, ...]
    """Events in each bucket of `LATENCY_BOUNDS_SECONDS`, not cumulative, and in the last bucket."""
    total_seconds: float
    """All latencies together."""

    @property
    def count(self) -> int:
        """Events that were stored."""
        return sum(self.counts)

    def percentile(self, percent: float) -> float | None:
        """Returns an upper bound of this percentile; None if there are no events or it is in the last bucket."""
        wanted = self.count * percent / 100
        passed = 0
        for count, bound in zip(self.counts, LATENCY_BOUNDS_SECONDS, strict=False):
            passed += count
            if passed and passed >= wanted:
                return bound
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetrics:
    """The state of one server."""

    server: str
    is_connected: bool
    is_sick: bool
    """Whether it cannot be reached, or gets no batches for a while after a failure on one of its channels."""
    inflight_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics:
    """The state of a producer at one moment. Counters start at 0 with the producer."""

    time: float
    """The moment, on the monotonic clock."""
    open_events: int
    """Events sent and not settled: buffered, in progress, or waiting for another attempt."""
    buffer_bytes: int
    """Estimated memory that they take, which `buffer_bytes_max` bounds."""
    buffer_bytes_max: int
    inflight_batches: int
    """Batches sent and not yet acknowledged."""
    retrying_batches: int
    """Batches waiting for another attempt."""
    waiting_callbacks: int
    events_stored: int
    """Includes deduplicated events."""
    events_deduplicated: int
    """Events stored by an earlier attempt whose response was lost."""
    events_failed: int
    """Events not stored, without the dropped ones."""
    events_dropped: int
    """Events dropped to make space for newer ones."""
    bytes_stored: int
    """Bytes of stored requests."""
    batches_stored: int
    attempts_failed: int
    """Batches refused or without a response, counted each time."""
    retries: int
    """Failed attempts after which the batch is sent again."""
    callback_errors: int
    """Callbacks and hooks that raised."""
    blocked_seconds: float
    """Time that sends waited for space."""
    latencies: Latencies
    servers: Sequence[ServerMetrics]

    def rates_since(self, earlier: "ProducerMetrics") -> "ProducerRates":
        """Returns the rates since an earlier state."""
        seconds = self.time - earlier.time
        # Two states of the same moment show no progress.
        share = 1.0 / seconds if seconds > 0 else 0.0
        return ProducerRates(
            seconds=seconds,
            events_per_second=(self.events_stored - earlier.events_stored) * share,
            batches_per_second=(self.batches_stored - earlier.batches_stored) * share,
            bytes_per_second=(self.bytes_stored - earlier.bytes_stored) * share,
            retries_per_second=(self.retries - earlier.retries) * share,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRates:
    """The rates of a producer over a period."""

    seconds: float
    events_per_second: float
    """Events stored."""
    batches_per_second: float
    bytes_per_second: float
    retries_per_second: float


@dataclass(slots=True)
class ProducerCounters:
    """The counters of a producer. Each is written by one thread, or under the accumulator's lock."""

    events_stored: int = 0
    events_deduplicated: int = 0
    events_failed: int = 0
    events_dropped: int = 0
    bytes_stored: int = 0
    batches_stored: int = 0
    attempts_failed: int = 0
    retries: int = 0
    callback_errors: int = 0
    blocked_seconds: float = 0.0
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_SECONDS) + 1))
    latency_seconds: float = 0.0

    def note_latency(self, seconds: float, event_count: int) -> None:
        """Counts the events of a batch with one latency."""
        self.latency_counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += event_count
        self.latency_seconds += seconds * event_count


class ProducerHooks:
    """Called by a producer as it works; override what is needed. Hooks run where callbacks run, and may be late."""

    def batch_stored(self, channel: str, server: str, event_count: int, seconds: float) -> None:
        """Called when a batch was stored, this many seconds after its first event was sent."""

    def attempt_failed(self, channel: str, attempt: SendAttempt, event_count: int, retry_seconds: float | None) -> None:
        """Called when a batch was refused or got no response; it is resent after `retry_seconds`, or never if None."""

    def events_dropped(self, channel: str, event_count: int) -> None:
        """Called when events were dropped to make space for newer ones."""


class ReportsMetrics(Protocol):
    """A `Producer` or an `AsyncProducer`."""

    def metrics(self) -> ProducerMetrics:
        """Returns the current state."""


METRICS: tuple[Metric, ...] = (
    Metric("open_events", False, "events", "Events that are sent but not settled."),
    Metric("buffer_bytes", False, "bytes", "Memory used by unsettled events."),
    Metric("buffer_bytes_max", False, "bytes", "Maximum memory for unsettled events."),
    Metric("inflight_batches", False, "batches", "Batches sent and not yet acknowledged."),
    Metric("retrying_batches", False, "batches", "Batches waiting for another attempt."),
    Metric("waiting_callbacks", False, "callbacks", "Callbacks waiting to run."),
    Metric("events_stored", True, "events", "Events stored."),
    Metric("events_deduplicated", True, "events", "Events stored by an earlier attempt whose response was lost."),
    Metric("events_failed", True, "events", "Events not stored."),
    Metric("events_dropped", True, "events", "Events dropped to make space for newer ones."),
    Metric("bytes_stored", True, "bytes", "Bytes of requests stored."),
    Metric("batches_stored", True, "batches", "Batches stored."),
    Metric("attempts_failed", True, "batches", "Batches refused or without a response, each time."),
    Metric("retries", True, "batches", "Batches to be sent again."),
    Metric("callback_errors", True, "callbacks", "Callbacks that raised."),
    Metric("blocked_seconds", True, "seconds", "Time that sends waited for space."),
)
"""All metrics that are single numbers."""
