import pytest

from millrace_server.agent.backoff import Backoff, EarnedBackoff


def test_next_seconds_doubles_up_to_its_maximum() -> None:
    """Each delay between half of its nominal length and all of it, however often one fails."""
    backoff = Backoff(first_seconds=1.0, max_seconds=10.0)
    for nominal in (1.0, 2.0, 4.0, 8.0, *[10.0] * 1_000):
        assert nominal / 2 <= backoff.next_seconds() <= nominal


def test_next_seconds_of_many_are_not_the_same() -> None:
    """Those who failed together do not come back together."""
    assert len({Backoff().next_seconds() for _ in range(20)}) > 1


@pytest.mark.parametrize(
    ("asked", "least", "most"), [(2.0, 2.0, 2.5), (0.0, 0.5, 0.625), (-1.0, 0.5, 0.625), (1e9, 10, 10)]
)
def test_next_seconds_asked_for_are_kept_within_reason(asked: float, least: float, most: float) -> None:
    """Neither at once nor after years; and they make the following ones no longer."""
    backoff = Backoff(first_seconds=1.0, max_seconds=10.0)
    for _ in range(5):
        assert least <= backoff.next_seconds(asked) <= most
    assert backoff.next_seconds() <= 1.0


def test_reset_begins_with_the_first_delay_again() -> None:
    """What was long ago counts no more."""
    backoff = Backoff(first_seconds=1.0, max_seconds=10.0)
    for _ in range(5):
        backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() <= 1.0


def test_next_seconds_that_are_earned_begin_anew_only_after_something_was_done() -> None:
    """A server that connects and never answers takes long to fail, and must not be tried all the time for that."""
    done = 0
    backoff = EarnedBackoff(lambda: done, 1.0, 10.0)
    for _ in range(5):
        backoff.next_seconds()
        backoff.reset()
    assert backoff.next_seconds() >= 5.0
    done = 1
    assert backoff.next_seconds() <= 1.0
    assert backoff.next_seconds() > 0.99
