import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_spark import ClaimedRange
from millrace_spark.reading.ranges import ranges_from_json, ranges_to_json, split_among_tasks


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


@given(
    st.lists(st.tuples(st.integers(1, 1 << 62), st.integers(0, 5_000)), max_size=5),
    st.integers(1, 6_000),
    st.integers(1, 20),
)
def test_split_covers_each_range_once(ranges: list[tuple[int, int]], events_max: int, count_min: int) -> None:
    """The parts have no gaps or overlaps, respect the maximum size, and are as many as requested."""
    full = [claimed(first, first + count) for first, count in ranges]
    parts = split_among_tasks(full, events_max, count_min)
    for whole in full:
        own = [part for part in parts if part.claimed is whole]
        borders = [whole.first_sequence, *(part.to_sequence for part in own)]
        assert [part.from_sequence for part in own] == borders[:-1]
        assert borders[-1] == whole.next_sequence
        sizes = [part.to_sequence - part.from_sequence for part in own]
        assert not sizes or (0 < max(sizes) <= events_max and max(sizes) - min(sizes) <= 1)
    assert len(parts) >= min(count_min, sum(count for _, count in ranges))


@pytest.mark.parametrize(
    ("counts", "count_min", "part_counts"),
    [
        ([0], 1, []),
        ([1], 1, [1]),
        ([50_000], 1, [1]),
        ([50_001], 1, [2]),
        ([200_000], 1, [4]),
        ([10, 10, 10], 1, [1, 1, 1]),
        ([90, 10], 4, [4, 1]),
        ([2], 8, [2]),
    ],
)
def test_split_makes_no_more_parts_than_it_must(counts: list[int], count_min: int, part_counts: list[int]) -> None:
    """There are as few parts as possible, and additional parts come from larger ranges."""
    full = [claimed(7, 7 + count) for count in counts]
    parts = split_among_tasks(full, 50_000, count_min)
    assert [sum(part.claimed is whole for part in parts) for whole in full if whole.event_count] == part_counts


def test_partitions_when_shipped_stay_the_same() -> None:
    """Spark pickles partitions for tasks."""
    [part] = claimed(1, 9).split(1)
    shipped = pickle.loads(pickle.dumps(part))  # noqa: S301 - made here
    assert (shipped.claimed, shipped.from_sequence, shipped.to_sequence) == (claimed(1, 9), 1, 9)


def test_ranges_through_json_stay_the_same() -> None:
    """The option `ranges` holds everything that a task needs."""
    ranges = (claimed(1, 9), claimed((1 << 62) + 1, (1 << 62) + 1))
    assert ranges_from_json(ranges_to_json(ranges)) == ranges
