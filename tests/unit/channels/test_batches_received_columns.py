"""Encoded columns from untrusted clients."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from millrace import wire_format
from millrace.columns import ColumnsCutter, ColumnsError, check_columns, columns_from_events
from millrace.v1 import event_pb2
from millrace.wire_format import field_head
from millrace_server.channels.batches import StoredColumns
from tests.event_rows import Row, rows

LARGE = b"x" * 20_000
BODIES = event_pb2.EventColumns.BODIES_FIELD_NUMBER
HEADERS = event_pb2.EventColumns.HEADERS_FIELD_NUMBER


@pytest.fixture(params=[0, 1 << 30], ids=["taken apart", "parsed"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of any size are decoded by hand, or parsed by protobuf."""
    monkeypatch.setattr(wire_format, "_WORTH_IT_BYTES", request.param)


def large_columns(**changes: Any) -> bytes:
    """One large event with a header, with these fields changed."""
    columns = event_pb2.EventColumns(
        count=1,
        body_sizes=[len(LARGE)],
        bodies=LARGE,
        headers=[event_pb2.HeaderColumn(key="k", sizes=[2], values=b"v")],
    )
    for name, value in changes.items():
        columns.ClearField(name)
        columns.MergeFrom(event_pb2.EventColumns(**{name: value}))
    return columns.SerializeToString()


@pytest.mark.usefixtures("_either_way")
def test_received_columns_that_are_valid_are_kept_unchanged() -> None:
    """Their sizes and their events are known."""
    raw = large_columns()
    stored = StoredColumns.received(raw)
    assert stored.raw == raw
    assert (stored.count, stored.body_bytes, stored.largest_body_bytes) == (1, len(LARGE), len(LARGE))
    assert list(stored.cutter().rows(0, 1)) == [({"k": "v"}, LARGE)]


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (large_columns(count=2), "columns.body_sizes: has 1 entries; columns.count is 2"),
        (large_columns(body_sizes=[len(LARGE) - 1]), "columns.bodies: has 20000 bytes; .* sum to 19999"),
        (large_columns(body_sizes=[len(LARGE) + 1]), "columns.bodies: has 20000 bytes; .* sum to 20001"),
        (large_columns(bodies=LARGE + b"x"), "columns.bodies: has 20001 bytes"),
        (large_columns(bodies=b""), "columns.bodies: has 0 bytes"),
        (large_columns() + field_head(BODIES, 1) + b"x", "columns.bodies: has 1 bytes"),
        (large_columns(headers=[event_pb2.HeaderColumn(key="k", sizes=[2])]), "values: has 0 bytes; its sizes say 1"),
    ],
)
def test_received_columns_that_contradict_themselves_are_refused(raw: bytes, complaint: str) -> None:
    """This holds for both ways of decoding them."""
    with pytest.raises(ColumnsError, match=complaint):
        StoredColumns.received(raw)


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize(
    "raw",
    [
        large_columns()[:-1],
        large_columns() + b"\xff",
        b"\x00" + large_columns(),
        # A key that is not UTF-8.
        large_columns() + field_head(HEADERS, 3) + field_head(1, 1) + b"\xff",
        # A header that protobuf cannot parse: a consumer could not parse it either.
        event_pb2.EventColumns(count=1, body_sizes=[len(LARGE)]).SerializeToString()
        + b"\x9a\x80\x80\x80\x80\x00"
        + field_head(BODIES, len(LARGE))[1:]
        + LARGE,
    ],
)
def test_received_columns_that_are_none_are_refused(raw: bytes) -> None:
    """Bytes that protobuf cannot parse are never stored."""
    with pytest.raises(DecodeError):
        StoredColumns.received(raw)


@pytest.mark.usefixtures("_either_way")
def test_received_columns_with_unknown_fields_drop_them() -> None:
    """They would be stored and sent, but no limit counts them."""
    unknown = bytes([15 << 3 | 2, 100]) + b"u" * 100
    raw = large_columns()
    assert StoredColumns.received(raw + unknown).raw == raw
    assert StoredColumns.received(unknown + raw).raw == raw
    header = field_head(HEADERS, 1 + 2 + 102) + field_head(1, 1) + b"j" + unknown
    with pytest.raises(ColumnsError, match=r"headers\[1\]\.sizes: has 0 entries"):
        StoredColumns.received(raw + header)


@pytest.mark.usefixtures("_either_way")
def test_received_columns_with_unknown_fields_in_saved_bytes_stay_within_bounds() -> None:
    """Fields encoded shorter than protobuf does could make space for unknown bytes, which gains nothing."""
    short = b"".join(
        field_head(HEADERS, len(column)) + column
        for column in (field_head(1, 3) + b"%03d" % number + b"\x10\x02" + b"\x1a\x01v" for number in range(100))
    )
    hidden = bytes([15 << 3 | 2, 98]) + b"u" * 98
    events = event_pb2.EventColumns(count=2, body_sizes=[len(LARGE), 0], bodies=LARGE).SerializeToString()
    stored = StoredColumns.received(events + short + hidden)
    assert stored.cutter().columns_bytes_bound(0, 2) >= len(stored.raw)
    assert [len(headers) for headers, _ in stored.cutter().rows(0, 2)] == [100, 100]


def test_received_columns_of_none_are_empty() -> None:
    """No bytes are columns without events."""
    assert StoredColumns.received(b"").count == 0


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """The bytes of columns with some of them changed."""
    (columns,) = columns_from_events(draw(rows(min_size=1)))
    raw = bytearray(columns.SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(raw)))
        stop = draw(st.integers(start, min(start + 3, len(raw))))
        raw[start:stop] = draw(st.binary(max_size=4))
    return bytes(raw)


@given(_mutated())
def test_received_columns_of_any_bytes_are_good_or_refused(raw: bytes) -> None:
    """Both ways of decoding have the same result; stored columns can be read, and are within their bound."""
    outcomes: list[list[Row] | type[Exception]] = []
    for worth_it_bytes in (0, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire_format, "_WORTH_IT_BYTES", worth_it_bytes)
            try:
                stored = StoredColumns.received(raw)
            except (ColumnsError, DecodeError) as error:
                outcomes.append(type(error))
                continue
        columns = event_pb2.EventColumns.FromString(bytes(stored.raw))
        check_columns(columns)
        assert (stored.count, stored.body_bytes) == (columns.count, len(columns.bodies))
        cutter = ColumnsCutter(columns)
        assert len(stored.raw) <= cutter.columns_bytes_bound(0, stored.count)
        outcomes.append(list(cutter.rows(0, stored.count)))
    assert outcomes[0] == outcomes[1]
