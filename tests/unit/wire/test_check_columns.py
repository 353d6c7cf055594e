import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import HEADER_KEYS_MAX, ColumnsCutter, ColumnsError, check_columns, columns_from_events
from millrace.v1 import event_pb2
from tests.event_rows import Row, rows

UINT32_MAX = (1 << 32) - 1


def header(key: str = "k", sizes: tuple[int, ...] = (2, 3), values: bytes = b"abb") -> event_pb2.HeaderColumn:
    return event_pb2.HeaderColumn(key=key, sizes=sizes, values=values)


def two_events(
    *headers: event_pb2.HeaderColumn, count: int = 2, body_sizes: tuple[int, ...] = (1, 2), bodies: bytes = b"xyy"
) -> event_pb2.EventColumns:
    return event_pb2.EventColumns(count=count, body_sizes=body_sizes, bodies=bodies, headers=headers)


@pytest.mark.parametrize(
    "columns",
    [
        event_pb2.EventColumns(),
        two_events(),
        two_events(body_sizes=(0, 0), bodies=b""),
        two_events(header()),
        two_events(header(key="")),
        two_events(header(), header("other")),
        two_events(header(sizes=(0, 0), values=b"")),
        two_events(header(sizes=(1, 1), values=b"")),
        two_events(header(sizes=(0, 4), values="é!".encode())),
        two_events(header(sizes=(4,), values="é!".encode())),
        two_events(header(sizes=(1,), values=b"")),
        two_events(header(sizes=(0,), values=b""), count=1, body_sizes=(3,)),
        two_events(header(sizes=(2,), values=b"a"), count=1, body_sizes=(3,)),
        two_events(header(sizes=(2,), values=b"a"), count=0, body_sizes=(), bodies=b""),
        two_events(header(sizes=(), values=b""), count=0, body_sizes=(), bodies=b""),
        two_events(*(header(str(number)) for number in range(HEADER_KEYS_MAX))),
    ],
)
def test_check_columns_that_hold_together_passes(columns: event_pb2.EventColumns) -> None:
    """Everything that the format allows passes, including columns without events."""
    check_columns(columns)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (two_events(count=1), r"columns\.body_sizes: has 2 entries; columns\.count is 1"),
        (two_events(count=3), r"columns\.body_sizes: has 2 entries; columns\.count is 3"),
        (two_events(count=UINT32_MAX), r"columns\.body_sizes: has 2 entries; columns\.count is 4294967295"),
        (two_events(count=0), r"columns\.body_sizes: has 2 entries; columns\.count is 0"),
        (two_events(bodies=b"xy"), r"columns\.bodies: has 2 bytes; columns\.body_sizes sum to 3"),
        (two_events(bodies=b"xyyy"), r"columns\.bodies: has 4 bytes; columns\.body_sizes sum to 3"),
        (
            # The sum would be 3 in 32 bits.
            two_events(body_sizes=(UINT32_MAX, 4)),
            r"columns\.bodies: has 3 bytes; columns\.body_sizes sum to 4294967299",
        ),
        (
            two_events(*(header(str(number)) for number in range(HEADER_KEYS_MAX + 1))),
            r"columns\.headers: has 257 keys; at most 256 are allowed",
        ),
        (two_events(header(), header("a"), header()), r"columns\.headers: a key is duplicated"),
        (two_events(header(sizes=())), r"columns\.headers\[0\]\.sizes: has 0 entries; 1 or columns\.count, 2"),
        (
            two_events(header(), header("a", sizes=(1, 1, 4))),
            r"columns\.headers\[1\]\.sizes: has 3 entries; 1 or columns\.count, 2",
        ),
        (
            two_events(header(sizes=(2, 2)), count=0, body_sizes=(), bodies=b""),
            r"columns\.headers\[0\]\.sizes: has 2 entries; 1 or columns\.count, 0",
        ),
        (two_events(header(sizes=(0,), values=b"")), r"columns\.headers\[0\]\.sizes: a single entry .* is 0"),
        (
            two_events(header(sizes=(0,), values=b""), count=0, body_sizes=(), bodies=b""),
            r"columns\.headers\[0\]\.sizes: a single entry .* is 0",
        ),
        (two_events(header(values=b"ab")), r"columns\.headers\[0\]\.values: has 2 bytes; its sizes say 3"),
        (two_events(header(values=b"abbb")), r"columns\.headers\[0\]\.values: has 4 bytes; its sizes say 3"),
        (two_events(header(sizes=(0, 0), values=b"a")), r"columns\.headers\[0\]\.values: has 1 bytes; its sizes say 0"),
        (
            two_events(header(sizes=(UINT32_MAX, 5), values=b"ab")),
            r"columns\.headers\[0\]\.values: has 2 bytes; its sizes say 4294967298",
        ),
        (two_events(header(sizes=(4,), values=b"a\xff!")), r"columns\.headers\[0\]\.values: is not UTF-8 at byte 1"),
        (two_events(header(values=b"a\xc3(")), r"columns\.headers\[0\]\.values: is not UTF-8 at byte 1"),
        # A surrogate, and an overlong encoding of "/".
        (two_events(header(sizes=(4,), values=b"\xed\xa0\x80")), r"is not UTF-8 at byte 0"),
        (two_events(header(sizes=(3,), values=b"\xc0\xaf")), r"is not UTF-8 at byte 0"),
        (two_events(header(sizes=(2, 2), values="é".encode())), r"a value ends inside a UTF-8 character"),
        (two_events(header(sizes=(4, 2), values="🜂".encode())), r"a value ends inside a UTF-8 character"),
        (
            two_events(header(sizes=(2, 0, 1, 2), values="é".encode()), count=4, body_sizes=(0, 0, 0, 0), bodies=b""),
            r"a value ends inside a UTF-8 character",
        ),
    ],
)
def test_check_columns_that_contradict_themselves_says_where(columns: event_pb2.EventColumns, complaint: str) -> None:
    """Each contradiction is refused with the field, its value, and what is allowed."""
    with pytest.raises(ColumnsError, match=complaint):
        check_columns(columns)


def _lies() -> st.SearchStrategy[event_pb2.EventColumns]:
    """Random columns, most of which are inconsistent."""
    sizes = st.lists(st.integers(0, 3), max_size=3)
    headers = st.lists(
        st.builds(
            event_pb2.HeaderColumn,
            key=st.sampled_from(["a", "b"]),
            sizes=sizes,
            values=st.sampled_from([b"", b"a", b"ab", "é".encode(), "éé".encode(), b"\xa9", b"\xc3"]),
        ),
        max_size=2,
    )
    return st.builds(
        event_pb2.EventColumns,
        count=st.integers(0, 3),
        body_sizes=sizes,
        bodies=st.binary(max_size=4),
        headers=headers,
    )


@st.composite
def _columns_with_one_lie(draw: st.DrawFn) -> event_pb2.EventColumns:
    (columns,) = columns_from_events(draw(rows(min_size=1)))
    match draw(st.sampled_from(["count", "body size", "bodies", "header size", "header values", "sizes", "nothing"])):
        case "count":
            columns.count = draw(st.integers(0, 9))
        case "body size":
            columns.body_sizes[draw(st.integers(0, columns.count - 1))] = draw(st.integers(0, 12))
        case "bodies":
            columns.bodies = draw(st.binary(max_size=20))
        case "header size" if columns.headers:
            column = columns.headers[draw(st.integers(0, len(columns.headers) - 1))]
            column.sizes[draw(st.integers(0, len(column.sizes) - 1))] = draw(st.integers(0, 5))
        case "header values" if columns.headers:
            column = columns.headers[draw(st.integers(0, len(columns.headers) - 1))]
            column.values = draw(st.binary(max_size=8))
        case "sizes" if columns.headers:
            columns.headers[0].sizes.append(draw(st.integers(0, 3)))
    return columns


@given(st.one_of(_lies(), _columns_with_one_lie()))
def test_check_columns_that_pass_can_be_read_and_cut(columns: event_pb2.EventColumns) -> None:
    """Columns that pass can be converted to rows and cut anywhere, and each cut passes as well."""
    try:
        check_columns(columns)
    except ColumnsError:
        return
    cutter = ColumnsCutter(columns)
    everything: list[Row] = list(cutter.rows(0, columns.count))
    assert len(everything) == columns.count
    for start in range(columns.count + 1):
        for stop in range(start, columns.count + 1):
            cut = cutter.cut(start, stop)
            check_columns(cut)
            assert list(ColumnsCutter(cut).rows(0, cut.count)) == everything[start:stop]
