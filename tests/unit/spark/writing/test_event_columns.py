from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.arrow import record_batches
from millrace.columns import ColumnsCutter, CommitTimes, check_columns
from millrace.v1 import event_pb2
from millrace_spark import MillraceSparkError
from millrace_spark.writing import event_columns

Headers = dict[str, str | None] | None
Row = tuple[Headers, bytes]

HEADER_TYPE = pa.map_(pa.string(), pa.string())
BODY_TYPE = pa.binary()
KEYS = st.sampled_from(["host", "größe", "", "id"])
HEADERS = st.none() | st.dictionaries(KEYS, st.none() | st.text(max_size=5))
ROWS = st.lists(st.tuples(HEADERS, st.binary(max_size=9)), min_size=1, max_size=12)


def arrow_rows(rows: Sequence[Row], body_type: pa.DataType = BODY_TYPE, header_type: Any = HEADER_TYPE) -> Any:
    headers = [None if row[0] is None else list(row[0].items()) for row in rows]
    bodies = pa.array([row[1] for row in rows], pa.binary()).cast(body_type)
    return pa.RecordBatch.from_arrays([bodies, pa.array(headers, header_type)], names=["body", "headers"])


def events(messages: Sequence[event_pb2.EventColumns]) -> list[tuple[dict[str, str], bytes]]:
    for message in messages:
        check_columns(message)
    return [event for message in messages for event in ColumnsCutter(message).rows(0, message.count)]


def expected(rows: Sequence[Row]) -> list[tuple[dict[str, str], bytes]]:
    return [({key: value for key, value in (row[0] or {}).items() if value is not None}, row[1]) for row in rows]


def converted(rows: pa.RecordBatch) -> list[tuple[dict[str, str], bytes]]:
    return events(list(event_columns.event_columns(rows)))


@given(ROWS)
def test_event_columns_hold_what_the_rows_hold(rows: list[Row]) -> None:
    """With constant, sparse, null or missing headers, each row becomes its event, in order."""
    assert converted(arrow_rows(rows)) == expected(rows)


@given(ROWS, st.data())
def test_event_columns_of_a_slice_are_those_of_its_rows(rows: list[Row], data: st.DataObject) -> None:
    """A slice, which shares the buffers of a larger batch, has only its own rows."""
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    assert converted(arrow_rows(rows).slice(start, stop - start)) == expected(rows[start:stop])


@given(ROWS)
def test_event_columns_read_again_are_the_same_rows(rows: list[Row]) -> None:
    """Messages read back equal the written rows."""
    schema = pa.schema([("headers", HEADER_TYPE), ("body", pa.binary())])
    messages = [(1, message, CommitTimes()) for message in event_columns.event_columns(arrow_rows(rows))]
    read = [row for batch in record_batches(messages, schema, {}) for row in batch.to_pylist()]
    assert [(dict(row["headers"]), row["body"]) for row in read] == expected(rows)


@given(
    st.lists(st.tuples(st.lists(st.tuples(KEYS, st.text(max_size=3)), max_size=6), st.binary(max_size=3)), min_size=1)
)
def test_event_columns_of_keys_that_come_twice_take_the_last(rows: list[tuple[list[tuple[str, str]], bytes]]) -> None:
    """A duplicate key of a map becomes one header."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[1] for row in rows], pa.binary()), pa.array([row[0] for row in rows], HEADER_TYPE)],
        names=["body", "headers"],
    )
    assert converted(batch) == [(dict(row[0]), row[1]) for row in rows]


@pytest.mark.parametrize(
    "body_type",
    [
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.binary()),
    ],
)
def test_event_columns_of_other_types_are_the_same(body_type: pa.DataType) -> None:
    """Text, large types and dictionaries are stored as the same bytes."""
    header_type = pa.map_(pa.large_string(), pa.large_string())
    rows: list[Row] = [({"a": "x", "b": None}, "größe".encode()), (None, b""), ({"b": "y"}, b"x")]
    assert converted(arrow_rows(rows, body_type, header_type)) == expected(rows)


def test_event_columns_of_headers_in_dictionaries_are_the_same() -> None:
    """Keys and values may be dictionaries, too."""
    words = pa.dictionary(pa.int32(), pa.string())
    keys = pa.array(["a", "b", "a"]).cast(words)
    headers = pa.MapArray.from_arrays(pa.array([0, 2, 3], pa.int32()), keys, pa.array(["x", "y", "x"]).cast(words))
    batch = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"]), headers], names=["body", "headers"])
    assert converted(batch) == [({"a": "x", "b": "y"}, b"1"), ({"a": "x"}, b"2")]


def test_event_columns_without_headers_have_bodies_only() -> None:
    """The column headers may be missing."""
    assert converted(pa.RecordBatch.from_arrays([pa.array([b"1", b"2"])], names=["body"])) == [({}, b"1"), ({}, b"2")]


def test_event_columns_of_a_constant_header_say_it_once() -> None:
    """A value that all events share is stored once."""
    (message,) = event_columns.event_columns(arrow_rows([({"host": "mill", "id": str(i)}, b"x") for i in range(100)]))
    sizes = {header.key: len(header.sizes) for header in message.headers}
    assert sizes == {"host": 1, "id": 100}


def test_event_columns_of_null_maps_with_hidden_entries_have_none_of_them() -> None:
    """Entries in the buffers of a null map are ignored."""
    keys, values = pa.array(["a", "b", "c"]), pa.array(["1", "2", "3"])
    whole = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), keys, values)
    headers = pa.Array.from_buffers(
        whole.type,
        3,
        [pa.py_buffer(b"\x05"), whole.buffers()[1]],
        children=[_entries(whole)],
    )
    batch = pa.RecordBatch.from_arrays([pa.array([b"1", b"2", b"3"]), headers], names=["body", "headers"])
    assert converted(batch) == [({"a": "1"}, b"1"), ({}, b"2"), ({"c": "3"}, b"3")]


def _entries(maps: pa.MapArray) -> pa.StructArray:
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]
    return pa.StructArray.from_arrays([maps.keys, maps.items], fields=fields)


def test_event_columns_with_too_many_keys_are_several_messages() -> None:
    """Too many header keys are split among messages, without losing an event."""
    rows: list[Row] = [({f"key-{index}": "x", f"other-{index}": "y"}, b"%d" % index) for index in range(500)]
    messages = list(event_columns.event_columns(arrow_rows(rows)))
    assert max(len(message.headers) for message in messages) <= 256
    assert events(messages) == expected(rows)


def test_event_columns_with_sparse_headers_bound_their_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of keys and events that is too large is split."""
    monkeypatch.setattr(event_columns, "HEADER_CELLS_MAX", 20)
    rows: list[Row] = [({f"key-{index % 4}": "x"}, b"%d" % index) for index in range(40)]
    messages = list(event_columns.event_columns(arrow_rows(rows)))
    assert max(len(message.headers) * message.count for message in messages) <= 20
    assert events(messages) == expected(rows)


def test_event_columns_above_bytes_max_are_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages respect their maximum size, and a larger event has its own message."""
    monkeypatch.setattr(event_columns, "MESSAGE_BYTES_MAX", 1_000)
    rows: list[Row] = [*[({}, b"x" * 100)] * 30, ({}, b"y" * 5_000), ({}, b"z")]
    messages = list(event_columns.event_columns(arrow_rows(rows)))
    assert max(len(message.bodies) for message in messages if message.count > 1) <= 1_000
    assert events(messages) == expected(rows)


def test_event_columns_above_rows_max_are_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message has at most `MESSAGE_ROWS_MAX` events."""
    monkeypatch.setattr(event_columns, "MESSAGE_ROWS_MAX", 10)
    rows: list[Row] = [({}, b"%d" % index) for index in range(35)]
    messages = list(event_columns.event_columns(arrow_rows(rows)))
    assert max(message.count for message in messages) <= 10
    assert events(messages) == expected(rows)


def test_event_columns_with_a_null_body_are_refused() -> None:
    """A null body is an error."""
    rows = pa.RecordBatch.from_arrays([pa.array([b"1", None])], names=["body"])
    with pytest.raises(MillraceSparkError, match=r"column body: is null in a row; .* coalesce\(body, ''\)"):
        list(event_columns.event_columns(rows))


def test_event_columns_of_a_row_with_too_many_headers_are_refused() -> None:
    """One event has at most 256 headers."""
    with pytest.raises(MillraceSparkError, match="column headers: a row has 257 headers; at most 256 are allowed"):
        list(event_columns.event_columns(arrow_rows([({f"key-{index}": "x" for index in range(257)}, b"x")])))


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (b"\xff", b"x", "the name of a header is not UTF-8; it must be UTF-8"),
        (b"host", b"\xff", "a value of 'host' is not UTF-8; it must be UTF-8, so encode it with base64 or hex"),
    ],
)
def test_event_columns_with_headers_that_are_not_utf8_are_refused(key: bytes, value: bytes, sentence: str) -> None:
    """Spark's strings may hold any bytes, but headers are UTF-8."""
    keys, values = (pa.Array.from_buffers(pa.string(), 1, pa.array([word]).buffers()) for word in (key, value))
    headers = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), keys, values)
    rows = pa.RecordBatch.from_arrays([pa.array([b"1"]), headers], names=["body", "headers"])
    with pytest.raises(MillraceSparkError, match=f"column headers: {sentence}"):
        list(event_columns.event_columns(rows))
