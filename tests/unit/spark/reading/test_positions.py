import logging

import pytest

from millrace_spark.errors import DataLossError
from millrace_spark.reading.offsets import ShardOffset
from millrace_spark.reading.positions import DataLossPolicy
from millrace_spark.reading.shard_claim import ShardView
from millrace_spark.shards import Shard
from tests.logged import messages_of

SHARD = Shard("orders", "a:1")
VIEW = ShardView(channel_id="id", lease_seconds=30.0, epoch=1, first_sequence=10, next_sequence=20)


@pytest.mark.parametrize("sequence", [10, 15, 20])
def test_position_that_is_there_stays(sequence: int) -> None:
    """Positions at the oldest event, in the middle and at the end are kept."""
    offset = ShardOffset("id", 3, sequence)
    assert DataLossPolicy(is_fatal=True).position(SHARD, offset, VIEW) is offset


@pytest.mark.parametrize(
    ("offset", "sentence", "instead"),
    [
        (
            ShardOffset("id", 1, 9),
            "events 9 to 9 are gone, consumed by others, purged or expired, before this query read them",
            10,
        ),
        (ShardOffset("id", 1, 21), "ends at 19, before the query's position 21; it has lost events", 20),
        (
            ShardOffset("old", 1, 15),
            r"was created again since the checkpoint was written, .*position 15, now 10 to 19",
            10,
        ),
    ],
)
def test_position_that_is_gone_is_reported(
    offset: ShardOffset, sentence: str, instead: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The query fails with advice, or continues with one warning."""
    with pytest.raises(
        DataLossError, match=f"^channel orders@a:1: .*{sentence}.*set the option failOnDataLoss to false"
    ):
        DataLossPolicy(is_fatal=True).position(SHARD, offset, VIEW)
    lenient = DataLossPolicy(is_fatal=False)
    with caplog.at_level(logging.WARNING, "millrace_spark"):
        for _ in range(3):
            assert lenient.position(SHARD, offset, VIEW) == ShardOffset("id", instead, instead)
    assert len(messages_of("millrace_spark", caplog)) == 1


@pytest.mark.parametrize(
    ("offset", "there"),
    [
        (ShardOffset("id", 10, 20), (10, 20)),
        (ShardOffset("id", 5, 5), (5, 5)),
        (ShardOffset("id", 8, 15), (10, 15)),
        (ShardOffset("id", 15, 25), (15, 20)),
        (ShardOffset("id", 2, 9), (10, 10)),
        (ShardOffset("old", 12, 15), (12, 12)),
    ],
)
def test_readable_part_of_a_repeated_batch_is_what_is_there(offset: ShardOffset, there: tuple[int, int]) -> None:
    """A logged range is read completely, or its loss is reported."""
    readable = DataLossPolicy(is_fatal=False).readable(SHARD, offset, VIEW)
    assert (readable.from_sequence, readable.to_sequence) == there
    strict = DataLossPolicy(is_fatal=True)
    if there == (offset.from_sequence, offset.to_sequence):
        assert strict.readable(SHARD, offset, VIEW) == offset
    else:
        with pytest.raises(DataLossError, match="failOnDataLoss"):
            strict.readable(SHARD, offset, VIEW)
