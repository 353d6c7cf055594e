"""How to connect to a server and how to number events, for both APIs."""

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from millrace_client._endpoints import endpoint_problem, servers_of
from millrace_client._methods import METHODS
from millrace_client._retries import Backoff, StreamRepeats
from millrace_client.errors import BadArgumentError
from millrace_client.events import Stamp
from millrace_client.security import ChannelWithMetadata, FileWatch, Tls, Token, check_encryption

MIB = 1 << 20

REQUEST_BYTES_MAX = 64 * MIB
"""The largest request; larger ones are split. The server's default limit."""
RESPONSE_BYTES_MAX = 65 * MIB
"""The largest response: the server's limit, and space for fields that do not count towards it."""

TIMEOUT_SECONDS_MAX = 365 * 86_400
"""The longest timeout. gRPC takes one of centuries for one that is over."""

ATTEMPTS_MAX = 5
"""The most attempts of a call. gRPC allows no more."""
BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 2.0
BACKOFF_FACTOR = 2

_RECONNECT_MILLISECONDS = 100
_RECONNECT_MILLISECONDS_MAX = 500
"""Shorter than all attempts of a call together, so that a call finds a server that has restarted."""
_CONNECT_MILLISECONDS_MAX = 5_000
_PING_MILLISECONDS = 12_000
_PONG_MILLISECONDS = 5_000
"""A hanging server is abandoned at about the time when another one may have taken over its channels."""

_ID_BYTES = 16
_GAPS_MAX = 1_000


def service_config() -> str:
    """Returns gRPC's service config: repeats calls if the server could not be reached or the connection broke.

    Every call is safe to repeat. Streams are not repeated by gRPC; see `StreamRepeats`.
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


def stream_repeats(seconds: float) -> StreamRepeats:
    """Returns the same for a stream whose first response may take this long."""
    return StreamRepeats(seconds, ATTEMPTS_MAX, Backoff(BACKOFF_SECONDS, BACKOFF_SECONDS_MAX))


def channel_options() -> list[tuple[str, str | int]]:
    return [
        ("grpc.service_config", service_config()),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
        ("grpc.max_send_message_length", REQUEST_BYTES_MAX),
        # gRPC silently never repeats a call whose request does not fit into this; the default is 256 KiB.
        ("grpc.per_rpc_retry_buffer_size", REQUEST_BYTES_MAX + MIB),
        # A restarted server is found soon, and a server that does not respond is abandoned within one call.
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MILLISECONDS_MAX),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MILLISECONDS_MAX),
        # Streams may be silent for long, so pings must detect a dead connection.
        ("grpc.keepalive_time_ms", _PING_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", _PONG_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients share no connection, in particular not with one that a parent process made before a fork.
        ("grpc.use_local_subchannel_pool", 1),
        # Millrace servers are reached directly, even if the environment configures a web proxy.
        ("grpc.enable_http_proxy", 0),
    ]


_OF_SEVERAL: tuple[tuple[str, str | int], ...] = (("grpc.enable_retries", 0),)
"""For servers that share channels: one may be gone, which is to be noticed at once, since another one can be asked. So
gRPC does not repeat calls, which takes more than a second; see `OwnerSearch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach a server; see `connect`."""

    endpoint: str
    """As given: one server, or several that share channels."""
    timeout_seconds: float
    wait_for_ready: bool
    tls: Tls | None
    token: Token | None = None
    options: tuple[tuple[str, str | int], ...]

    def __post_init__(self) -> None:
        if not 0 < self.timeout_seconds <= TIMEOUT_SECONDS_MAX:
            raise BadArgumentError(
                f"timeout_seconds: is {self.timeout_seconds}; it must be above 0, and at most {TIMEOUT_SECONDS_MAX:,}"
            )
        for server in self.servers:
            check_encryption(self.token, server, is_encrypted=self.tls is not None)

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that the endpoint names."""
        return servers_of(self.endpoint)

    @property
    def waits_for_connection(self) -> bool:
        """Whether gRPC waits for a server: not where another one can be asked."""
        return self.wait_for_ready and len(self.servers) == 1

    def open_channel(self, api: Any) -> Any:
        """Returns a new channel of `grpc` or `grpc.aio` to the first server.

        The user's options override the client's own.

        Raises:
            BadArgumentError: A file of `tls`, or of the token, cannot be read.
        """
        server, *others = self.servers
        options = [*channel_options(), *(_OF_SEVERAL if others else ()), *self.options]
        # First: nothing is to be closed where it cannot be read.
        metadata = () if self.token is None else self.token.metadata()
        if self.tls is None:
            channel = api.insecure_channel(server, options)
        else:
            channel = api.secure_channel(server, self.tls.credentials(), options)
        return ChannelWithMetadata(channel, metadata) if metadata else channel

    def at(self, endpoint: str) -> "ConnectionSettings":
        """Returns the settings for another of the servers that share channels; see `_OF_SEVERAL`."""
        return replace(self, endpoint=endpoint, wait_for_ready=False, options=(*_OF_SEVERAL, *self.options))

    def watch_files(self) -> FileWatch | None:
        """Returns what shows that a channel opened from now on would use other files; None where there are none."""
        watched = [one for one in (self.tls, self.token) if one is not None]
        return FileWatch(*watched) if watched else None


def checked_endpoint(endpoint: str) -> str:
    """Returns an endpoint; raises BadArgumentError if a server is no `host:port`, nor a form of gRPC's own."""
    given: object = endpoint  # Without a type checker, a port alone is a likely slip.
    if not isinstance(given, str):
        raise BadArgumentError(f"endpoint: is {given!r}; give host:port as text, such as '127.0.0.1:7070'")
    for server in servers_of(endpoint):
        if problem := endpoint_problem(server):
            raise BadArgumentError(f"endpoint: {server!r} {problem}")
    return endpoint


def check_endpoints(endpoints: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the endpoints without repeats; raises BadArgumentError if there are none, or one is malformed."""
    several: Iterable[str] = endpoints
    if isinstance(endpoints, (str, bytes)) or not isinstance(endpoints, Iterable):
        several = [endpoints]
    listed = tuple(dict.fromkeys(map(checked_endpoint, several)))
    if not listed:
        raise BadArgumentError("endpoints: is empty; give at least one, each as host:port")
    return listed


class Numbering:
    """Numbers the events of each channel separately, for one client in one process. Threads may share it.

    A channel remembers a producer's numbers as intervals and accepts a limited number of gaps. So channels do not share
    numbers, and after many failed appends a new producer id begins; the numbers of a failed append are never used
    again, since it is seldom certain that none of its events was stored.
    """

    def __init__(self, producer_id: str | None = None, first_number: int = 1) -> None:
        self._producer_id = producer_id
        self._first_number = first_number
        self._series: dict[str, _Series] = {}
        self._lock = threading.Lock()

    def next_stamp(self, channel: str, event_count: int) -> Stamp:
        """Returns the next numbers for a channel, one for each event."""
        if event_count < 1:
            raise BadArgumentError(f"event_count: is {event_count}; it must be above 0")
        with self._lock:
            series = self._series.get(channel)
            if series is None or (series.gap_count >= _GAPS_MAX and self._producer_id is None):
                series = self._series[channel] = _Series(self._producer_id or new_txn_id(), self._first_number)
            first = series.next_number
            series.next_number += event_count
        return Stamp(series.producer_id, first, first + event_count - 1)

    def note_gap(self, channel: str) -> None:
        """Counts numbers of a channel that may not have been stored."""
        with self._lock:
            self._series[channel].gap_count += 1


@dataclass(slots=True)
class _Series:
    producer_id: str
    next_number: int
    gap_count: int = 0


def new_txn_id() -> str:
    return os.urandom(_ID_BYTES).hex()
