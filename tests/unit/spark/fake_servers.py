"""Servers with channels in memory, with the calls of a stream's driver."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Self

import millrace_client as millrace

_STEP_SECONDS = 0.005


@dataclass
class FakeChannelState:
    """The state of a channel on a server."""

    name: str
    channel_id: str
    first: int = 1
    next: int = 1
    body_bytes: int = 0
    holes: list[range] = field(default_factory=list)
    reader_id: str | None = None
    epoch: int = 100
    acknowledged: list[int] = field(default_factory=list)
    renewals: int = 0
    type: millrace.ChannelType = millrace.ChannelType.MEMORY

    def next_event(self, sequence: int) -> int:
        """Returns the first event at or after a sequence, or the next sequence if there is none."""
        for hole in sorted(self.holes, key=lambda hole: hole.start):
            if sequence in hole:
                sequence = hole.stop
        return min(sequence, self.next)


class FakeServers:
    """All servers. Use `connect` in place of the client's.

    Attributes:
        away: Endpoints that cannot be reached.
        silent: Those that do not tell what channels hold, though claims on them live.
        refusal: What those say instead.
        fault: What each renewal raises, where it is to.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.channels: dict[tuple[str, str], FakeChannelState] = {}
        self.away: set[str] = set()
        self.silent: set[str] = set()
        self.refusal: millrace.MillraceError = millrace.DeadlineError("no response")
        self.fault: Exception | None = None
        self._made_count = 0

    def make(self, endpoint: str, name: str = "orders", event_count: int = 0) -> FakeChannelState:
        """Creates a channel, and replaces an existing one."""
        with self.lock:
            self._made_count += 1
            state = FakeChannelState(name, f"id-{self._made_count}", next=1 + event_count)
            self.channels[endpoint, name] = state
            return state

    def connect(self, endpoint: str, **_settings: Any) -> "FakeClient":
        """Replaces `millrace_client.connect`."""
        return FakeClient(self, endpoint)

    @contextmanager
    def reached(self, endpoint: str, name: str) -> Iterator[FakeChannelState]:
        """Returns the state of a channel for a call."""
        with self.lock:
            if endpoint in self.away:
                raise millrace.UnavailableError(f"cannot reach {endpoint}", channel=name)
            if (endpoint, name) not in self.channels:
                raise millrace.ChannelNotFoundError(f"{name!r} does not exist", channel=name)
            yield self.channels[endpoint, name]


class FakeClient:
    """A connection to a server, including its admin calls."""

    def __init__(self, fakes: FakeServers, endpoint: str) -> None:
        self.fakes = fakes
        self.endpoint = endpoint
        self.admin = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Does nothing."""

    def channel(self, name: str) -> "FakeChannel":
        return FakeChannel(self, name)

    def list_channels(self) -> list[Any]:
        with self.fakes.lock:
            if self.endpoint in self.fakes.away:
                raise millrace.UnavailableError(f"cannot reach {self.endpoint}")
            return [
                self.get_channel(name) for endpoint, name in sorted(self.fakes.channels) if endpoint == self.endpoint
            ]

    def refuse_if_silent(self) -> None:
        if self.endpoint in self.fakes.silent:
            raise self.fakes.refusal

    def get_channel(self, name: str) -> Any:
        self.refuse_if_silent()
        with self.fakes.reached(self.endpoint, name) as state:
            gauges = SimpleNamespace(
                first_sequence=state.first,
                next_sequence=state.next,
                body_bytes=state.body_bytes,
                queued_events=state.next - state.first,
                taken_events=0,
            )
            claim = SimpleNamespace(reader_id=state.reader_id, epoch=state.epoch) if state.reader_id else None
            return SimpleNamespace(
                name=name,
                channel_id=state.channel_id,
                config=SimpleNamespace(type=state.type),
                gauges=gauges,
                claim=claim,
                state=millrace.ChannelState.OPEN,
            )


class FakeChannel:
    """A handle on a channel."""

    def __init__(self, client: FakeClient, name: str) -> None:
        self.client = client
        self.name = name

    def claim(self, reader_id: str, lease_seconds: float | None = None, *, takeover: bool = False) -> "FakeClaim":
        with self.client.fakes.reached(self.client.endpoint, self.name) as state:
            if state.reader_id not in {None, reader_id} and not takeover:
                raise millrace.ChannelClaimedError(f"reader {state.reader_id!r} has claimed the channel")
            if state.reader_id is None or takeover:
                state.epoch += 1
            state.reader_id = reader_id
            return FakeClaim(self, state, reader_id, lease_seconds or 30.0)

    def find_sequence(self, time: datetime) -> millrace.FoundSequence:
        """Each event was committed as many seconds after 1970 as its sequence."""
        with self.client.fakes.reached(self.client.endpoint, self.name) as state:
            sequence = state.next_event(max(math.ceil(time.timestamp()), state.first))
            return millrace.FoundSequence(sequence, time if sequence < state.next else None)


class FakeClaim:
    """A granted claim."""

    def __init__(self, channel: FakeChannel, state: FakeChannelState, reader_id: str, lease_seconds: float) -> None:
        self._channel = channel
        self.channel = channel.name
        self.reader_id = reader_id
        self.lease_seconds = lease_seconds
        self.channel_id, self.epoch = state.channel_id, state.epoch
        self.first_sequence, self.next_sequence = state.first, state.next
        self._pause = threading.Event()

    @contextmanager
    def _held(self) -> Iterator[FakeChannelState]:
        client = self._channel.client
        with client.fakes.reached(client.endpoint, self._channel.name) as state:
            if (state.reader_id, state.epoch, state.channel_id) != (self.reader_id, self.epoch, self.channel_id):
                raise millrace.LeaseExpiredError("the claim has ended")
            yield state

    def renew(self, wait_seconds: float = 0.0) -> float:
        while True:
            if self._channel.client.fakes.fault is not None:
                raise self._channel.client.fakes.fault
            with self._held() as state:
                has_news = state.next > self.next_sequence
                self.first_sequence, self.next_sequence = state.first, state.next
                if has_news or wait_seconds <= 0:
                    state.renewals += 1
                    return self.lease_seconds
            self._pause.wait(_STEP_SECONDS)
            wait_seconds -= _STEP_SECONDS

    def read(self, from_sequence: int, to_sequence: int) -> Iterator[Any]:
        self._channel.client.refuse_if_silent()
        with self._held() as state:
            sequence = state.next_event(from_sequence)
            if sequence < (to_sequence or state.next):
                yield SimpleNamespace(first_sequence=sequence)

    def acknowledge(self, through_sequence: int) -> int:
        with self._held() as state:
            if through_sequence >= state.next:
                raise millrace.SequenceGoneError("it is not there yet")
            state.acknowledged.append(through_sequence)
            state.first = state.next_event(max(state.first, through_sequence + 1))
            return state.first

    def release(self) -> None:
        with self._held() as state:
            state.reader_id = None
