import json
import re
from dataclasses import asdict

import pytest

from millrace_spark import MillraceSparkError
from millrace_spark.reading import offsets
from millrace_spark.reading.offsets import ArrivalRate, ShardOffset, ShardProgress, offsets_from_json, offsets_to_json
from millrace_spark.shards import Shard

OFFSETS = {
    Shard("orders", "b:2"): ShardOffset("id-2", 5, 5),
    Shard("audit", "a:1"): ShardOffset("id-1", 1 << 62, (1 << 62) + 1),
}


def test_offsets_through_json_stay_the_same() -> None:
    """Spark stores offsets as text."""
    assert offsets_from_json(json.loads(json.dumps(offsets_to_json(OFFSETS)))) == OFFSETS


def test_offsets_that_are_equal_are_equal_as_text() -> None:
    """Spark compares offsets as text, so the order of shards must not matter."""
    turned = dict(reversed(OFFSETS.items()))
    assert json.dumps(offsets_to_json(OFFSETS)) == json.dumps(offsets_to_json(turned))
    assert json.dumps(offsets_to_json(OFFSETS)) == json.dumps(offsets_to_json(OFFSETS), sort_keys=True)


@pytest.mark.parametrize(
    "reported",
    [
        {"orders": {"id": "x", "from": 1, "to": 2}},
        {"orders@a:1": 7},
        {"orders@a:1": {"id": "x", "from": 1}},
        {"logOffset": 3},
        {"orders@a:1": {"id": "x", "from": "1", "to": 2}},
    ],
)
def test_offsets_of_another_source_are_refused(reported: dict[str, dict[str, object]]) -> None:
    """The checkpoint of another source is an error."""
    with pytest.raises(MillraceSparkError, match="which this source did not write; use another checkpointLoc"):
        offsets_from_json(reported)


def test_progress_is_as_its_module_says() -> None:
    """The documented example is the actual output."""
    example = re.search(r'^    (\{.*"lag".*\})$', offsets.__doc__ or "", re.MULTILINE)
    assert example
    reported = asdict(ShardProgress(position=42, first=17, next=99, lag=57, rate=12.5, reachable=True))
    assert json.loads(example[1]) == {"orders@127.0.0.1:7070": reported}


def test_rate_is_that_of_the_last_second_or_longer() -> None:
    """Frequent responses are combined, and the rate of an idle or re-created channel is 0."""
    times: list[float] = []
    rate = ArrivalRate(lambda: times[-1])
    rates = []
    for now, next_sequence in ((0.0, 100), (0.5, 140), (1.0, 150), (3.0, 250), (3.5, 900), (4.5, 250), (6.0, 1)):
        times.append(now)
        rate.update(next_sequence)
        rates.append(rate.rate)
    assert rates == [0.0, 0.0, 50.0, 50.0, 50.0, 0.0, 0.0]
