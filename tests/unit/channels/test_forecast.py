import pytest

from millrace_server.channels.admission import Capacity
from millrace_server.channels.forecast import Forecast, Forecaster


class Watched:
    """A channel of 100 events and 1,000 bytes that is looked at from time to time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.capacity = Capacity(100, 1_000)
        self._forecaster = Forecaster(self.capacity, lambda: self.now)

    def after(self, seconds: float, event_count: int, body_bytes: int = 0) -> Forecast:
        """The forecast so much later, when the channel has grown by this."""
        self.now += seconds
        self.capacity.change(event_count, body_bytes)
        return self._forecaster.forecast()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_forecast_of_a_channel_that_fills_says_when_it_is_full(watched: Watched) -> None:
    """Events or bytes count, whichever are there sooner; the first look tells nothing."""
    assert watched.after(0, 10) == Forecast(None, None)
    assert watched.after(10, 20) == Forecast(35.0, None)
    assert watched.after(10, 20, 800) == Forecast(5.0, None)


def test_forecast_of_a_channel_that_empties_says_when_it_is_empty(watched: Watched) -> None:
    """An empty channel is not about to become empty."""
    watched.after(0, 100)
    assert watched.after(20, -40) == Forecast(None, 30.0)
    assert watched.after(20, -60) == Forecast(None, None)


def test_forecast_of_a_channel_that_stands_still_is_none(watched: Watched) -> None:
    """It will never be full or empty."""
    watched.after(0, 50)
    assert watched.after(60, 0) == Forecast(None, None)


def test_forecast_of_a_full_channel_is_now(watched: Watched) -> None:
    """Also at the first look, and while it empties."""
    assert watched.after(0, 1, 1_000) == Forecast(0.0, None)
    watched.after(30, 99)
    assert watched.after(30, 0) == Forecast(0.0, None)


def test_forecast_follows_the_last_one_to_two_minutes(watched: Watched) -> None:
    """What was before does not count any more, however often it is looked at."""
    for _ in range(8):
        watched.after(15, 10)
    for _ in range(8):
        watched.after(15, 0)
    assert watched.after(15, 0) == Forecast(None, None)


def test_forecast_after_nobody_has_looked_for_long_begins_again(watched: Watched) -> None:
    """The average of hours says nothing about now."""
    watched.after(0, 10)
    assert watched.after(3_600, 50) == Forecast(None, None)
    assert watched.after(10, -10) == Forecast(None, 50.0)
