import contextlib

import pytest

from millrace_client import MillraceError, SequenceGoneError, UnavailableError
from millrace_spark.patience import Patience


class FakeTime:
    """A clock that goes on only while somebody pauses."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_wait_grows_up_to_a_bound_and_ends() -> None:
    """A server is tried for exactly as long as was asked for, ever less often."""
    time = FakeTime()
    patience = Patience(10.0, clock=time.clock, pause=time.pause)
    attempts = 0
    with contextlib.suppress(UnavailableError):
        while True:
            patience.wait(UnavailableError("gone"))
            attempts += 1
    assert attempts == len(time.pauses)
    assert time.pauses[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert max(time.pauses) == 2.0
    assert sum(time.pauses) == pytest.approx(10.0)


def test_succeed_counts_anew() -> None:
    """Only time without any success counts."""
    time = FakeTime()
    patience = Patience(1.0, clock=time.clock, pause=time.pause)
    for _ in range(50):
        patience.wait(UnavailableError("gone"))
        patience.succeed()
    assert set(time.pauses) == {0.1}


@pytest.mark.parametrize("error", [SequenceGoneError("gone"), MillraceError("?", reason="NEW_REASON")])
def test_wait_for_what_does_not_pass_raises_it(error: MillraceError) -> None:
    """A repeat cannot help, so nobody waits."""
    time = FakeTime()
    with pytest.raises(type(error)):
        Patience(10.0, clock=time.clock, pause=time.pause).wait(error)
    assert time.pauses == []
