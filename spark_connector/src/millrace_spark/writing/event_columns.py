"""Arrow arrays as events in columns, without a Python loop over events: the inverse of `millrace.arrow`.

All work per event is done by pyarrow's kernels and Python's C code. Python loops only over header keys, of which a
batch has few.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from millrace.arrow import Ints, counting, int32_array, ints, plain
from millrace.columns import HEADER_CELLS_MAX, HEADER_KEYS_MAX
from millrace.v1 import event_pb2
from millrace_spark.errors import MillraceSparkError

MESSAGE_ROWS_MAX = 10_000
"""The maximum number of events of one message: the default transaction capacity of a file channel."""

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
"""Rows with more bytes become several messages, of at least one event each; a server's default limit is 64 MiB."""


def event_columns(rows: pa.RecordBatch) -> Iterator[event_pb2.EventColumns]:
    """Converts rows to events in columns, in order; to several messages if one would be too large.

    An empty map and a null map mean no headers; entries with a null value are skipped; of duplicate keys in a row, the
    last value wins.

    Args:
        rows: `(body: binary or string, headers: map<string, string>)`, where `headers` is optional; large types,
            dictionaries and slices are supported.

    Raises:
        MillraceSparkError: A body is null, a row has too many headers, or a header's name is not UTF-8.
    """
    bodies = plain(rows.column("body"))
    if bodies.null_count:
        raise MillraceSparkError(
            "column body: is null in a row; remove such rows, or write coalesce(body, '') for an empty body"
        )
    columns = [bodies]
    if "headers" in rows.schema.names:
        columns.append(rows.column("headers"))
    yield from _portions(pa.RecordBatch.from_arrays(columns, names=["body", "headers"][: len(columns)]))


def _portions(rows: pa.RecordBatch) -> Iterator[event_pb2.EventColumns]:
    """Yields the rows as one message, or splits them in halves while a message would be too large."""
    if rows.num_rows <= MESSAGE_ROWS_MAX and (rows.nbytes <= MESSAGE_BYTES_MAX or rows.num_rows == 1):
        headers = _header_columns(rows)
        if headers is not None:
            yield _message(rows.column(0), headers)
            return
    middle = rows.num_rows // 2
    if middle:
        yield from _portions(rows.slice(0, middle))
        yield from _portions(rows.slice(middle))


def _message(bodies: pa.Array, headers: list[event_pb2.HeaderColumn]) -> event_pb2.EventColumns:
    binary = bodies.cast(pa.binary())
    return event_pb2.EventColumns(
        count=len(binary),
        body_sizes=ints(pc.binary_length(binary)),
        bodies=_joined(binary),
        headers=headers,
    )


@dataclass(frozen=True)
class _Entries:
    """The entries of all maps of a batch, without null values: `names[codes[i]]` is the key of entry i."""

    names: list[str]
    codes: pa.Array
    values: pa.Array
    rows: pa.Array
    """The row of each entry, ascending."""


def _header_columns(rows: pa.RecordBatch) -> list[event_pb2.HeaderColumn] | None:
    """Returns one column for each header key; None if they are too many for one message of this many events."""
    count = rows.num_rows
    if rows.num_columns == 1:
        return []
    entries = _entries(rows.column(1))
    key_count = len(entries.names)
    if key_count > HEADER_KEYS_MAX and count == 1:
        raise MillraceSparkError(
            f"column headers: a row has {key_count} headers; at most {HEADER_KEYS_MAX} are allowed"
        )
    if key_count > HEADER_KEYS_MAX or (key_count * count > HEADER_CELLS_MAX and count > 1):
        return None
    if _is_regular(entries, count):
        # Each row has the same keys in the same order, so a key's values are a fixed step apart.
        numbers = array("i", range(len(entries.codes)))
        values = entries.values.take(int32_array(_strided(numbers, key_count)))
        return [
            _header_column(name, values.slice(position * count, count), None, count)
            for position, name in enumerate(entries.names)
        ]
    # Stable, so that the entries of each key stay in the order of their rows.
    order = pc.array_sort_indices(entries.codes)
    values, row_numbers = entries.values.take(order), entries.rows.take(order)
    counts = {counted["values"]: counted["counts"] for counted in pc.value_counts(entries.codes).to_pylist()}
    ends = accumulate((counts[code] for code in range(key_count)), initial=0)
    return [
        _header_column(name, values.slice(start, stop - start), row_numbers.slice(start, stop - start), count)
        for name, (start, stop) in zip(entries.names, pairwise(ends), strict=True)
    ]


def _entries(maps: pa.Array) -> _Entries:
    maps = plain(maps)
    row_numbers = None
    if maps.null_count:
        row_numbers = pc.indices_nonzero(maps.is_valid())
        maps = maps.drop_null()
    # The keys and items of a slice are those of the whole array; its offsets are those of the slice.
    offsets = maps.offsets
    first, stop = (offsets[0].as_py(), offsets[-1].as_py()) if len(maps) else (0, 0)
    keys = plain(maps.keys.slice(first, stop - first)).cast(pa.string())
    values = plain(maps.items.slice(first, stop - first)).cast(pa.string())
    lists = pa.ListArray.from_arrays(pc.subtract(offsets, pa.scalar(first, offsets.type)), keys)
    rows = pc.list_parent_indices(lists)
    if row_numbers is not None:
        rows = row_numbers.take(rows)
    rows = rows.cast(pa.int32())
    if values.null_count:
        has_value = values.is_valid()
        keys, values, rows = keys.filter(has_value), values.filter(has_value), rows.filter(has_value)
    encoded = keys.dictionary_encode()
    try:
        names = encoded.dictionary.to_pylist()
    except UnicodeDecodeError:
        raise MillraceSparkError("column headers: the name of a header is not UTF-8; it must be UTF-8") from None
    return _Entries(names, encoded.indices, values, rows)


def _is_regular(entries: _Entries, count: int) -> bool:
    key_count = len(entries.names)
    if len(entries.codes) != key_count * count:
        return False
    codes = int32_array(array("i", range(key_count)) * count)
    rows = array("i", [0]) * (key_count * count)
    for position in range(key_count):
        rows[position::key_count] = array("i", range(count))
    return bool(entries.codes.equals(codes) and entries.rows.equals(int32_array(rows)))


def _strided(numbers: Ints, step: int) -> Ints:
    order = array("i")
    for position in range(step):
        order += numbers[position::step]
    return order


def _header_column(name: str, values: pa.Array, row_numbers: pa.Array | None, count: int) -> event_pb2.HeaderColumn:
    """Returns one header of `count` events, of which those in `row_numbers` have it; all if None."""
    if row_numbers is not None and len(row_numbers) > 1:
        changes = pc.not_equal(row_numbers.slice(1), row_numbers.slice(0, len(row_numbers) - 1))
        if pc.any(pc.invert(changes)).as_py():
            is_last = pa.concat_arrays([changes, pa.array([True])])
            values, row_numbers = values.filter(is_last), row_numbers.filter(is_last)
    sizes = pc.add(pc.binary_length(values), pa.scalar(1, pa.int32()))
    if len(values) == count:
        if _is_constant(values):
            sizes, values = sizes.slice(0, 1), values.slice(0, 1)
    elif row_numbers is not None:
        places = pc.index_in(counting(range(count), row_numbers.type), value_set=row_numbers)
        sizes = sizes.take(places).fill_null(0)
    joined = _joined(values)
    _check_utf8(name, joined)
    return event_pb2.HeaderColumn(key=name, sizes=ints(sizes), values=joined)


def _check_utf8(name: str, values: bytes) -> None:
    """Checks the text, since Spark's strings may hold any bytes, and the server's error would not name the column."""
    if values.isascii():
        return
    try:
        values.decode()
    except UnicodeDecodeError:
        raise MillraceSparkError(
            f"column headers: a value of {name!r} is not UTF-8; it must be UTF-8, so encode it with base64 or hex"
        ) from None


def _is_constant(values: pa.Array) -> bool:
    # Most columns that are not constant differ in these two values.
    return bool(values[0] == values[-1] and pc.all(pc.equal(values, values[0])).as_py())


def _joined(values: pa.Array) -> bytes:
    """Returns the concatenated bytes of strings or binaries without nulls."""
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return b""
    ends = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, offsets], offset=values.offset)
    first, stop = ends[0].as_py(), ends[-1].as_py()
    joined: bytes = data.slice(first, stop - first).to_pybytes()
    return joined
