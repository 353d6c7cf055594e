from dataclasses import replace
from datetime import timedelta

import pytest

from millrace_client import ChannelInfo
from millrace_client.cli.top_rates import RateMeter, Rates
from tests.unit.cli.fake_client import COUNTERS, ORDERS


class SteppingClock:
    """Two seconds pass between two looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


def counted(put: int, taken: int) -> ChannelInfo:
    counters = replace(COUNTERS, event_put_success_count=put, event_take_success_count=taken)
    return replace(ORDERS, counters=counters)


@pytest.fixture
def meter() -> RateMeter:
    meter = RateMeter(SteppingClock())
    meter.measure([counted(100, 50)])
    return meter


def test_measure_for_the_first_time_knows_nothing() -> None:
    """One look has no rate."""
    assert RateMeter(SteppingClock()).measure([ORDERS]) == {}


def test_measure_again_gives_events_a_second(meter: RateMeter) -> None:
    """What was counted between two looks, by the time between them; then from the newer look on."""
    assert meter.measure([counted(300, 50)]) == {"orders": Rates(put=100.0, taken=0.0)}
    assert meter.measure([counted(300, 60)]) == {"orders": Rates(put=0.0, taken=5.0)}


@pytest.mark.parametrize(
    "channel",
    [
        replace(counted(300, 50), channel_id="c-2"),
        replace(counted(300, 50), start_time=ORDERS.start_time + timedelta(seconds=1)),
        counted(99, 50),
        counted(100, 49),
    ],
)
def test_measure_a_channel_made_anew_knows_nothing(meter: RateMeter, channel: ChannelInfo) -> None:
    """Counters that began again at 0 would give nonsense."""
    assert meter.measure([channel]) == {}


def test_measure_a_channel_that_comes_and_goes_knows_nothing(meter: RateMeter) -> None:
    """Only a channel that both looks saw has a rate."""
    assert meter.measure([]) == {}
    assert meter.measure([counted(300, 50)]) == {}
