"""The limits of a consumer, and its hooks."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace_client._calls import ConsumeLimits
from millrace_client._deliveries import DeliveredEvents
from millrace_client._settings import ConnectionSettings
from millrace_client.errors import BadArgumentError
from millrace_client.security import File, Tls, Token

MIB: Final = 1 << 20
SUBSCRIPTIONS_MAX: Final = 1_000
"""Channels times servers. Each has a stream, and in the synchronous API a thread."""
PREFETCH_MAX: Final = 1_000
"""The most unsettled deliveries that a server allows on a stream."""
WORKERS_MAX: Final = 1_000


class ConsumerHooks:
    """Called by a consumer as it works; override what is needed.

    Hooks run in the thread or task that does the work: they must be quick and not block. A hook that raises is logged.
    """

    def delivered(self, delivery: DeliveredEvents) -> None:
        """Called when a delivery has arrived."""

    def settled(self, delivery: DeliveredEvents, work_seconds: float, *, is_ack: bool) -> None:
        """Called when a delivery was acknowledged or returned, this many seconds after it was handed out."""

    def lost(self, delivery: DeliveredEvents) -> None:
        """Called when a delivery's stream broke before it was settled: its events will be delivered again."""

    def handler_failed(self, delivery: DeliveredEvents, error: Exception, retry_seconds: float) -> None:
        """Called when a handler raised; the delivery is tried again after `retry_seconds`."""

    def disconnected(self, endpoint: str, channel: str, error: Exception, retry_seconds: float) -> None:
        """Called when a stream broke or could not be started; it is started again after `retry_seconds`."""

    def failed(self, endpoint: str, channel: str, error: Exception) -> None:
        """Called when a channel of a server has failed; the consumer's loop raises the error, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """The limits and times of one consumer; raises BadArgumentError if one is not allowed."""

    delivery_events_max: int = 0
    """The maximum number of events of a delivery. 0: the channel's transaction capacity."""
    delivery_bytes_max: int = 0
    """The maximum number of bytes of bodies of a delivery; a larger first event is delivered alone. 0: a share of
    `prefetch_bytes_max`."""
    prefetch: int = 8
    """The most unsettled deliveries of each channel of each server, at most 1,000."""
    prefetch_bytes_max: int = 32 * MIB
    """The maximum number of bytes of all unsettled deliveries together. Each channel of each server may always have one
    unsettled delivery, so that large events are delivered and no channel starves."""
    auto_ack: bool = True
    """Whether loops acknowledge a delivery after their body. False: the caller calls `ack` and `nack`."""
    idle_seconds: float | None = None
    """Loops end when nothing was delivered for this long. If a channel cannot be read at that moment, for example since
    its server is down or another reader has claimed it, they raise the reason instead. None: they wait forever."""
    waits_for_channels: bool = False
    """Whether to wait for a channel that does not exist. False: ChannelNotFoundError."""
    reconnect_seconds: float = 0.1
    """The pause before a broken stream is started again; it doubles each time, with random jitter down to a half."""
    reconnect_seconds_max: float = 10.0
    """The longest such pause, unless the server asks for a longer one."""
    retry_seconds: float = 1.0
    """How long a delivery is held back after its handler raised; it doubles each time, with random jitter."""
    retry_seconds_max: float = 60.0
    close_seconds: float = 30.0
    """How long the end of a `with` block, or of `run`, waits for deliveries in hand."""
    timeout_seconds: float = 20.0
    """How long a server may take to respond; see `connect`."""
    tls: Tls | None = None
    """How to connect over TLS. None: plain text."""
    token: str | None = field(default=None, repr=False)
    """The client's bearer token. None: that of `token_file`, or none."""
    token_file: File | None = None
    """File that holds the token; it is read again when it changes, for streams that start from then on."""
    options: Sequence[tuple[str, str | int]] = ()
    """Options of the gRPC channels; they override the client's own."""
    hooks: ConsumerHooks = field(default_factory=ConsumerHooks)

    def __post_init__(self) -> None:
        _within("delivery_events_max", self.delivery_events_max, 0, (1 << 32) - 1)
        _within("delivery_bytes_max", self.delivery_bytes_max, 0, (1 << 64) - 1)
        _within("prefetch", self.prefetch, 1, PREFETCH_MAX)
        _within("prefetch_bytes_max", self.prefetch_bytes_max, 1, (1 << 64) - 1)
        if self.idle_seconds is not None:
            _seconds("idle_seconds", self.idle_seconds, is_zero_allowed=True)
        for name in ("reconnect_seconds", "reconnect_seconds_max", "retry_seconds", "retry_seconds_max"):
            _seconds(name, getattr(self, name))
        _seconds("timeout_seconds", self.timeout_seconds)
        Token.given(self.token, self.token_file)
        _seconds("close_seconds", self.close_seconds, is_zero_allowed=True)

    def limits(self, subscription_count: int) -> ConsumeLimits:
        """Returns the limits of each of this many streams: its share of the bytes, divided by its deliveries."""
        share = max(1, self.prefetch_bytes_max // (subscription_count * self.prefetch))
        bytes_max = min(self.delivery_bytes_max, share) if self.delivery_bytes_max else share
        return ConsumeLimits(self.delivery_events_max, bytes_max, self.prefetch)

    def connection(self, endpoint: str) -> ConnectionSettings:
        return ConnectionSettings(
            endpoint=endpoint,
            timeout_seconds=self.timeout_seconds,
            wait_for_ready=False,
            tls=self.tls,
            token=Token.given(self.token, self.token_file),
            options=tuple(self.options),
        )


def names(field_name: str, given: str | Iterable[str]) -> list[str]:
    """Returns the given names, at least one, without repeats and in order; a string is one name."""
    found = list(dict.fromkeys([given] if isinstance(given, str) else given))
    if not found:
        raise BadArgumentError(f"{field_name}: is empty; give at least one")
    return found


def subscriptions_of(endpoints: str | Iterable[str], channels: str | Iterable[str]) -> list[tuple[str, str]]:
    """Returns each endpoint with each channel, ordered so that the first ones include every server."""
    servers = names("endpoints", endpoints)
    pairs = [(endpoint, channel) for channel in names("channels", channels) for endpoint in servers]
    if len(pairs) > SUBSCRIPTIONS_MAX:
        raise BadArgumentError(f"channels: {len(pairs)} with their servers; at most {SUBSCRIPTIONS_MAX} are allowed")
    return pairs


def checked_workers(workers: int, *, ordered: bool) -> int:
    """Returns the number of workers; raises BadArgumentError if it is not allowed."""
    _within("workers", workers, 1, 1 if ordered else WORKERS_MAX)
    return workers


def checked_delay(seconds: float) -> float:
    """Returns the delay of a nack; raises BadArgumentError if it is not allowed."""
    _seconds("delay_seconds", seconds, is_zero_allowed=True)
    return seconds


def _within(name: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise BadArgumentError(f"{name}: is {value}; {minimum} to {maximum} are allowed")


def _seconds(name: str, value: float, *, is_zero_allowed: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0 or (is_zero_allowed and value == 0))):
        bound = "of at least" if is_zero_allowed else "above"
        raise BadArgumentError(f"{name}: is {value}; it must be a finite number {bound} 0")
