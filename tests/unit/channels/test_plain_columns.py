"""Columns that are counted without protobuf: the usual ones, with the same result as protobuf."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import wire_format
from millrace.columns import HEADER_KEYS_MAX, check_columns, columns_from_events
from millrace.v1 import event_pb2
from millrace.wire_format import field, field_head
from millrace_server.channels.plain_columns import count_plain
from tests.event_rows import rows

COUNT = b"\x08\x02"
BODY_SIZES = field(event_pb2.EventColumns.BODY_SIZES_FIELD_NUMBER, b"\x01\x02")
BODIES = field(event_pb2.EventColumns.BODIES_FIELD_NUMBER, b"abb")
HEADERS = event_pb2.EventColumns.HEADERS_FIELD_NUMBER


@pytest.fixture(autouse=True, scope="module")
def _whatever_the_size() -> Iterator[None]:
    """Few bytes or many headers would be left to protobuf, which is faster for these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_format, "_WORTH_IT_BYTES", 0)
        patch.setattr(wire_format, "_FIELDS_MAX", 2 * HEADER_KEYS_MAX)
        yield


def header(*, key: str = "k", sizes: bytes = b"\x02\x01", values: bytes = b"v") -> bytes:
    """An encoded HeaderColumn, as a field of columns."""
    return field(HEADERS, field(1, key.encode()) + field(2, sizes) + field(3, values))


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([({}, b"x" * 300)] * 3, id="equal sizes"),
        pytest.param([({}, b"x" * size) for size in range(5)], id="small sizes"),
        pytest.param([({}, b"x" * size) for size in (0, 5, 300, 20_000)], id="sizes of all widths"),
        pytest.param([({"k": "v"}, b"x")] * 3, id="one value for all"),
        pytest.param([({"k": str(n), "j": "x" * n}, b"x") for n in range(200)], id="many values"),
        pytest.param([({"k": "v"} if n % 2 else {"j": "w"}, b"x") for n in range(4)], id="values here and there"),
        pytest.param([({"k": "v" * n} if n % 2 else {}, b"x") for n in range(300)], id="values of all widths"),
        pytest.param([({"straße": "grün"}, b"x"), ({"straße": "rot"}, b"x")], id="text other than ASCII"),
        pytest.param([({f"{n}": "v" for n in range(HEADER_KEYS_MAX)}, b"x")], id="many headers"),
    ],
)
def test_plain_columns_of_events_are_counted(events: list[tuple[dict[str, str], bytes]]) -> None:
    """This holds for any sizes: protobuf parses nothing that producers send."""
    (columns,) = columns_from_events(events)
    expected = len(events), sum(len(body) for _, body in events)
    assert count_plain(columns.SerializeToString()) == expected
    assert count_plain(memoryview(columns.SerializeToString())) == expected


@pytest.mark.parametrize(
    "raw", [COUNT + BODY_SIZES + header() + BODIES, header(sizes=b"\x02") + BODIES + BODY_SIZES + COUNT]
)
def test_plain_columns_with_fields_in_another_order_are_counted(raw: bytes) -> None:
    """The producer writes bodies last."""
    assert count_plain(raw) == (2, 3)


def test_plain_columns_with_a_header_that_no_event_has_are_counted() -> None:
    """The events that had the header were dropped."""
    assert count_plain(COUNT + BODY_SIZES + BODIES + header(sizes=b"\x00\x00", values=b"")) == (2, 3)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\x08\x03" + BODY_SIZES + BODIES, id="another count"),
        pytest.param(BODY_SIZES + BODIES, id="no count"),
        pytest.param(COUNT + COUNT + BODY_SIZES + BODIES, id="two counts"),
        pytest.param(field(1, b"\x02") + BODY_SIZES + BODIES, id="a count in bytes"),
        pytest.param(COUNT + b"\x10\x03" + BODIES, id="a size that is not packed"),
        pytest.param(COUNT + BODY_SIZES + b"\x18\x03", id="bodies that are a number"),
        pytest.param(COUNT + BODY_SIZES + BODIES + BODIES, id="bodies twice"),
        pytest.param(COUNT + BODY_SIZES + BODIES + b"\x28\x01", id="an unknown field"),
        pytest.param(b"", id="nothing"),
        pytest.param(COUNT + BODY_SIZES, id="no bodies"),
        pytest.param(COUNT + field(2, b"\x00\x00") + field_head(3, 0), id="bodies without bytes"),
        pytest.param(b"\x08\x00" + COUNT + BODY_SIZES + BODIES, id="a count of 0"),
        pytest.param(COUNT + field_head(2, 0) + BODY_SIZES + BODIES, id="empty sizes"),
        pytest.param(COUNT + field(2, b"\x81\x00\x02") + BODIES, id="a size longer than it need be"),
        pytest.param(
            COUNT + field(2, b"\x01\x81\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01") + BODIES, id="a size too large"
        ),
        pytest.param(COUNT + field(2, b"\x01\x82") + BODIES, id="a size without end"),
        pytest.param(COUNT + BODY_SIZES + BODIES + header() + header(), id="a key twice"),
        pytest.param(COUNT + BODY_SIZES + BODIES + header(sizes=b"\x00", values=b""), id="no value for all"),
        pytest.param(COUNT + BODY_SIZES + BODIES + header(sizes=b"\x02\x02"), id="fewer values than sizes say"),
        pytest.param(
            COUNT + BODY_SIZES + BODIES + header(sizes=b"\x02\x01\x01"), id="more sizes of a header than events"
        ),
        pytest.param(COUNT + BODY_SIZES + BODIES + header(sizes=b"", values=b""), id="a header without sizes"),
        pytest.param(
            COUNT + BODY_SIZES + BODIES + header() + header(key="j", sizes=b"\x02\x02"), id="only the second header"
        ),
        pytest.param(COUNT + BODY_SIZES + BODIES + header(values=b"\xff"), id="a value that is no text"),
        pytest.param(COUNT + BODY_SIZES + BODIES + header(sizes=b"\x02\x02", values="ß".encode()), id="half a letter"),
        pytest.param(COUNT + BODY_SIZES + BODIES + b"\x20\x01", id="a header that is a number"),
        pytest.param(COUNT + BODY_SIZES + BODIES + field(HEADERS, b"\x08\x01"), id="a key that is a number"),
        pytest.param(
            COUNT + BODY_SIZES + BODIES + field(HEADERS, field(1, b"k") + b"\x20\x01"), id="unknown in a header"
        ),
        pytest.param(COUNT + BODY_SIZES + BODIES + field(HEADERS, field(1, b"\xc3")), id="a key that is no text"),
        pytest.param(
            COUNT + BODY_SIZES + BODIES + b"".join(header(key=f"{n}") for n in range(HEADER_KEYS_MAX + 1)), id="many"
        ),
    ],
)
def test_plain_columns_of_what_is_not_plain_are_none(raw: bytes) -> None:
    """Their validity is checked elsewhere."""
    assert count_plain(raw) is None


@given(rows(min_size=1), st.data())
def test_plain_columns_of_changed_bytes_are_none_or_what_protobuf_says(events: Any, data: st.DataObject) -> None:
    """Single bytes are changed."""
    (columns, *_) = columns_from_events(events)
    raw = bytearray(columns.SerializeToString())
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    counted = count_plain(bytes(raw))
    if counted is not None:
        columns = event_pb2.EventColumns.FromString(bytes(raw))
        check_columns(columns)
        assert counted == (columns.count, len(columns.bodies))
        assert len(columns.SerializeToString()) == len(raw)
