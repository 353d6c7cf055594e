"""Channels of a fake server: they store, refuse or break off as a test requires."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from millrace.columns import ColumnsCutter
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import Producer, ProducerConfig
from millrace_client.producing.accumulator import Accumulator
from tests.unit.client.fake_server import FakeServer, RefusalError

QUICK: dict[str, Any] = {"linger_seconds": 0.001, "backoff_seconds": 0.01, "backoff_seconds_max": 0.05}

Outcome = RefusalError | str | None
"""The result of one request: None stores it; a refusal is returned; "break" ends the stream before the request is
stored, "lose" after that; "hang" gives no response."""

Judge = Callable[[list[bytes]], Outcome]

COMMIT_TIME = datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC)


class FakeChannels:
    """The appends of a fake server.

    Attributes:
        stored: The bodies of each channel, in order.
        outcomes: The results of the next requests; when none are left, `judge` decides.
        batches: The bodies of each request received, refused ones included.
        headers: The headers of each stored event.
    """

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.stored: dict[str, list[bytes]] = {}
        self.headers: list[dict[str, str]] = []
        self.batches: list[list[bytes]] = []
        self.stamps: list[Any] = []
        self.outcomes: deque[Outcome] = deque()
        self.judge: Judge = lambda _bodies: None
        self.stream_count = 0
        self._numbers: set[tuple[str, str, int]] = set()
        server.script("AppendStream", self._serve)

    @property
    def address(self) -> str:
        return self.server.address

    def _serve(self, requests: Iterator[pb.AppendStreamRequest], context: Any) -> Iterator[pb.AppendStreamResponse]:
        self.stream_count += 1
        for request in requests:
            rows = list(ColumnsCutter(request.columns).rows(0, request.columns.count))
            self.batches.append([body for _, body in rows])
            self.stamps.append(request.stamp)
            outcome = self.outcomes.popleft() if self.outcomes else self.judge(self.batches[-1])
            if isinstance(outcome, RefusalError):
                yield pb.AppendStreamResponse(error=outcome.status)
                continue
            if outcome == "hang":
                self.server.closing.wait()
            if outcome == "break":
                raise _unavailable()
            response = self._store(request, rows)
            if outcome == "lose":
                raise _unavailable()
            yield response

    def _store(self, request: pb.AppendStreamRequest, rows: list[tuple[dict[str, str], bytes]]) -> Any:
        events = self.stored.setdefault(request.channel, [])
        first = len(events) + 1
        stamp = request.stamp
        new = 0
        for number, (headers, body) in zip(range(stamp.first_sequence, stamp.last_sequence + 1), rows, strict=True):
            if (request.channel, stamp.producer_id, number) in self._numbers:
                continue
            self._numbers.add((request.channel, stamp.producer_id, number))
            events.append(body)
            self.headers.append(headers)
            new += 1
        return pb.AppendStreamResponse(
            first_sequence=first if new else 0,
            last_sequence=len(events) if new else 0,
            deduplicated=new < len(rows),
            commit_time=COMMIT_TIME if new else None,
        )


def _unavailable() -> RefusalError:
    from tests.unit.client.fake_server import unavailable

    return unavailable()


@pytest.fixture
def channels(server: FakeServer) -> FakeChannels:
    """Channels that store all events."""
    return FakeChannels(server)


@pytest.fixture
def more_channels() -> Iterator[Callable[[], FakeChannels]]:
    """Further servers."""
    with ExitStack() as stack:

        def make() -> FakeChannels:
            server = FakeServer()
            stack.callback(server.close)
            return FakeChannels(server)

        yield make


class AdvancedClock:
    """The clock of producers: real time, which a test advances by more than any machine pauses.

    A producer that waits for a response meanwhile needs a `timeout_seconds` above that.
    """

    def __init__(self) -> None:
        self.advanced_seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.advanced_seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> AdvancedClock:
    """The clock of the producers that the test creates."""
    clock = AdvancedClock()
    monkeypatch.setattr(asyncio.SelectorEventLoop, "time", lambda _loop: clock())
    monkeypatch.setattr(Accumulator.__init__, "__defaults__", (clock,))
    return clock


MakeProducer = Callable[..., Producer]


@pytest.fixture
def producer_of() -> Iterator[MakeProducer]:
    """Creates producers with minimal delays, and closes them in the end."""
    producers = []

    def make(*servers: FakeChannels | str, **options: Any) -> Producer:
        hooks = options.pop("hooks", None)
        config = ProducerConfig(**{**QUICK, **options})
        endpoints = [one if isinstance(one, str) else one.address for one in servers]
        producers.append(Producer(endpoints, "orders", config=config, hooks=hooks))
        return producers[-1]

    yield make
    for producer in producers:
        producer.close(0)
