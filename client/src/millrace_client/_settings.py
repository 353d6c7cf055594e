"""What both faces need to connect, and to number what they send."""

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from millrace_client._service_config import channel_options
from millrace_client.errors import BadArgumentError
from millrace_client.events import Stamp

_ID_BYTES = 16
_GAPS_MAX = 1_000


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
