"""Limits of one consumer."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc

from millrace_client._calls import ConsumeLimits
from millrace_client._settings import ConnectionSettings
from millrace_client.consuming.hooks import ConsumerHooks
from millrace_client.errors import BadArgumentError

MIB: Final = 1 << 20
LANES_MAX: Final = 1_000
"""Channels times servers. Each is a stream, and for threads a thread too."""
PREFETCH_MAX: Final = 1_000
"""As many deliveries as the server lets be out on a stream."""
WORKERS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Limits of one consumer, and how patient it is.

    Raises:
        BadArgumentError: A value is not allowed; says which, what it was and what is allowed.
    """

    delivery_events_max: int = 0
    """Most events of a delivery. 0: the channel's transaction capacity."""
    delivery_bytes_max: int = 0
    """Most bytes of bodies of a delivery; a first event that is larger comes alone. 0: what `prefetch_bytes_max` makes
    of it."""
    prefetch: int = 8
    """Deliveries of each channel at each server that may be out and not settled, at most 1,000."""
    prefetch_bytes_max: int = 32 * MIB
    """Bytes of all deliveries together that are here and not settled. Each channel at each server may always have one
    delivery out, so that single large events go through, and none starves."""
    auto_ack: bool = True
    """Whether loops acknowledge what their body was done with. False: `ack` and `nack` are up to the caller."""
    idle_seconds: float | None = None
    """Loops end when nothing has come for so long. None: they wait for ever."""
    waits_for_channels: bool = False
    """Whether to wait for a channel that does not exist. False: ChannelNotFoundError."""
    reconnect_seconds: float = 0.1
    """Pause before a broken stream is begun anew; doubled each time, and shortened by chance down to a half of that."""
    reconnect_seconds_max: float = 10.0
    """Longest such pause, unless the server asks for a longer one."""
    retry_seconds: float = 1.0
    """How long a delivery is held back whose handler raised; doubled each time, and shortened by chance."""
    retry_seconds_max: float = 60.0
    """Longest such time."""
    close_seconds: float = 30.0
    """How long the end of a `with` block, and of `run`, waits for what is being worked on."""
    timeout_seconds: float = 20.0
    """How long a server may take to answer; see `connect`."""
    credentials: grpc.ChannelCredentials | None = None
    """For TLS. None: plain text."""
    options: Sequence[tuple[str, str | int]] = ()
    """Options of the gRPC channels, which win over the client's own."""
    hooks: ConsumerHooks = field(default_factory=ConsumerHooks)
    """Is told what happens."""

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
        _seconds("close_seconds", self.close_seconds, is_zero_allowed=True)

    def limits(self, lane_count: int) -> ConsumeLimits:
        """What each of so many streams asks for: its share of the bytes, cut into deliveries."""
        share = max(1, self.prefetch_bytes_max // (lane_count * self.prefetch))
        bytes_max = min(self.delivery_bytes_max, share) if self.delivery_bytes_max else share
        return ConsumeLimits(self.delivery_events_max, bytes_max, self.prefetch)

    def connection(self, endpoint: str) -> ConnectionSettings:
        """How to reach a server."""
        return ConnectionSettings(
            endpoint=endpoint,
            timeout_seconds=self.timeout_seconds,
            wait_for_ready=False,
            credentials=self.credentials,
            options=tuple(self.options),
        )


def names(field_name: str, given: str | Iterable[str]) -> list[str]:
    """The names that were given, each once, in order; a string is one name.

    Raises:
        BadArgumentError: There is none.
    """
    found = list(dict.fromkeys([given] if isinstance(given, str) else given))
    if not found:
        raise BadArgumentError(f"{field_name}: is empty; give at least one")
    return found


def lane_names(endpoints: str | Iterable[str], channels: str | Iterable[str]) -> list[tuple[str, str]]:
    """Each endpoint with each channel; servers take turns, so that the first turns go to all of them.

    Raises:
        BadArgumentError: There are none, or too many.
    """
    servers = names("endpoints", endpoints)
    lanes = [(endpoint, channel) for channel in names("channels", channels) for endpoint in servers]
    if len(lanes) > LANES_MAX:
        raise BadArgumentError(f"channels: {len(lanes)} with their servers; at most {LANES_MAX} are allowed")
    return lanes


def checked_workers(workers: int, *, ordered: bool) -> int:
    """The number of workers, where it is allowed."""
    _within("workers", workers, 1, 1 if ordered else WORKERS_MAX)
    return workers


def checked_delay(seconds: float) -> float:
    """The delay of a nack, where it is allowed."""
    _seconds("delay_seconds", seconds, is_zero_allowed=True)
    return seconds


def _within(name: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise BadArgumentError(f"{name}: is {value}; {minimum} to {maximum} are allowed")


def _seconds(name: str, value: float, *, is_zero_allowed: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0 or (is_zero_allowed and value == 0))):
        raise BadArgumentError(
            f"{name}: is {value}; it must be a finite number {'of at least' if is_zero_allowed else 'above'} 0"
        )
