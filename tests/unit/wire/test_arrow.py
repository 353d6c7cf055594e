from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import arrow
from millrace.arrow import counting, int32_array, ints, plain, record_batches
from millrace.columns import CommitTimes, columns_from_events
from millrace.v1 import event_pb2
from millrace_spark.reading.stream_reader import arrow_schema
from millrace_spark.source import EVENT_SCHEMA

Event = tuple[dict[str, str], bytes]

NO_TIMES = CommitTimes()
CONSTANTS = {"channel": "orders", "endpoint": "127.0.0.1:7070"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = arrow_schema(EVENT_SCHEMA)

EVENTS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["host", "größe", "", "id"]), st.text(max_size=5)), st.binary(max_size=9)
    ),
    max_size=12,
)


def column_batches(
    events: Sequence[Sequence[Event]], first_sequence: int = 1, times: CommitTimes = NO_TIMES
) -> list[tuple[int, event_pb2.EventColumns, CommitTimes]]:
    """Batches with contiguous sequences, one for each list of events, as in responses to Read."""
    batches = []
    for batch in events:
        for columns in columns_from_events(batch):
            batches.append((first_sequence, columns, times))
            first_sequence += columns.count
    return batches


def rows(batches: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    for batch in batches:
        batch.validate(full=True)
    return [{**row, "headers": dict(row["headers"])} for batch in batches for row in batch.to_pylist()]


@given(st.lists(EVENTS, max_size=5))
def test_record_batches_hold_what_the_columns_hold(events: list[list[Event]]) -> None:
    """Whatever headers and batches there are, each event becomes its row."""
    expected = [event for batch in events for event in batch]
    assert rows(list(record_batches(column_batches(events, first_sequence=7), SCHEMA, CONSTANTS))) == [
        {**CONSTANTS, "sequence": 7 + index, "headers": headers, "body": body, "commit_time": None}
        for index, (headers, body) in enumerate(expected)
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=3))))
def test_record_batches_hold_the_time_of_each_event(batches: list[tuple[int, list[int]]]) -> None:
    """Whether events were committed together, apart or without a time, each row has its own."""
    some: list[tuple[int, event_pb2.EventColumns, CommitTimes]] = []
    expected: list[datetime | None] = []
    for kind, offsets in batches:
        first = kind * 1_700_000_000_000_001
        # 0: no time; 1: all at once; 2: each at its own.
        times = CommitTimes(first, offsets if kind == 2 else [])
        some += column_batches([[({}, b"")] * len(offsets)], times=times)
        later = [EPOCH + timedelta(microseconds=first + offset) for offset in times.offsets or [0] * len(offsets)]
        expected += later if first else [None] * len(offsets)
    assert [row["commit_time"] for row in rows(list(record_batches(some, SCHEMA, CONSTANTS)))] == expected


def test_record_batches_have_the_schema_that_spark_compares() -> None:
    """Spark refuses the first RecordBatch unless its schema is exactly the expected one."""
    batches = list(record_batches(column_batches([[({"host": "a"}, b"x")]]), SCHEMA, CONSTANTS))
    assert [batch.schema.equals(SCHEMA) for batch in batches] == [True]


def test_record_batches_when_batches_are_small_gathers_them() -> None:
    """Events appended one by one become one RecordBatch, not one each."""
    batches = column_batches([[({"id": str(index)}, b"x")] for index in range(1_000)])
    assert [batch.num_rows for batch in record_batches(batches, SCHEMA, CONSTANTS)] == [1_000]


def test_record_batches_above_rows_max_begins_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A RecordBatch has at most `RECORD_BATCH_ROWS_MAX` rows, and no event is lost at the border."""
    monkeypatch.setattr(arrow, "RECORD_BATCH_ROWS_MAX", 10)
    batches = list(record_batches(column_batches([[({}, b"x")] * 4] * 6), SCHEMA, CONSTANTS))
    assert [batch.num_rows for batch in batches] == [8, 8, 8]
    assert [row["sequence"] for row in rows(batches)] == list(range(1, 25))


def test_record_batches_above_bytes_max_begins_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A RecordBatch ends after `RECORD_BATCH_BYTES_MAX` bytes of bodies."""
    monkeypatch.setattr(arrow, "RECORD_BATCH_BYTES_MAX", 100)
    batches = list(record_batches(column_batches([[({}, b"x" * 60)]] * 5), SCHEMA, CONSTANTS))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]


def test_record_batches_with_ever_new_keys_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of keys times events stays small if each event has header keys of its own."""
    monkeypatch.setattr(arrow, "HEADER_CELLS_MAX", 100)
    events = [[({f"key-{index}": "v"}, b"")] for index in range(40)]
    batches = list(record_batches(column_batches(events), SCHEMA, CONSTANTS))
    assert [batch.num_rows for batch in batches] == [10, 10, 10, 10]
    assert [row["headers"] for row in rows(batches)] == [headers for [(headers, _)] in events]


def test_record_batches_when_one_batch_is_large_keeps_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch above `RECORD_BATCH_ROWS_MAX` is not cut, since that would gain nothing."""
    monkeypatch.setattr(arrow, "RECORD_BATCH_ROWS_MAX", 10)
    batches = list(record_batches(column_batches([[({}, b"x")] * 25]), SCHEMA, CONSTANTS))
    assert [batch.num_rows for batch in batches] == [25]


def test_record_batches_with_a_large_constant_header_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of all events is stored once, but repeated in each row, so the rows are split over batches."""
    monkeypatch.setattr(arrow, "RECORD_BATCH_BYTES_MAX", 1_000)
    large = column_batches([[({"trace": "x" * 300}, b"a")] * 10], times=CommitTimes(1, range(10)))
    batches = list(record_batches(large, SCHEMA, CONSTANTS))
    assert [batch.num_rows for batch in batches] == [6, 4]
    assert [(row["sequence"], row["headers"], row["commit_time"]) for row in rows(batches)] == [
        (sequence, {"trace": "x" * 300}, EPOCH + timedelta(microseconds=sequence)) for sequence in range(1, 11)
    ]


def test_record_batches_with_a_hole_keep_their_sequences() -> None:
    """If events were consumed before the claim, the rows after the gap have their own sequences."""
    batches = column_batches([[({}, b"a")] * 2]) + column_batches([[({}, b"b")] * 2], first_sequence=10)
    assert [row["sequence"] for row in rows(list(record_batches(batches, SCHEMA, CONSTANTS)))] == [1, 2, 10, 11]


def test_record_batches_of_some_columns_have_only_these_in_their_order() -> None:
    """A user's schema may omit columns, reorder them, and use other case."""
    schema = pa.schema([SCHEMA.field("body").with_name("Body"), SCHEMA.field("sequence")])
    batches = list(record_batches(column_batches([[({"host": "a"}, b"x")]]), schema, CONSTANTS))
    assert [batch.to_pylist() for batch in batches] == [[{"Body": b"x", "sequence": 1}]]


def test_record_batches_of_nothing_are_none() -> None:
    """An empty range has no RecordBatch."""
    assert list(record_batches([], SCHEMA, CONSTANTS)) == []


@pytest.mark.parametrize("data_type", [pa.int32(), pa.int64(), pa.int16()])
def test_ints_of_a_slice_are_those_of_the_slice(data_type: pa.DataType) -> None:
    """A slice shares the memory of the whole; its numbers are its own, whatever their width."""
    whole = pa.array(range(10), data_type)
    assert ints(whole) == array("i", range(10))
    assert ints(whole.slice(3, 4)) == array("i", [3, 4, 5, 6])
    assert ints(whole.slice(10)) == ints(pa.array([], data_type)) == array("i")


def test_int32_array_of_ints_returns_them() -> None:
    """Conversion to Arrow and back changes nothing."""
    for numbers in (array("i"), array("i", [-1, 0, 2**31 - 1])):
        assert ints(int32_array(numbers)) == numbers


def test_counting_a_range_has_its_numbers() -> None:
    """Ranges may start at any number, also above 32 bits."""
    for numbers, data_type in ((range(5), pa.int32()), (range(2**40, 2**40 + 3), pa.int64()), (range(0), pa.int64())):
        counted = counting(numbers, data_type)
        assert (counted.to_pylist(), counted.type) == (list(numbers), data_type)


def test_plain_of_a_dictionary_has_its_values() -> None:
    """Other arrays are returned unchanged."""
    values = pa.array(["a", None, "a", "b"])
    assert plain(values.dictionary_encode()).equals(values)
    assert plain(values) is values
