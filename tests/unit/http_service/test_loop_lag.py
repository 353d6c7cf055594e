import time

from millrace_server.histograms import LATENCY_SECONDS, Histogram
from millrace_server.http_service.loop_lag import LoopLag
from tests.file_channels import turn


async def test_lag_of_a_loop_that_is_held_up_is_observed() -> None:
    """What holds it up for longer than the interval delays the timer by the rest."""
    histogram = Histogram(LATENCY_SECONDS)
    lag = LoopLag(histogram)
    time.sleep(0.5)  # noqa: ASYNC251 - on purpose
    await turn()
    lag.stop()
    assert histogram.total >= 0.19
