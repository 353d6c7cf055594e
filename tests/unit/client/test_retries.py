import random

import pytest

from millrace_client._retries import Backoff, passes_with_next_owner
from millrace_client.errors import ChannelFullError, MillraceError, NotOwnerError, ReplayingError, UnavailableError
from tests.unit.client.consuming.fakes import NoJitter


def test_pauses_double_up_to_the_maximum() -> None:
    """Each failure in a row doubles the pause up to the maximum, however many follow."""
    backoff = Backoff(0.1, 1.0, NoJitter())
    assert [backoff.next_seconds() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.seconds_after(10_000) == 1.0


def test_pauses_until_a_channel_has_its_next_owner_stay_short() -> None:
    """They end soon after it has taken over, however long that took, and whatever the longest pause is."""
    backoff = Backoff(0.1, 5.0, NoJitter())
    assert [backoff.next_seconds(awaits_owner=True) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert backoff.next_seconds(0.7, awaits_owner=True) == 0.7
    assert backoff.next_seconds() == 5.0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotOwnerError("away"), [True, True]),
        (UnavailableError("gone"), [False, True]),
        (ReplayingError("soon"), [False, True]),
        (ChannelFullError("full"), [False, False]),
        (None, [False, False]),
    ],
)
def test_only_what_another_owner_ends_passes_with_it(error: MillraceError | None, expected: list[bool]) -> None:
    """Other failures, and those of channels that have one server only, get the usual pauses."""
    assert [passes_with_next_owner(error, is_shared=is_shared) for is_shared in (False, True)] == expected


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
