import json

import pytest

from millrace_spark import MillraceSparkError
from millrace_spark.reading.offsets import ShardOffset, offsets_from_json, offsets_to_json
from millrace_spark.shards import Shard

OFFSETS = {
    Shard("orders", "b:2"): ShardOffset("id-2", 5, 5),
    Shard("audit", "a:1"): ShardOffset("id-1", 1 << 62, (1 << 62) + 1),
}


def test_offsets_through_json_stay_the_same() -> None:
    """Spark keeps them as text."""
    assert offsets_from_json(json.loads(json.dumps(offsets_to_json(OFFSETS)))) == OFFSETS


def test_offsets_that_are_equal_are_equal_as_text() -> None:
    """Spark compares texts, so the order in which shards were met must not show."""
    turned = dict(reversed(OFFSETS.items()))
    assert json.dumps(offsets_to_json(OFFSETS)) == json.dumps(offsets_to_json(turned))
    assert json.dumps(offsets_to_json(OFFSETS)) == json.dumps(offsets_to_json(OFFSETS), sort_keys=True)


@pytest.mark.parametrize(
    "told",
    [
        {"orders": {"id": "x", "from": 1, "to": 2}},
        {"orders@a:1": 7},
        {"orders@a:1": {"id": "x", "from": 1}},
        {"logOffset": 3},
        {"orders@a:1": {"id": "x", "from": "1", "to": 2}},
    ],
)
def test_offsets_of_another_source_are_refused(told: dict[str, dict[str, object]]) -> None:
    """A checkpoint that was another query's is told by one sentence."""
    with pytest.raises(
        MillraceSparkError, match="which this source did not write; give the query another checkpointLoc"
    ):
        offsets_from_json(told)
