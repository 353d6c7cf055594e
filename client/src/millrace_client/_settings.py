"""How to connect to a server and how to number events, for both APIs."""

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from millrace_client._methods import METHODS
from millrace_client.errors import BadArgumentError
from millrace_client.events import Stamp

MIB = 1 << 20

REQUEST_BYTES_MAX = 64 * MIB
"""Largest request that is sent; what is larger goes as several. The server's default limit."""
ANSWER_BYTES_MAX = 65 * MIB
"""Largest answer that is taken: the server's limit, and room for what does not count to it."""

ATTEMPTS_MAX = 5
"""How often a call is tried in all. gRPC allows no more."""
BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 2.0
BACKOFF_FACTOR = 2

_RECONNECT_MILLISECONDS = 100
_RECONNECT_MILLISECONDS_MAX = 500
"""Shorter than a call's attempts take together, so that a call finds a server that came back before it."""
_CONNECT_MILLISECONDS_MAX = 5_000
_PING_MILLISECONDS = 30_000
_PONG_MILLISECONDS = 10_000

_ID_BYTES = 16
_GAPS_MAX = 1_000


def service_config() -> str:
    """Repeats where the server could not be reached or the connection broke; every call is safe to repeat.

    Of streams, those that send one request are begun anew as long as nothing has come.
    """
    names = [{"service": method.service, "method": method.name} for method in METHODS if method.is_repeatable]
    retry_policy = {
        "maxAttempts": ATTEMPTS_MAX,
        "initialBackoff": f"{BACKOFF_SECONDS}s",
        "maxBackoff": f"{BACKOFF_SECONDS_MAX}s",
        "backoffMultiplier": BACKOFF_FACTOR,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return json.dumps({"methodConfig": [{"name": names, "retryPolicy": retry_policy}]})


def channel_options() -> list[tuple[str, str | int]]:
    """Options of the gRPC channel."""
    return [
        ("grpc.service_config", service_config()),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.max_send_message_length", REQUEST_BYTES_MAX),
        # A call whose request does not fit into this is never repeated, without a word; the default is 256 KiB.
        ("grpc.per_rpc_retry_buffer_size", REQUEST_BYTES_MAX + MIB),
        # A server that starts anew is found soon, and one that does not answer is given up within one call.
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MILLISECONDS_MAX),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MILLISECONDS_MAX),
        # Streams may be silent for long; so a dead connection must show by itself.
        ("grpc.keepalive_time_ms", _PING_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", _PONG_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients share no connection, least of all with one that a parent process made before a fork.
        ("grpc.use_local_subchannel_pool", 1),
        # Millrace servers are reached directly, whatever proxy the environment names for the web.
        ("grpc.enable_http_proxy", 0),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Says how to reach a server; see `connect`."""

    endpoint: str
    timeout_seconds: float
    wait_for_ready: bool
    credentials: grpc.ChannelCredentials | None
    options: tuple[tuple[str, str | int], ...]

    def __post_init__(self) -> None:
        if not self.timeout_seconds > 0:
            raise BadArgumentError(f"timeout_seconds: is {self.timeout_seconds}; it must be above 0")

    def all_options(self) -> list[tuple[str, str | int]]:
        """The client's own options and the user's, which win."""
        return [*channel_options(), *self.options]


def check_endpoints(endpoints: str | Iterable[str]) -> tuple[str, ...]:
    """The endpoints as a list without repeats.

    Raises:
        BadArgumentError: There is none, or one has no port: gRPC would take one that is nobody's here, and wait.
    """
    listed = tuple(dict.fromkeys([endpoints] if isinstance(endpoints, str) else endpoints))
    if not listed:
        raise BadArgumentError("endpoints: is empty; give at least one, each as host:port")
    for endpoint in listed:
        if ":" not in endpoint or endpoint.endswith("]"):
            raise BadArgumentError(f"endpoints: {endpoint!r} has no port; write host:port, such as 127.0.0.1:7070")
    return listed


class Numbering:
    """Numbers events for each channel apart, for one client in one process. Safe to share by threads.

    Args:
        producer_id: Under which name. None: one that nobody else has.
        first_number: What each channel's numbers begin with.

    A channel remembers a producer's numbers as intervals and bears only so many gaps. So numbers are not shared by
    channels, and where appends have failed often, a new producer begins; what a failed append took is never used again,
    since it is seldom certain that nothing of it was stored.
    """

    def __init__(self, producer_id: str | None = None, first_number: int = 1) -> None:
        self._producer_id = producer_id
        self._first_number = first_number
        self._series: dict[str, _Series] = {}
        self._lock = threading.Lock()

    def next_stamp(self, channel: str, event_count: int) -> Stamp:
        """The next numbers for a channel, one for each event."""
        if event_count < 1:
            raise BadArgumentError(f"event_count: is {event_count}; it must be above 0")
        with self._lock:
            series = self._series.get(channel)
            if series is None or (series.gap_count >= _GAPS_MAX and self._producer_id is None):
                series = self._series[channel] = _Series(self._producer_id or _new_id(), self._first_number)
            first = series.next_number
            series.next_number += event_count
        return Stamp(series.producer_id, first, first + event_count - 1)

    def note_gap(self, channel: str) -> None:
        """Counts numbers of a channel that were perhaps not stored."""
        with self._lock:
            self._series[channel].gap_count += 1


@dataclass(slots=True)
class _Series:
    producer_id: str
    next_number: int
    gap_count: int = 0


def new_txn_id() -> str:
    """An id that nobody else has."""
    return _new_id()


def _new_id() -> str:
    return os.urandom(_ID_BYTES).hex()
