"""Sets of sequences."""

from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.sinks.files.sequences import SequenceRanges


def test_add_of_neighbours_makes_one_range() -> None:
    """A file that has a whole stretch of a channel costs one range, however it came."""
    ranges = SequenceRanges()
    ranges.add(1, range(10))
    ranges.add(11, range(5))
    ranges.add(16, [0, 1, 4])
    assert list(ranges) == [(1, 17), (20, 20)]
    assert (ranges.first, ranges.last) == (1, 20)


def test_add_of_lower_sequences_keeps_them_apart() -> None:
    """What another reader has given back comes late, and is told as it is."""
    ranges = SequenceRanges()
    ranges.add(100, range(2))
    ranges.add(7, range(2))
    assert (ranges.first, ranges.last) == (7, 101)


@given(st.sets(st.integers(0, 50), min_size=1))
def test_add_of_any_rows_holds_exactly_these(rows: set[int]) -> None:
    """The ranges cover what was added and nothing else."""
    ranges = SequenceRanges()
    ranges.add(1_000, sorted(rows))
    assert {number for first, last in ranges for number in range(first, last + 1)} == {1_000 + row for row in rows}
