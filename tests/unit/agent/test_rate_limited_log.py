import logging

import structlog
from structlog.testing import capture_logs

from millrace_server.agent.rate_limited_log import (
    FAILURE_BURST,
    FAILURE_SECONDS,
    LINE_SECONDS,
    FailureLog,
    RateLimitedLog,
)
from tests.fake_clock import FakeClock


def test_log_of_the_same_kind_again_is_limited_and_counted() -> None:
    """The first is logged at once, the following ones are counted, and the counts are complete."""
    now = 100.0
    limited = RateLimitedLog(structlog.stdlib.get_logger().bind(source="app"), lambda: now)
    with capture_logs() as entries:
        limited.log(logging.WARNING, "events were dropped", "a", 2, channel="a")
        for _ in range(3):
            limited.log(logging.WARNING, "events were dropped", "a", 5, channel="a")
        now += LINE_SECONDS
        limited.log(logging.WARNING, "events were dropped", "a", 1, channel="a")
    assert [(entry["events"], entry["channel"], entry["source"]) for entry in entries] == [
        (2, "a", "app"),
        (16, "a", "app"),
    ]


def test_flush_logs_what_is_suppressed_once() -> None:
    """At its end, a source reports what it has not reported yet."""
    limited = RateLimitedLog(structlog.stdlib.get_logger(), lambda: 0.0)
    with capture_logs() as entries:
        for count in (1, 2, 3):
            limited.log(logging.WARNING, "events were dropped", "a", count, channel="a")
        limited.flush()
        limited.flush()
    assert [(entry["events"], entry["channel"]) for entry in entries] == [(1, "a"), (5, "a")]


def test_log_of_another_kind_is_logged_at_once() -> None:
    """One channel's failures do not hide another's."""
    limited = RateLimitedLog(structlog.stdlib.get_logger(), lambda: 0.0)
    with capture_logs() as entries:
        for about in ("a", "b", "a"):
            limited.log(logging.ERROR, "events were dropped", about, 1)
        limited.log(logging.ERROR, "events were set aside", "a", 1)
    assert [entry["log_level"] for entry in entries] == ["error"] * 3


def test_log_of_very_many_kinds_remembers_a_bounded_number() -> None:
    """Untrusted input may create any number of kinds."""
    limited = RateLimitedLog(structlog.stdlib.get_logger(), lambda: 0.0)
    with capture_logs():
        for number in range(1_000):
            limited.log(logging.ERROR, "events were dropped", str(number), 1)
            limited.log(logging.ERROR, "events were dropped", str(number), 1)
    assert len(limited._limits) <= 100
    assert len(limited._suppressed) <= 100


def test_admits_of_one_reason_for_long_is_true_once() -> None:
    """An unreachable target is logged once, however long the outage lasts."""
    clock = FakeClock()
    failures = FailureLog(clock)
    reported = []
    for _ in range(1_000):
        reported.append(failures.admits("cannot reach the collector"))
        clock.now += 30.0
    assert reported == [True] + [False] * 999
    assert failures.suppressed_count == 999


def test_admits_of_reasons_that_alternate_is_true_once_for_each() -> None:
    """Two alternating reasons are logged once each."""
    failures = FailureLog(FakeClock())
    reported = [failures.admits(reason) for _ in range(100) for reason in ("timed out", "refused")]
    assert reported == [True, True] + [False] * 198


def test_admits_of_reasons_that_differ_in_numbers_takes_them_for_one() -> None:
    """Reasons that differ only in counts or ports count as one."""
    failures = FailureLog(FakeClock())
    assert [failures.admits(f"holds {count} of 100 events") for count in range(50)] == [True] + [False] * 49


def test_admits_of_ever_new_reasons_is_limited_in_time() -> None:
    """New reasons are limited to a few lines, then one per minute."""
    clock = FakeClock()
    failures = FailureLog(clock)
    words = ["".join(chr(ord("a") + int(digit)) for digit in f"{number:04}") for number in range(1_200)]
    told_at = []
    for word in words:
        if failures.admits(word):
            told_at.append(clock.now - 1_000.0)
        clock.now += 1.0
    assert told_at[:FAILURE_BURST] == [0.0, 1.0, 2.0, 3.0]
    assert len(told_at) <= FAILURE_BURST + 1_200 / FAILURE_SECONDS


def test_admits_of_flapping_is_limited_but_never_silent() -> None:
    """A component that fails and recovers in turns is logged at a low rate, and a lasting failure is logged."""
    clock = FakeClock()
    failures = FailureLog(clock)
    admitted = []
    for _ in range(600):
        admitted.append(failures.admits("timed out"))
        assert failures.end_outage() is admitted[-1]
        clock.now += 1.0
    assert FAILURE_BURST <= sum(admitted) <= FAILURE_BURST + 10
    # From here on it always fails, and this is logged before long.
    later = []
    for _ in range(70):
        later.append(failures.admits("timed out"))
        clock.now += 1.0
    assert sum(later) == 1


def test_end_outage_of_which_nothing_was_logged_is_false() -> None:
    """A recovery is not logged without its failure."""
    assert not FailureLog(FakeClock()).end_outage()


def test_end_outage_lets_the_same_reason_be_logged_again() -> None:
    """A failure that returns is logged."""
    failures = FailureLog(FakeClock())
    assert failures.admits("timed out")
    assert failures.end_outage()
    assert failures.admits("timed out")


def test_admits_of_many_reasons_remembers_a_bounded_number() -> None:
    """Memory does not grow with the number of reasons."""
    clock = FakeClock()
    failures = FailureLog(clock)
    for number in range(200):
        clock.now += FAILURE_SECONDS
        assert failures.admits("x" * number)
    assert len(failures._logged_shapes) <= 16
