import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_spark import ClaimedRange
from millrace_spark.ranges import ranges_from_json, ranges_to_json


def claimed(first_sequence: int, next_sequence: int) -> ClaimedRange:
    return ClaimedRange(
        endpoint="a:1",
        channel="orders",
        reader_id='it\'s "me"',
        epoch=1,
        first_sequence=first_sequence,
        next_sequence=next_sequence,
        lease_seconds=30.0,
        channel_id="id",
        is_held=True,
    )


@given(st.integers(1, 1 << 62), st.integers(0, 5_000), st.integers(1, 6_000))
def test_split_covers_the_range_once(first_sequence: int, count: int, events_max: int) -> None:
    """The parts follow each other without hole or overlap, none is too large, and their sizes differ by 1 at most."""
    parts = list(claimed(first_sequence, first_sequence + count).split(events_max))
    borders = [first_sequence, *(part.to_sequence for part in parts)]
    assert [part.from_sequence for part in parts] == borders[:-1]
    assert borders[-1] == first_sequence + count
    sizes = [part.to_sequence - part.from_sequence for part in parts]
    assert len(sizes) == -(-count // events_max)
    assert not sizes or (max(sizes) <= events_max and max(sizes) - min(sizes) <= 1)


@pytest.mark.parametrize(("count", "part_count"), [(0, 0), (1, 1), (50_000, 1), (50_001, 2), (200_000, 4)])
def test_split_makes_no_more_parts_than_it_must(count: int, part_count: int) -> None:
    """Each more task costs Spark."""
    assert len(list(claimed(7, 7 + count).split(50_000))) == part_count


def test_partitions_when_shipped_stay_the_same() -> None:
    """Spark pickles a partition to bring it to its task."""
    [part] = claimed(1, 9).split(100)
    shipped = pickle.loads(pickle.dumps(part))  # noqa: S301 - made here
    assert (shipped.claimed, shipped.from_sequence, shipped.to_sequence) == (claimed(1, 9), 1, 9)


def test_ranges_through_json_stay_the_same() -> None:
    """The option `ranges` holds everything that a task needs."""
    ranges = (claimed(1, 9), claimed((1 << 62) + 1, (1 << 62) + 1))
    assert ranges_from_json(ranges_to_json(ranges)) == ranges
