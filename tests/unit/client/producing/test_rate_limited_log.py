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

    def told(self) -> list[str]:
        messages = list(self._caplog.messages)
        self._caplog.clear()
        return messages


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Bench:
    return Bench(caplog)


def test_refusals_of_one_kind_are_told_once_in_a_while(bench: Bench) -> None:
    """A log is not filled with one and the same line, but what lasts is told again."""
    for _ in range(3):
        bench.log.retrying("a:1", "orders", ChannelFullError("full"), 0.1)
    bench.log.retrying("b:1", "orders", ChannelFullError("full"), 0.1)
    assert bench.told() == [
        f"a batch for orders at {server} is sent again, first in 0.1 s: full" for server in ("a:1", "b:1")
    ]
    bench.now += REPEAT_SECONDS
    bench.log.retrying("a:1", "orders", ChannelFullError("full"), 5.0)
    assert len(bench.told()) == 1


def test_failures_are_told_with_all_their_events(bench: Bench) -> None:
    """What was not told at once is counted in the next line."""
    bench.log.failed("orders", 1, UnavailableError("gone"))
    bench.log.failed("orders", 20, UnavailableError("gone"))
    assert bench.told() == ["1 event for orders not stored: gone"]
    bench.now += REPEAT_SECONDS
    bench.log.failed("orders", 5, UnavailableError("gone"))
    assert bench.told() == ["25 events for orders not stored: gone"]


def test_servers_that_cannot_be_reached_are_told_once(bench: Bench) -> None:
    """As long as one can be, nothing is to be told; and the next time is told anew."""
    for is_any in (True, False, False, True, False):
        bench.log.reachable(is_any=is_any, names="a:1, b:1")
    assert bench.told() == ["cannot reach a:1, b:1; events wait in the buffer"] * 2
