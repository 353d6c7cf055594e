import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import HEADER_KEYS_MAX, ColumnsCutter, check_columns, columns_from_events
from millrace.v1 import event_pb2
from millrace_server.agent.sinks.millrace import joining
from millrace_server.agent.sinks.millrace.joining import ColumnsJoiner

Row = tuple[dict[str, str], bytes]

ROWS = st.tuples(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "x", "ü", "long value"])), st.binary(max_size=5)
)
BATCHES = st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=8)


def columns(*rows: Row) -> event_pb2.EventColumns:
    [made] = columns_from_events(rows)
    return made


def rows_of(made: event_pb2.EventColumns) -> list[Row]:
    check_columns(made)
    return list(ColumnsCutter(made).rows(0, made.count))


@given(BATCHES)
def test_build_of_any_batches_has_their_events_one_after_the_other(batches: list[list[Row]]) -> None:
    """Whichever of them have a header, the same for all or not, or none."""
    joiner = ColumnsJoiner()
    assert {joiner.add(columns(*rows)) for rows in batches} == {True}
    assert joiner.count == sum(map(len, batches))
    assert rows_of(joiner.build()) == [row for rows in batches for row in rows]


def test_build_keeps_a_value_that_all_events_have_single() -> None:
    """A header of the host need not be written a thousand times."""
    joiner = ColumnsJoiner()
    for count in (3, 1, 2):
        joiner.add(columns(*[({"host": "web-1"}, b"x")] * count))
    [header] = joiner.build().headers
    assert (list(header.sizes), header.values) == ([6], b"web-1")


def test_add_of_more_keys_than_a_batch_may_have_refuses() -> None:
    """What was refused is not in it."""
    joiner = ColumnsJoiner()
    assert joiner.add(columns(({str(number): "x" for number in range(HEADER_KEYS_MAX)}, b"a")))
    assert joiner.add(columns(({"0": "y"}, b"b")))
    assert not joiner.add(columns(({"other": "z"}, b"c")))
    assert [body for _, body in rows_of(joiner.build())] == [b"a", b"b"]


def test_add_of_values_that_would_be_copied_often_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long value for all events is written for each once another batch has another value."""
    monkeypatch.setattr(joining, "JOINED_BYTES_MAX", 10_000)
    joiner = ColumnsJoiner()
    assert joiner.add(columns(*[({"note": "x" * 90}, b"a")] * 100))
    assert not joiner.add(columns(*[({"note": "y" * 90}, b"b")] * 100))


def test_add_of_sparse_headers_bounds_the_sizes_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key costs an entry for each event, whether it has it or not."""
    monkeypatch.setattr(joining, "HEADER_CELLS_MAX", 20)
    joiner = ColumnsJoiner()
    assert [joiner.add(columns(({str(number): "x"}, b""))) for number in range(6)] == [True] * 4 + [False] * 2


def test_add_of_the_first_takes_anything() -> None:
    """However large it is: it has to go somehow."""
    assert ColumnsJoiner().add(columns(({}, bytes(2 * joining.JOINED_BYTES_MAX))))
