import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace_client import ChannelFullError, Event, SendResult
from millrace_client.cli import bench_load
from millrace_client.cli.bench_load import STAMP_BYTES, Figures, Load, measure_put, measure_take
from tests.fake_clock import FakeClock


def load(**changes: Any) -> Load:
    settings: dict[str, Any] = {
        "event_count": 10,
        "seconds": 60.0,
        "body_bytes": 20,
        "header_count": 2,
        "key_count": 0,
        "events_per_second": 0.0,
    }
    return Load(**{**settings, **changes})


def test_events_of_a_load_are_as_it_says() -> None:
    """Size, headers and number are as requested; bodies begin with a timestamp."""
    events = list(load(key_count=3).events())
    assert {len(event.body) for event, _ in events} == {20}
    assert {len(event.headers) for event, _ in events} == {2}
    assert [key for _, key in events] == [f"key-{index % 3}" for index in range(10)]
    assert len({event.body[:STAMP_BYTES] for event, _ in events}) > 1


def test_events_of_a_load_end_with_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a number of events the time ends the load."""
    clock = FakeClock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    fake_time = SimpleNamespace(monotonic=clock, monotonic_ns=time.monotonic_ns, sleep=sleep)
    monkeypatch.setattr(bench_load, "time", fake_time)
    assert len(list(load(event_count=None, seconds=0.055, events_per_second=100.0).events())) == 7


def test_document_has_rates_and_percentiles() -> None:
    """Scripts read the values by name."""
    figures = Figures(1000, 1 << 20, 2.0, [index / 1000 for index in range(1, 101)])
    assert figures.document() == {
        "events": 1000,
        "seconds": 2.0,
        "events_per_second": 500.0,
        "mebibytes_per_second": 0.5,
        "latency_milliseconds": {"p50": 51.0, "p90": 91.0, "p99": 100.0, "p99.9": 100.0, "max": 100.0},
    }
    assert "500 events/s, 0.5 MiB/s, p50 51.00 ms" in figures.sentence("stored")


def test_document_of_nothing_is_whole() -> None:
    """An empty channel has no latencies, and causes no division by zero."""
    document = Figures().document()
    assert document["events_per_second"] == 0
    assert cast("dict[str, Any]", document["latency_milliseconds"])["p50"] is None
    assert Figures().sentence("taken") == "0 events taken in 0.00 s, 0 events/s, 0.0 MiB/s"


class FakeFuture:
    def result(self) -> None:
        """A result without errors."""


class FakeProducer:
    """Settles each event at once."""

    def __init__(self, error: ChannelFullError | None = None) -> None:
        self._error = error
        self.sent_count = 0

    def send(self, event: Event, key: str | None, callback: Callable[[SendResult], object] | None) -> FakeFuture:
        self.sent_count += 1
        if callback is not None:
            is_stored = self._error is None
            callback(SendResult("orders", is_stored, None, False, (), 1, self._error, True))
        return FakeFuture()

    def flush(self) -> int:
        return 0


def test_measure_put_counts_what_was_stored() -> None:
    """Events, bytes, and the latencies of a sample are counted."""
    figures = measure_put(cast("Any", FakeProducer()), load(event_count=100))
    assert (figures.event_count, figures.body_bytes, len(figures.latencies_seconds)) == (100, 2000, 7)


def test_measure_put_that_fails_ends_at_once() -> None:
    """The command reports the refusal."""
    producer = FakeProducer(ChannelFullError("full"))
    with pytest.raises(ChannelFullError):
        measure_put(cast("Any", producer), load(event_count=100))
    assert producer.sent_count == 1


def test_take_from_a_server_that_is_silent_for_a_while_goes_on() -> None:
    """The benchmark ends when the channel is empty, not when nothing arrives for a moment."""
    channel = _SlowChannel([3, 0, 4])
    figures = measure_take(cast("Any", channel), None, lambda: not channel.waits, 60.0)
    assert figures.event_count == 7


class _SlowChannel:
    """Returns this number of events for each consumer."""

    def __init__(self, waits: list[int]) -> None:
        self.waits = waits

    @contextmanager
    def consume(self, **_: object) -> Iterator[list[Any]]:
        yield [SimpleNamespace(bodies=lambda: [bytes(20)], ack=lambda: None) for _ in range(self.waits.pop(0))]
