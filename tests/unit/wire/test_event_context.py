import pytest

from millrace.columns import columns_from_events
from millrace.event_context import KEYS_MAX, context_fields, encoded_traceparents, headers_with_context, traceparents
from millrace.v1 import event_pb2

FIRST = f"00-{1:032x}-{1:016x}-01"
SECOND = f"00-{2:032x}-{2:016x}-00"


def columns_of(*headers: dict[str, str], body: bytes = b"x") -> event_pb2.EventColumns:
    [columns] = columns_from_events([(each, body) for each in headers])
    return columns


@pytest.mark.parametrize("body", [b"", bytes(20_000)])
def test_traceparents_are_those_of_the_events(body: bytes) -> None:
    """They are found in columns that are parsed, encoded, and large."""
    columns = columns_of({"traceparent": FIRST}, {}, {"traceparent": SECOND, "k": "v"}, body=body)
    assert list(traceparents(columns)) == [FIRST, SECOND]
    assert list(encoded_traceparents(memoryview(columns.SerializeToString()))) == [FIRST, SECOND]


def test_traceparents_of_events_that_share_one_come_once() -> None:
    """However many events there are."""
    assert list(traceparents(columns_of(*[{"traceparent": FIRST}] * 3))) == [FIRST]
    assert list(traceparents(columns_of({}, {}))) == []


def test_context_fields_behind_columns_give_all_events_the_context() -> None:
    """The columns are what protobuf would have written with the header."""
    columns = columns_of({"k": "v"}, {"k": "w"})
    encoded = columns.SerializeToString() + context_fields(columns, {"traceparent": FIRST, "tracestate": "a=b"})
    expected = [{"k": value, "traceparent": FIRST, "tracestate": "a=b"} for value in "vw"]
    assert event_pb2.EventColumns.FromString(encoded) == columns_of(*expected)


def test_context_of_events_that_have_one_or_too_many_headers_is_left_alone() -> None:
    """The user's own context wins, and no event becomes invalid."""
    own, many = {"traceparent": SECOND}, {str(number): "" for number in range(KEYS_MAX)}
    for headers in (own, many):
        assert context_fields(columns_of(headers), {"traceparent": FIRST}) == b""
        assert headers_with_context(headers, {"traceparent": FIRST}) is headers
    assert headers_with_context({"k": "v"}, {"traceparent": FIRST}) == {"k": "v", "traceparent": FIRST}
