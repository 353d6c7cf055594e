import logging

import pytest

from millrace_client import ChannelFullError, UnavailableError
from millrace_client.producing.settling import REPEAT_SECONDS, RateLimitedLog


class Bench:
    """A log with a clock that stands still."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        self.now = 100.0
        self.log = RateLimitedLog(lambda: self.now)
        self._caplog = caplog

    def reported(self) -> list[str]:
        messages = list(self._caplog.messages)
        self._caplog.clear()
        return messages


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Bench:
    return Bench(caplog)


def test_refusals_of_one_kind_are_logged_once_per_interval(bench: Bench) -> None:
    """The same line does not fill the log, but a lasting refusal is logged again after the interval."""
    for _ in range(3):
        bench.log.retrying("a:1", "orders", ChannelFullError("full"), 0.1)
    bench.log.retrying("b:1", "orders", ChannelFullError("full"), 0.1)
    assert bench.reported() == [
        f"a batch for orders at {server} is sent again, first in 0.1 s: full" for server in ("a:1", "b:1")
    ]
    bench.now += REPEAT_SECONDS
    bench.log.retrying("a:1", "orders", ChannelFullError("full"), 5.0)
    assert len(bench.reported()) == 1


def test_failures_are_logged_with_all_their_events(bench: Bench) -> None:
    """Failures that were not logged at once are counted in the next line."""
    bench.log.failed("orders", 1, UnavailableError("gone"))
    bench.log.failed("orders", 20, UnavailableError("gone"))
    assert bench.reported() == ["1 event for orders not stored: gone"]
    bench.now += REPEAT_SECONDS
    bench.log.failed("orders", 5, UnavailableError("gone"))
    assert bench.reported() == ["25 events for orders not stored: gone"]


def test_servers_that_cannot_be_reached_are_logged_once(bench: Bench) -> None:
    """Nothing is logged as long as one server can be reached; each later outage is logged again."""
    for is_any in (True, False, False, True, False):
        bench.log.reachable(is_any=is_any, names="a:1, b:1")
    assert bench.reported() == ["cannot reach a:1, b:1; events wait in the buffer"] * 2
