import json
import re

from millrace_spark.reading import progress
from millrace_spark.reading.progress import ArrivalRate, ShardProgress


def test_progress_is_as_its_module_says() -> None:
    """The example in the documentation is what comes out."""
    example = re.search(r"^    (\{.*\})$", progress.__doc__ or "", re.MULTILINE)
    assert example
    told = ShardProgress(position=42, first=17, next=99, lag=57, rate=12.5, reachable=True).to_json()
    assert json.loads(example[1]) == {"orders@127.0.0.1:7070": told}


def test_rate_is_that_of_the_last_second_or_longer() -> None:
    """Answers that come faster are gathered; a channel that is quiet comes back to 0, one that is made anew too."""
    times: list[float] = []
    rate = ArrivalRate(lambda: times[-1])
    rates = []
    for now, next_sequence in ((0.0, 100), (0.5, 140), (1.0, 150), (3.0, 250), (3.5, 900), (4.5, 250), (6.0, 1)):
        times.append(now)
        rate.note(next_sequence)
        rates.append(rate.rate)
    assert rates == [0.0, 0.0, 50.0, 50.0, 50.0, 0.0, 0.0]
