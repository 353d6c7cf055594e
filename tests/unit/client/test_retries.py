import random

from millrace_client._retries import Backoff
from tests.unit.client.consuming.fakes import NoJitter


def test_pauses_double_up_to_the_maximum() -> None:
    """Each failure in a row doubles the pause up to the maximum, however many follow."""
    backoff = Backoff(0.1, 1.0, NoJitter())
    assert [backoff.next_seconds() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.seconds_after(10_000) == 1.0


def test_reset_after_a_success_starts_again() -> None:
    """A success resets the pause."""
    backoff = Backoff(0.1, 1.0, NoJitter())
    backoff.next_seconds()
    backoff.next_seconds()
    backoff.reset()
    assert (backoff.failure_count, backoff.next_seconds()) == (0, 0.1)


def test_pause_asked_for_is_a_minimum() -> None:
    """The server's delay counts even if it is longer than the maximum; a shorter one changes nothing."""
    backoff = Backoff(0.5, 1.0, NoJitter())
    assert [backoff.next_seconds(asked) for asked in (30.0, 0.1, None)] == [30.0, 1.0, 1.0]


def test_chance_shortens_to_a_half_at_most() -> None:
    """Pauses vary within their bounds."""
    backoff = Backoff(1.0, 1.0, random.Random(7))
    pauses = [backoff.next_seconds() for _ in range(100)]
    assert len(set(pauses)) > 50
    assert 0.5 <= min(pauses) <= max(pauses) <= 1.0
