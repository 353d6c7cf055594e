from array import array
from collections.abc import Sequence

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import HEADER_KEYS_MAX, ColumnsCutter, columns_from_events
from millrace.v1 import event_pb2
from millrace_server.channels.batches import Form, StoredBatch, StoredColumns, Window
from millrace_server.wal.records import Location
from tests.channel_events import batch, bodies_of, numbered, stored, stored_rows, window
from tests.event_rows import Row, rows

FORMS = st.sampled_from(Form)
LATEST = Timestamp(seconds=253402300799, nanos=999999999)


def encoded_bytes(one: Window, form: Form) -> int:
    """The encoded size of a response with this window."""
    return _encoded(one, form).ByteSize()


def _encoded(one: Window, form: Form) -> event_pb2.EventBatch:
    offsets = StoredBatch(1, one, 1).commit_offsets() if one.count else ()
    head = event_pb2.EventBatch(first_sequence=(1 << 64) - 1, commit_time=LATEST, commit_offsets=offsets)
    if form is Form.COLUMNS:
        head.columns.ParseFromString(bytes(one.columns()))
    else:
        head.events.extend(event_pb2.Event(headers=headers, body=body) for headers, body in one.rows())
    return head


def test_stored_columns_of_a_request_know_its_sizes() -> None:
    """The bytes and the largest body are known without decoding an event."""
    columns = stored(b"a", b"", b"cccc", b"dd")
    assert (columns.count, columns.body_bytes, columns.largest_body_bytes) == (4, 7, 4)


def test_stored_columns_of_empty_bodies_have_no_bytes() -> None:
    """Empty bodies are allowed."""
    columns = stored(b"", b"")
    assert (columns.count, columns.body_bytes, columns.largest_body_bytes) == (2, 0, 0)


def test_stored_columns_of_none_are_empty() -> None:
    """Columns without events have sizes too."""
    columns = StoredColumns.of(event_pb2.EventColumns())
    assert (columns.count, columns.body_bytes, columns.largest_body_bytes) == (0, 0, 0)


def test_stored_columns_with_unknown_fields_drop_them() -> None:
    """Unknown fields of a client are neither stored nor sent, since no limit counts them."""
    unknown = bytes([15 << 3 | 2, 100]) + b"u" * 100
    header = event_pb2.HeaderColumn.FromString(
        event_pb2.HeaderColumn(key="k", sizes=[2], values=b"v").SerializeToString() + unknown
    )
    raw = event_pb2.EventColumns(count=1, body_sizes=[1], bodies=b"x", headers=[header]).SerializeToString()
    columns = stored_rows([({"k": "v"}, b"x")])
    assert StoredColumns.received(raw + unknown).raw == columns.raw


@given(rows(min_size=1), st.integers(0, 400))
def test_first_index_above_any_limit_leaves_what_can_be_fetched(events: Sequence[Row], response_bytes_max: int) -> None:
    """Each event before the one named fits a response alone, in either form."""
    columns = stored_rows(events)
    index = columns.first_index_above(response_bytes_max)
    for before in range(columns.count if index is None else index):
        for form in Form:
            assert encoded_bytes(Window.whole(columns).part(before, before + 1), form) <= response_bytes_max


def test_first_index_above_a_limit_names_the_first_too_large() -> None:
    """The index is that of the first event that does not fit."""
    columns = stored_rows([({}, b"x"), ({"k": "v" * 300}, b""), ({}, b"y" * 900), ({}, b"z" * 900)])
    assert columns.first_index_above(800) == 2
    assert columns.first_index_above(300) == 1
    assert columns.first_index_above(1100) is None


def test_first_index_above_a_limit_far_above_all_needs_no_look() -> None:
    """Most requests are far below the limit, so their columns are not even parsed."""
    columns = stored(b"x")
    columns.remember(b"no columns")
    assert columns.first_index_above(1 << 20) is None


def test_first_index_above_a_limit_near_the_whole_is_exact_enough() -> None:
    """An event that is nearly the whole request is measured exactly, with all its headers."""
    headers = {str(number): "" for number in range(HEADER_KEYS_MAX)}
    columns = stored_rows([(headers, b"x" * 1000), (headers, b"")])
    limit = max(encoded_bytes(Window.whole(columns).part(0, 1), form) for form in Form)
    assert columns.first_index_above(limit - 1) == 0


@given(rows(min_size=1), st.data())
def test_part_of_a_part_holds_its_events(events: list[Row], data: st.DataObject) -> None:
    """Windows can be cut repeatedly, and encoded in both forms."""
    whole = Window.whole(stored_rows(events))
    start = data.draw(st.integers(0, len(events)))
    stop = data.draw(st.integers(start, len(events)))
    inner_start = data.draw(st.integers(0, stop - start))
    inner_stop = data.draw(st.integers(inner_start, stop - start))
    part = whole.part(start, stop).part(inner_start, inner_stop)
    expected = events[start:stop][inner_start:inner_stop]
    assert part.count == len(expected)
    assert part.body_bytes == sum(len(body) for _, body in expected)
    assert list(part.rows()) == expected
    columns = event_pb2.EventColumns.FromString(bytes(part.columns()))
    assert list(ColumnsCutter(columns).rows(0, columns.count)) == expected


def test_columns_of_the_whole_window_are_the_bytes_that_came() -> None:
    """The stored bytes are returned without cutting, copying or parsing."""
    columns = stored(b"a", b"b")
    assert Window.whole(columns).columns() is columns.raw
    assert Window.whole(columns).part(0, 2).columns() is columns.raw


@given(rows(min_size=1), st.data(), FORMS)
def test_fit_of_any_window_is_the_furthest_within_both_limits(
    events: list[Row], data: st.DataObject, form: Form
) -> None:
    """The result keeps to the limit of bodies and fits the response, but would not with one event more."""
    start = data.draw(st.integers(0, len(events) - 1))
    stop = data.draw(st.integers(start + 1, len(events)))
    body_bytes_max = data.draw(st.integers(0, 60))
    response_bytes_max = data.draw(st.integers(0, 1000))
    columns = stored_rows(events)
    if data.draw(st.booleans()):
        # A run, whose events have times of their own.
        columns.offsets = array("I", range(1 << 31, (1 << 31) + columns.count))
    whole = Window.whole(columns).part(start, stop)
    fit = whole.fit(body_bytes_max, response_bytes_max, form)
    assert 0 <= fit.count <= whole.count
    fitting = whole.part(0, fit.count)
    assert fit.body_bytes == fitting.body_bytes <= body_bytes_max
    if fit.count:
        assert encoded_bytes(fitting, form) <= fit.response_bytes <= response_bytes_max
    if fit.count < whole.count:
        more = whole.part(0, fit.count + 1)
        # The bound of the response may exceed the bytes by a little for each header and event.
        margin = 64 + more.count * (24 + 5) + 5 * (64 + 24 * more.count + 10 * more.count)
        assert more.body_bytes > body_bytes_max or encoded_bytes(more, form) + margin > response_bytes_max


def test_fit_of_a_whole_in_columns_reads_no_columns() -> None:
    """For whole batches the sizes alone decide."""
    columns = stored(b"a" * 10, b"b" * 10)
    raw_bytes = len(columns.raw)
    columns.remember(b"?" * raw_bytes)
    fit = Window.whole(columns).fit(20, raw_bytes + 64, Form.COLUMNS)
    assert (fit.count, fit.body_bytes, fit.response_bytes) == (2, 20, raw_bytes + 64)


def test_cutter_that_is_kept_is_made_once() -> None:
    """A window that is cut several times sums its offsets once; others do not keep them."""
    columns = stored(b"a", b"b")
    assert columns.cutter() is not columns.cutter()
    kept = columns.cutter(keep=True)
    assert columns.cutter() is columns.cutter(keep=True) is kept


def test_part_of_a_batch_has_its_sequences() -> None:
    """The events of a part keep their sequences."""
    whole = batch(7, b"a", b"b", b"c")
    assert whole.part(0, 3) is whole
    assert numbered([whole.part(1, 3)]) == [(8, b"b"), (9, b"c")]
    assert (whole.part(1, 2).first_sequence, whole.part(1, 2).end_sequence) == (8, 9)


@pytest.mark.parametrize(
    ("from_sequence", "to_sequence", "bodies"),
    [(1, 99, [b"a", b"b", b"c"]), (7, 10, [b"a", b"b", b"c"]), (8, 9, [b"b"]), (0, 8, [b"a"]), (9, 1 << 64, [b"c"])],
)
def test_between_sequences_returns_the_part_that_overlaps(
    from_sequence: int, to_sequence: int, bodies: list[bytes]
) -> None:
    """The ends may lie outside of the batch."""
    assert bodies_of([batch(7, b"a", b"b", b"c").between(from_sequence, to_sequence)]) == bodies


@pytest.mark.parametrize("start", range(5))
@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize(("first", "last"), [(0, 5), (1, 4)])
def test_without_any_range_leaves_the_rest(start: int, count: int, first: int, last: int) -> None:
    """The range may be at the front, in the middle, at the end, or everything, of a whole batch or of a part."""
    part = batch(7, b"a", b"bb", b"ccc", b"dddd", b"eeeee").part(first, last)
    events = numbered([part])
    if start + count > part.count:
        return
    removed = events[start : start + count]
    rest = part.without(start, count, sum(len(body) for _, body in removed))
    assert numbered(rest) == [event for event in events if event not in removed]
    assert all(one.count for one in rest)
    assert [one.window.body_bytes for one in rest] == [sum(map(len, bodies_of([one]))) for one in rest]


def test_without_either_end_reads_no_columns() -> None:
    """The removed bytes are known, and so are the remaining ones."""
    whole = batch(7, b"a", b"bb", b"ccc")
    whole.window.stored.remember(b"no columns")
    assert [one.first_sequence for one in whole.without(0, 1, 1)] == [8]
    assert [one.end_sequence for one in whole.without(1, 2, 5)] == [8]
    assert whole.without(0, 3, 6) == []


class FakeLog:
    """Returns columns, and counts the reads."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.reads = 0

    def read(self, stored: StoredColumns) -> bytes:
        self.reads += 1
        stored.remember(self.raw)
        return self.raw


def test_stored_columns_in_a_log_are_read_when_they_are_wanted() -> None:
    """Their sizes are known without the log; columns that were dropped from memory are read again."""
    raw = stored(b"a", b"bbb").raw
    log, location = FakeLog(bytes(raw)), Location(1, 64, 99)
    columns = StoredColumns.in_log(location, log, 2, 4, len(raw))
    assert (columns.count, columns.body_bytes, columns.raw_bytes, columns.location) == (2, 4, len(raw), location)
    assert Window.whole(columns).fit(4, 1 << 20, Form.COLUMNS).count == 2
    assert (columns.is_in_memory, log.reads) == (False, 0)
    assert columns.raw == columns.raw == raw
    assert (columns.is_in_memory, log.reads) == (True, 1)
    kept = columns.cutter(keep=True)
    columns.forget()
    assert columns.cutter() is not kept
    assert log.reads == 2


def test_forget_of_columns_in_memory_only_is_refused() -> None:
    """They could not be read again."""
    with pytest.raises(AssertionError):
        stored(b"a").forget()


def test_joined_with_its_other_part_is_the_whole_again() -> None:
    """Two adjacent windows of the same columns become one, which is sent as stored."""
    whole = batch(7, b"a", b"b", b"c")
    first, second, third = (whole.part(index, index + 1) for index in range(3))
    joined = first.joined(second)
    assert joined is not None
    assert joined == whole.part(0, 2)
    again = joined.joined(third)
    assert again == whole
    assert again is not None
    assert again.window.is_whole


def test_joined_with_what_does_not_follow_stays_apart() -> None:
    """Other columns, a gap in the window, and a gap in the sequences keep windows apart."""
    whole = batch(7, b"a", b"b", b"c")
    first, second, third = (whole.part(index, index + 1) for index in range(3))
    assert first.joined(batch(8, b"b")) is None
    assert first.joined(third) is None
    assert second.joined(first) is None
    assert first.joined(StoredBatch(9, second.window)) is None
    # A stamp has removed the events between: the sequences are adjacent, but the windows are not.
    assert first.joined(StoredBatch(8, third.window)) is None


def test_window_of_some_columns_knows_what_it_leaves_out() -> None:
    """A window is whole only if nothing lies outside of it."""
    one = window(b"a", b"b")
    assert one.is_whole
    assert not one.part(0, 1).is_whole
    assert not one.part(1, 1).is_whole


def test_stored_columns_from_any_rows_are_those_of_the_wire() -> None:
    """Rows are stored as the columns that a client would have sent."""
    events: list[Row] = [({"a": "1"}, b"x"), ({}, b"y")]
    (columns,) = columns_from_events(events)
    assert stored_rows(events).raw == columns.SerializeToString()
