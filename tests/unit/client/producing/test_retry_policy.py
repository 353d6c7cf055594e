import random

import pytest

from millrace_client import (
    CancelledError,
    ChannelFullError,
    ChannelNotFoundError,
    DrainingError,
    LogFailedError,
    MillraceError,
    ProducerConfig,
    ReplayingError,
    TxnCapacityError,
    UnavailableError,
)
from millrace_client._retries import Backoff, RetryPolicy

CONFIG = ProducerConfig(backoff_seconds=1.0, backoff_seconds_max=10.0, attempts_max=5)


@pytest.fixture
def policy() -> RetryPolicy:
    return RetryPolicy(
        CONFIG.attempts_max, Backoff(CONFIG.backoff_seconds, CONFIG.backoff_seconds_max, random.Random(1))
    )


def test_pauses_double_up_to_the_maximum(policy: RetryPolicy) -> None:
    """Each pause is drawn from the upper half of its range, also after many failures."""
    for failure_count, most in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 10.0), (1000, 10.0)):
        drawn = [policy.batch_pause_seconds(failure_count, None) for _ in range(100)]
        assert most / 2 <= min(drawn) < max(drawn) <= most


def test_pauses_are_never_shorter_than_the_server_asks(policy: RetryPolicy) -> None:
    """RetryInfo is honoured, also beyond the maximum."""
    error = ChannelFullError("full", retry_delay_seconds=60.0)
    assert policy.batch_pause_seconds(1, error) == 60.0
    assert policy.server_pause_seconds(1, error) == 60.0


def test_server_rests_longer_than_what_failed_there(policy: RetryPolicy) -> None:
    """A batch that may go to another server therefore does."""
    error = DrainingError("draining")
    longest = max(policy.batch_pause_seconds(2, error) for _ in range(100))
    assert min(policy.server_pause_seconds(2, error) for _ in range(100)) >= longest - 0.05


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (ChannelFullError("x"), True),
        (DrainingError("x"), True),
        (ReplayingError("x"), True),
        (LogFailedError("x"), True),
        (CancelledError("x"), False),
        (ChannelNotFoundError("x"), False),
        (TxnCapacityError("x"), False),
        (MillraceError("x", reason="MOON_FULL"), False),
    ],
)
def test_refusals_are_retried_where_time_may_help(
    policy: RetryPolicy, error: MillraceError, *, is_retried: bool
) -> None:
    """The reason of a refusal decides."""
    assert policy.retries_refused(error, 1) is is_retried


def test_broken_streams_are_retried_unless_they_would_break_again(policy: RetryPolicy) -> None:
    """Broken connections are retried; an unimplemented call is not."""
    assert policy.retries_in_flight(UnavailableError("x"), 1)
    assert policy.retries_in_flight(CancelledError("x"), 1)
    assert policy.retries_in_flight(MillraceError("x", reason="INTERNAL"), 1)
    assert not policy.retries_in_flight(MillraceError("x", reason="UNIMPLEMENTED"), 1)


def test_attempts_end_with_their_maximum(policy: RetryPolicy) -> None:
    """The maximum holds for all reasons."""
    assert policy.retries_refused(ChannelFullError("x"), 4)
    assert not policy.retries_refused(ChannelFullError("x"), 5)
    assert not policy.retries_in_flight(UnavailableError("x"), 5)
