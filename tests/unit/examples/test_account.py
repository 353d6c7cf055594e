import pytest

from examples.access_log.account import Account


def test_account_is_equal_where_each_count_is_the_same() -> None:
    """Nothing is missing, nothing is there twice."""
    assert Account(lines_in_file=7, events_committed=7, rows_read=7, rows_written=7).is_equal


@pytest.mark.parametrize("name", ["lines_in_file", "events_committed", "rows_read", "rows_written"])
def test_account_is_not_equal_where_one_count_differs(name: str) -> None:
    """Wherever a line was lost or came twice, it shows."""
    counts = dict.fromkeys(["lines_in_file", "events_committed", "rows_read", "rows_written"], 7)
    assert not Account(**(counts | {name: 8})).is_equal
