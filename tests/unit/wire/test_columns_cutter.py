from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import HEADER_KEYS_MAX, ColumnsCutter, columns_from_events
from millrace.v1 import event_pb2
from tests.event_rows import Row, rows


def cutter_of(events: Sequence[Row]) -> ColumnsCutter:
    (columns,) = columns_from_events(events)
    return ColumnsCutter(columns)


def rows_bytes(first_sequence: int, events: Sequence[Row]) -> int:
    """The size of a batch of these events, serialized in rows."""
    messages = [event_pb2.Event(headers=headers, body=body) for headers, body in events]
    return len(event_pb2.EventBatch(first_sequence=first_sequence, events=messages).SerializeToString())


def columns_bytes(first_sequence: int, columns: event_pb2.EventColumns) -> int:
    """The size of a batch of these events, serialized in columns."""
    return len(event_pb2.EventBatch(first_sequence=first_sequence, columns=columns).SerializeToString())


@given(rows(min_size=1), st.data())
def test_cut_anywhere_holds_the_events_of_the_range(events: list[Row], data: st.DataObject) -> None:
    """A cut equals the columns of the same events alone, and can be cut again."""
    cutter = cutter_of(events)
    start = data.draw(st.integers(0, len(events)))
    stop = data.draw(st.integers(start, len(events)))
    cut = cutter.cut(start, stop)
    assert cut.count == stop - start
    assert list(cutter.rows(start, stop)) == list(ColumnsCutter(cut).rows(0, cut.count)) == events[start:stop]
    assert cutter.body_bytes(start, stop) == sum(len(body) for _, body in events[start:stop])


@given(rows(min_size=1))
def test_cut_of_each_event_alone_returns_them_all(events: list[Row]) -> None:
    """Single events are cut out of a batch of many."""
    cutter = cutter_of(events)
    parts = [ColumnsCutter(cutter.cut(index, index + 1)) for index in range(cutter.count)]
    assert [row for part in parts for row in part.rows(0, 1)] == events


def test_cut_without_an_event_that_has_the_header_leaves_its_column_out() -> None:
    """A cut has no key that none of its events has."""
    cut = cutter_of([({"a": "1"}, b""), ({"b": "2"}, b"")]).cut(1, 2)
    assert [header.key for header in cut.headers] == ["b"]


def test_cut_of_the_whole_is_the_same_message() -> None:
    """The whole is returned without copying."""
    (columns,) = columns_from_events([({}, b"x")])
    assert ColumnsCutter(columns).cut(0, 1) is columns


@given(rows(min_size=1), st.data())
def test_bounds_of_any_range_are_never_below_the_bytes(events: list[Row], data: st.DataObject) -> None:
    """A batch whose bound fits a limit fits it, in either form and with the largest sequence."""
    cutter = cutter_of(events)
    start = data.draw(st.integers(0, len(events)))
    stop = data.draw(st.integers(start, len(events)))
    first_sequence = (1 << 64) - 1
    assert cutter.columns_bytes_bound(start, stop) >= columns_bytes(first_sequence, cutter.cut(start, stop))
    assert cutter.rows_bytes_bound(start, stop) >= rows_bytes(first_sequence, events[start:stop])


@given(rows(min_size=2), st.data())
def test_bounds_of_a_wider_range_are_never_below_a_narrower_ones(events: list[Row], data: st.DataObject) -> None:
    """The bounds grow with the range, so the furthest stop can be found by bisection."""
    cutter = cutter_of(events)
    start = data.draw(st.integers(0, len(events) - 1))
    for bound in (cutter.columns_bytes_bound, cutter.rows_bytes_bound):
        bounds = [bound(start, stop) for stop in range(start, len(events) + 1)]
        assert bounds == sorted(bounds)


def test_bounds_of_the_largest_sizes_are_never_below_the_bytes() -> None:
    """Long keys, long values and the maximum of headers are within the bounds."""
    headers = {f"{number:0200}": "v" * 300 for number in range(HEADER_KEYS_MAX)}
    events = [(headers, b"x" * 70_000), ({**headers, f"{0:0200}": "other"}, b""), (headers, b"y" * 300)]
    cutter = cutter_of(events)
    assert cutter.columns_bytes_bound(0, 3) >= columns_bytes(1, cutter.cut(0, 3))
    assert cutter.rows_bytes_bound(0, 3) >= rows_bytes(1, events)


@given(rows(min_size=1), st.integers(0, 40), st.data())
def test_stop_within_a_limit_is_the_furthest(events: list[Row], body_bytes_max: int, data: st.DataObject) -> None:
    """The bodies up to the stop are within the limit, and one more would not be."""
    cutter = cutter_of(events)
    start = data.draw(st.integers(0, len(events)))
    stop = cutter.stop_within(start, body_bytes_max)
    assert start <= stop <= len(events)
    assert cutter.body_bytes(start, stop) <= body_bytes_max
    assert stop == len(events) or cutter.body_bytes(start, stop + 1) > body_bytes_max


@given(rows(min_size=1))
def test_strings_of_each_header_end_with_the_range(events: list[Row]) -> None:
    """A header has one value or None for each event."""
    cutter = cutter_of(events)
    for header in cutter._header_cutters():
        assert list(header.strings(0, len(events))) == [headers.get(header.key) for headers, _ in events]
