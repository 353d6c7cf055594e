import pytest
from hypothesis import given

from millrace.columns import (
    HEADER_CELLS_MAX,
    HEADER_KEYS_MAX,
    ColumnsBuilder,
    ColumnsCutter,
    ColumnsError,
    check_columns,
    columns_from_events,
)
from millrace.v1 import event_pb2
from tests.event_rows import Row, rows


def rows_of(batches: list[event_pb2.EventColumns]) -> list[Row]:
    return [row for columns in batches for row in ColumnsCutter(columns).rows(0, columns.count)]


@given(rows())
def test_columns_from_events_back_in_rows_are_the_same_events(events: list[Row]) -> None:
    """Events are unchanged after conversion to columns, over the wire, and back; the columns pass the check."""
    batches = columns_from_events(events)
    for columns in batches:
        check_columns(columns)
    sent = [event_pb2.EventColumns.FromString(columns.SerializeToString()) for columns in batches]
    assert rows_of(sent) == events
    assert len(batches) == bool(events)


def test_columns_from_events_of_protobuf_rows_takes_them_as_they_are() -> None:
    """A message's own map and bytes can be used as an event."""
    message = event_pb2.Event(headers={"a": "1"}, body=b"x")
    assert rows_of(columns_from_events([(message.headers, message.body)])) == [({"a": "1"}, b"x")]


def test_columns_from_events_with_one_value_for_all_store_it_once() -> None:
    """A header shared by all events needs the space of one value."""
    (columns,) = columns_from_events([({"host": "a"}, b"")] * 1000)
    (column,) = columns.headers
    assert (list(column.sizes), column.values) == ([2], b"a")


def test_columns_from_events_with_a_late_header_keep_it_with_its_event() -> None:
    """Events before and after one with a header have none."""
    events: list[Row] = [({}, b"1"), ({"a": "x"}, b"2"), ({}, b"3")]
    (columns,) = columns_from_events(events)
    assert list(columns.headers[0].sizes) == [0, 2, 0]
    assert rows_of([columns]) == events


def test_columns_from_events_with_too_many_keys_become_several_batches() -> None:
    """An event whose keys do not fit starts a new batch; one without new keys still fits."""
    full: Row = ({str(number): "v" for number in range(HEADER_KEYS_MAX)}, b"full")
    known: Row = ({"0": "w"}, b"known")
    new: Row = ({"new": "v"}, b"new")
    batches = columns_from_events([full, known, new, full])
    assert [columns.count for columns in batches] == [2, 1, 1]
    assert rows_of(batches) == [full, known, new, full]


def test_columns_from_events_with_sparse_headers_keep_the_table_small() -> None:
    """The sizes of events without a header are bounded, however headers are distributed."""
    keys = 250
    count_max = HEADER_CELLS_MAX // keys
    first: Row = ({str(number): "" for number in range(keys)}, b"")
    bare: Row = ({}, b"")
    batches = columns_from_events([first, *[bare] * count_max])
    assert [columns.count for columns in batches] == [count_max, 1]


def test_add_with_too_many_headers_adds_nothing() -> None:
    """An event that no batch can hold is refused, and the builder continues as before."""
    builder = ColumnsBuilder()
    builder.add({"a": "1"}, b"x")
    with pytest.raises(ColumnsError, match="headers: an event has 257 headers; at most 256 are allowed"):
        builder.add({str(number): "" for number in range(HEADER_KEYS_MAX + 1)}, b"y")
    assert rows_of([builder.build()]) == [({"a": "1"}, b"x")]


def test_columns_from_events_with_too_many_headers_in_one_event_refuses() -> None:
    """This holds also for the first event."""
    with pytest.raises(ColumnsError, match="257 headers"):
        columns_from_events([({str(number): "" for number in range(HEADER_KEYS_MAX + 1)}, b"")])


def test_build_without_events_returns_columns_of_none() -> None:
    """Such columns are valid."""
    columns = ColumnsBuilder().build()
    check_columns(columns)
    assert columns == event_pb2.EventColumns()
