"""What a producer counts, and what it tells of itself while it works."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace_client.producing.results import SendAttempt

LATENCY_BOUNDS_SECONDS = (
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0,
)  # fmt: skip
"""Upper bounds of the latencies' classes; what is longer is in a last one."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long it took from `send` until an event was stored; all events of a batch count as its first one."""

    counts: tuple[int, ...]
    """Events for each bound of `LATENCY_BOUNDS_SECONDS`, not summed up, and those beyond the last."""
    total_seconds: float
    """All latencies together."""

    @property
    def count(self) -> int:
        """Events that were stored."""
        return sum(self.counts)

    def percentile(self, percent: float) -> float | None:
        """A latency that so many percent of the events did not pass; None where there are none or it has no bound."""
        wanted = self.count * percent / 100
        passed = 0
        for count, bound in zip(self.counts, LATENCY_BOUNDS_SECONDS, strict=False):
            passed += count
            if passed and passed >= wanted:
                return bound
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetrics:
    """One server as its producer sees it."""

    server: str
    is_connected: bool
    is_sick: bool
    """Whether it is left alone for a while, after a failure on one of its channels."""
    inflight_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics:
    """A producer at one moment; counters count from its beginning."""

    time: float
    """When this was so, on the monotonic clock."""
    open_events: int
    """Events that were sent and are not settled: gathering, under way or waiting for another attempt."""
    buffer_bytes: int
    """Memory that they take, by the estimate that `buffer_bytes_max` bounds."""
    buffer_bytes_max: int
    inflight_batches: int
    """Batches that are sent and not answered."""
    retrying_batches: int
    """Batches that wait for another attempt."""
    waiting_callbacks: int
    """Callbacks that are to run."""
    events_stored: int
    """Deduplicated ones included."""
    events_deduplicated: int
    """Stored by an earlier attempt whose answer was lost."""
    events_failed: int
    """Not stored, dropped ones not included."""
    events_dropped: int
    """Given up for newer ones."""
    bytes_stored: int
    """Bytes of requests that were stored."""
    batches_stored: int
    attempts_failed: int
    """Batches that were refused or went unanswered, each time."""
    retries: int
    """Of these, such as were to be sent again."""
    callback_errors: int
    """Callbacks and hooks that raised."""
    blocked_seconds: float
    """Time that sends have waited for room."""
    latencies: Latencies
    servers: Sequence[ServerMetrics]

    def rates_since(self, earlier: "ProducerMetrics") -> "ProducerRates":
        """What was done since an earlier look."""
        seconds = self.time - earlier.time
        # Two looks at the same moment show nothing done.
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
    """What a producer did in a time."""

    seconds: float
    events_per_second: float
    """Events stored."""
    batches_per_second: float
    """Batches stored."""
    bytes_per_second: float
    """Bytes of their requests."""
    retries_per_second: float


@dataclass(slots=True)
class Tally:
    """The counters. Each is written by one thread or under the intake's lock."""

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
        """Counts the latency of a batch."""
        self.latency_counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += event_count
        self.latency_seconds += seconds * event_count


class ProducerHooks:
    """What a producer tells while it works; override what is wanted. Runs where callbacks run, and may be late."""

    def batch_stored(self, channel: str, server: str, event_count: int, seconds: float) -> None:
        """A batch was stored, so long after its first event was sent."""

    def attempt_failed(self, channel: str, attempt: SendAttempt, event_count: int, retry_seconds: float | None) -> None:
        """A batch was refused or not answered; it is sent again after so long, or None: never."""

    def events_dropped(self, channel: str, event_count: int) -> None:
        """Events were dropped to make room for newer ones."""
