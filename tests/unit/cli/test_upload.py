from collections.abc import Sequence
from typing import Any, cast

import pytest

from millrace_client import (
    ChannelFullError,
    DeadlineError,
    Event,
    MillraceError,
    Stamp,
    TxnCapacityError,
    UnavailableError,
)
from millrace_client.cli.put_account import PutAccount
from millrace_client.cli.upload import Patience, Upload
from tests.unit.cli.fake_client import FakeChannel


class FakeClock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class FakeProgress:
    def __init__(self) -> None:
        self.commits: list[tuple[int, int]] = []
        self.waits: list[str] = []

    def committed(self, line_count: int, input_bytes: int, /) -> None:
        self.commits.append((line_count, input_bytes))

    def waiting(self, error: MillraceError, _patience_seconds: float, /) -> None:
        self.waits.append(error.reason)


class Bench:
    """An upload with all that it needs."""

    def __init__(self, channel: FakeChannel, patience_seconds: float = 10.0, skipped_lines: int = 0) -> None:
        self.clock = FakeClock()
        self.progress = FakeProgress()
        self.account = PutAccount("orders", "p", skipped_lines=skipped_lines)
        patience = Patience(patience_seconds, self.clock.read, self.clock.sleep)
        self.upload = Upload(cast("Any", channel), {}, self.account, patience)

    def send(self, lines: Sequence[bytes]) -> None:
        self.upload.send(list(lines), self.progress)


def full(retry_delay_seconds: float | None = 0.5) -> ChannelFullError:
    return ChannelFullError("full", channel="orders", retry_delay_seconds=retry_delay_seconds)


def test_send_several_batches_numbers_their_lines(orders: FakeChannel) -> None:
    """Stamps count lines from 0 through the whole input, skipped ones included."""
    bench = Bench(orders, skipped_lines=10)
    bench.send([b"a", b"b"])
    bench.send([b"c"])
    assert orders.stamps == [Stamp("p", 10, 11), Stamp("p", 12, 12)]
    assert bench.progress.commits == [(2, 4), (1, 2)]
    assert (bench.account.events_committed, bench.account.first_sequence, bench.account.last_sequence) == (3, 1, 3)


def test_send_with_headers_gives_them_to_each_event(orders: FakeChannel) -> None:
    """The lines become events with the same headers."""
    upload = Upload(cast("Any", orders), {"k": "v"}, PutAccount("orders", "p"), Patience(0))
    upload.send([b"a", b"b"], FakeProgress())
    assert list(orders.events) == [Event(b"a", {"k": "v"}, 1), Event(b"b", {"k": "v"}, 2)]


def test_send_to_a_full_channel_waits_as_the_server_says(orders: FakeChannel) -> None:
    """The same batch with the same stamp goes again after the server's delay, until there is room."""
    orders.append_errors.extend([full(0.5), full(None), full(60.0), None])
    bench = Bench(orders)
    bench.send([b"a"])
    assert bench.clock.pauses == [0.5, 0.2, 1.0]
    assert orders.stamps == [Stamp("p", 0, 0)] * 4
    assert bench.progress.waits == ["CHANNEL_FULL"] * 3
    assert bench.account.events_committed == 1


def test_send_to_a_full_channel_beyond_the_patience_gives_up(orders: FakeChannel) -> None:
    """One last try is made when the patience ends, then the refusal is raised."""
    orders.append_errors.extend([full(0.6)] * 9)
    bench = Bench(orders, patience_seconds=1.0)
    with pytest.raises(ChannelFullError):
        bench.send([b"a"])
    assert bench.clock.pauses == [0.6, pytest.approx(0.4)]
    assert (bench.account.lines_read, bench.account.lines_committed) == (1, 0)


def test_send_without_patience_tries_once(orders: FakeChannel) -> None:
    """Patience 0 means no waiting at all."""
    orders.append_errors.append(full())
    bench = Bench(orders, patience_seconds=0.0)
    with pytest.raises(ChannelFullError):
        bench.send([b"a"])
    assert bench.clock.pauses == []


def test_send_after_progress_has_its_whole_patience_again(orders: FakeChannel) -> None:
    """Patience is for each batch: a slow consumer does not use it up over time."""
    orders.append_errors.extend([full(1.0), None, full(1.0), None])
    bench = Bench(orders, patience_seconds=1.5)
    bench.send([b"a"])
    bench.send([b"b"])
    assert bench.account.events_committed == 2


def test_send_whose_answer_came_late_stores_once(orders: FakeChannel) -> None:
    """A batch that was stored although its answer did not come is recognized by its stamp."""
    orders.append(iter([b"a"]), Stamp("p", 0, 0))
    orders.append_errors.extend([DeadlineError("late"), None])
    bench = Bench(orders)
    bench.send([b"a", b"b"])
    assert [event.body for event in orders.events] == [b"a", b"b"]
    assert (bench.account.lines_committed, bench.account.events_committed) == (2, 1)


@pytest.mark.parametrize("error", [TxnCapacityError("too many"), UnavailableError("gone")])
def test_send_that_time_cannot_help_fails_at_once(orders: FakeChannel, error: MillraceError) -> None:
    """Neither a refusal for good nor a server that has gone is waited for."""
    orders.append_errors.append(error)
    bench = Bench(orders)
    with pytest.raises(type(error)):
        bench.send([b"a"])
    assert bench.clock.pauses == []
