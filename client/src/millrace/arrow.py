"""Events in columns as Arrow arrays, without a Python loop over events.

All work per event is done in C: slices of protobuf's repeated fields, `array.array`, and pyarrow's kernels. Bodies and
header values stay the bytes that came over the wire.

The client never imports this module: it needs pyarrow, which the client does not depend on.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from millrace.columns import HEADER_CELLS_MAX, ColumnsCutter, CommitTimes
from millrace.v1 import event_pb2

Ints: TypeAlias = "array[int]"
"""C ints, the type of the offsets in Arrow's strings, binaries and maps."""

RECORD_BATCH_ROWS_MAX = 10_000
"""Small batches are joined up to this number of rows; below about 1,000, Spark's cost per RecordBatch shows."""

RECORD_BATCH_BYTES_MAX = 16 * 1024 * 1024
"""No further batch joins a RecordBatch with this many bytes of bodies and header values."""

_UNKNOWN_TIMES = CommitTimes()


def record_batches(
    batches: Iterable[tuple[int, event_pb2.EventColumns, CommitTimes]], schema: pa.Schema, constants: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Converts batches of events, each with its first sequence and its times, to RecordBatches: one row per event.

    Small batches are joined, so that a channel filled event by event does not become RecordBatches of one row. A batch
    larger than `RECORD_BATCH_ROWS_MAX` stays whole.
    """
    builder = RecordBatchBuilder(schema, constants)
    for batch in batches:
        for first_sequence, columns, times in _parts(*batch):
            if not builder.has_space_for(columns):
                yield builder.build()
                builder = RecordBatchBuilder(schema, constants)
            builder.add(first_sequence, columns, times)
    if builder.count:
        yield builder.build()


def _parts(
    first_sequence: int, columns: event_pb2.EventColumns, times: CommitTimes
) -> Iterator[tuple[int, event_pb2.EventColumns, CommitTimes]]:
    """Cuts a batch whose constant headers, repeated in each row, would exceed what Arrow's offsets can address."""
    constant_bytes = sum(len(header.values) for header in columns.headers if len(header.sizes) == 1)
    count_max = max(RECORD_BATCH_BYTES_MAX // max(constant_bytes, 1), 1)
    if columns.count <= count_max:
        yield first_sequence, columns, times
        return
    cutter = ColumnsCutter(columns)
    for start in range(0, columns.count, count_max):
        stop = min(start + count_max, columns.count)
        yield first_sequence + start, cutter.cut(start, stop), times.cut(start, stop)


class RecordBatchBuilder:
    """Joins batches of events to one RecordBatch.

    Args:
        schema: Any of the columns `(sequence: int64, headers: map<string, string>, body: binary, commit_time:
            timestamp[us, UTC])` and those of `constants`, in any order; names may differ in case.
        constants: The columns with the same value in every row, by their name in lower case.
    """

    def __init__(self, schema: pa.Schema, constants: Mapping[str, str]) -> None:
        self.count = 0
        self._schema = schema
        self._constants = constants
        names = {name.lower() for name in schema.names}
        self._wants_headers = "headers" in names
        self._wants_times = "commit_time" in names
        self._bytes = 0
        self._body_sizes = array("i", [0])
        self._bodies: list[bytes] = []
        self._headers: dict[str, _JoinedHeader] = {}
        self._sequences: list[range] = []
        self._times = array("q")
        self._lacks_times = False

    def has_space_for(self, columns: event_pb2.EventColumns) -> bool:
        """Whether a batch may join. An empty builder takes any batch."""
        if not self.count:
            return True
        count = self.count + columns.count
        key_count = len(self._headers) + sum(header.key not in self._headers for header in columns.headers)
        return (
            count <= RECORD_BATCH_ROWS_MAX
            and self._bytes < RECORD_BATCH_BYTES_MAX
            and key_count * count <= HEADER_CELLS_MAX
        )

    def add(self, first_sequence: int, columns: event_pb2.EventColumns, times: CommitTimes = _UNKNOWN_TIMES) -> None:
        """Adds a batch after the others."""
        if self._wants_times:
            self._lacks_times |= not times.first
            self._times.frombytes(_times_by_event(times, columns.count))
        for header in columns.headers if self._wants_headers else ():
            joined = self._headers.setdefault(header.key, _JoinedHeader(header.key))
            joined.add(header, columns.count, count_before=self.count)
            self._bytes += len(header.values) * (columns.count if len(header.sizes) == 1 else 1)
        # Reading a bytes field copies it, so it is read once.
        bodies = columns.bodies
        self._bodies.append(bodies)
        self._bytes += len(bodies)
        self._body_sizes.frombytes(packed_ints(columns.body_sizes[:]))
        self._add_sequences(range(first_sequence, first_sequence + columns.count))
        self.count += columns.count

    def build(self) -> pa.RecordBatch:
        """Returns the RecordBatch of all added events."""
        return pa.RecordBatch.from_arrays([self._column(column) for column in self._schema], schema=self._schema)

    def _column(self, column: pa.Field) -> pa.Array:
        name: str = column.name
        match name.lower():
            case constant if constant in self._constants:
                return _repeated(self._constants[constant], self.count)
            case "sequence":
                return pa.concat_arrays([counting(numbers, pa.int64()) for numbers in self._sequences])
            case "headers":
                return _maps(list(self._headers.values()), self.count, column.type)
            case "body":
                return _slices(int32_array(self._body_sizes), self._bodies, column.type)
            case "commit_time":
                return self._commit_times(column.type)
            case _:
                raise ValueError(f"schema: has the column {name!r}, which events do not have")

    def _commit_times(self, data_type: pa.DataType) -> pa.Array:
        times = pa.Array.from_buffers(pa.int64(), self.count, [None, pa.py_buffer(self._times)])
        if self._lacks_times:
            times = pc.if_else(pc.equal(times, 0), None, times)
        return times.view(data_type)

    def _add_sequences(self, numbers: range) -> None:
        if self._sequences and self._sequences[-1].stop == numbers.start:
            numbers = range(self._sequences.pop().start, numbers.stop)
        self._sequences.append(numbers)


@dataclass
class _JoinedHeader:
    """One header of all added events: HeaderColumn's `sizes` and `values`.

    As in HeaderColumn, a single size stands for all `count` events.
    """

    key: str
    count: int = 0
    sizes: Ints = field(default_factory=lambda: array("i"))
    values: list[bytes] = field(default_factory=list)

    @property
    def is_constant(self) -> bool:
        return len(self.sizes) == 1 and self.sizes[0] > 0

    def add(self, header: event_pb2.HeaderColumn, count: int, count_before: int) -> None:
        """Adds the header of `count` events, after `count_before` events."""
        sizes = array("i", packed_ints(header.sizes[:]))
        values = header.values
        is_constant = len(sizes) == 1 and sizes[0] > 0
        if is_constant and self.count == count_before and self._continues(sizes, values):
            self.sizes, self.values = sizes, [values]
        else:
            self.spread(count_before)
            self.sizes.extend(sizes * count if is_constant else sizes)
            self.values.append(values * count if is_constant else values)
        self.count = count_before + count

    def spread(self, count: int) -> None:
        """Stores one size for each of `count` events; events after `self.count` do not have the header."""
        if self.is_constant:
            self.sizes *= self.count
            self.values = [self.values[0] * self.count]
        if missing := count - len(self.sizes):
            self.sizes.extend(array("i", [0]) * missing)
        self.count = count

    def _continues(self, sizes: Ints, values: bytes) -> bool:
        return not self.count or (self.is_constant and self.sizes == sizes and self.values[0] == values)


def _maps(headers: Sequence[_JoinedHeader], count: int, data_type: pa.DataType) -> pa.Array:
    """Returns one map per event, with its entries in the order of `headers`."""
    sizes = array("i", [0])
    values: list[bytes] = []
    for header in headers:
        if header.count < count:
            header.spread(count)
        sizes.extend(header.sizes)
        values.extend(header.values)
    keys = tuple(header.key for header in headers)
    value_numbers = _value_numbers(tuple(header.is_constant for header in headers), count)
    # A size is the value's length plus one; 0 means that the event lacks the header.
    lengths = pc.max_element_wise(pc.subtract(int32_array(sizes), 1), 0)
    strings = _slices(lengths, values, pa.string())
    if pc.min(int32_array(sizes).slice(1)).as_py() == 0:
        has_value = pc.greater(int32_array(sizes).slice(1).take(value_numbers), 0)
        entry_ends = ints(pc.cumulative_sum(has_value.cast(pa.int32())))
        offsets = int32_array(array("i", [0]) + entry_ends[len(headers) - 1 :: len(headers)])
        repeated_keys = _repeated_keys(keys, count).filter(has_value)
        value_numbers = value_numbers.filter(has_value)
    else:
        offsets = pc.multiply(counting(range(count + 1), pa.int32()), len(headers)).cast(pa.int32())
        repeated_keys = _repeated_keys(keys, count)
    by_event = pc.take(strings, value_numbers, boundscheck=False)
    return pa.MapArray.from_arrays(offsets, repeated_keys, by_event, type=data_type)


# Successive RecordBatches have the same keys and similar numbers of rows: what depends on no event is kept.


def _repeated_keys(keys: Sequence[str], count: int) -> pa.Array:
    """Returns the keys once for each event."""
    return _keys_of_many(keys, _rounded_up(count)).slice(0, len(keys) * count)


@lru_cache(1)
def _keys_of_many(keys: Sequence[str], count: int) -> pa.Array:
    return pa.array(keys, pa.string()).take(int32_array(array("i", range(len(keys))) * count))


@lru_cache(1)
def _value_numbers(are_constant: Sequence[bool], count: int) -> pa.Array:
    """Returns the index of the value of each event and header; a constant header has one value, others one an event."""
    numbers = array("i", [0]) * (count * len(are_constant))
    first = 0
    for position, is_constant in enumerate(are_constant):
        values = array("i", [first]) * count if is_constant else ints(counting(range(first, first + count), pa.int32()))
        numbers[position :: len(are_constant)] = values
        first += 1 if is_constant else count
    return int32_array(numbers)


def _repeated(value: str, count: int) -> pa.Array:
    return _repeated_often(value, _rounded_up(count)).slice(0, count)


@lru_cache(2)
def _repeated_often(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), count)


def _rounded_up(count: int) -> int:
    """Returns a power of two, so that few different counts are in use."""
    return 1 << max(count - 1, 0).bit_length()


def _slices(lengths: pa.Array, values: Sequence[bytes], data_type: pa.DataType) -> pa.Array:
    """Cuts the joined values into strings or binaries; `lengths` starts with a 0 that belongs to no value."""
    offsets = pc.cumulative_sum(lengths).cast(pa.int32())
    joined = values[0] if len(values) == 1 else b"".join(values)
    return pa.Array.from_buffers(data_type, len(lengths) - 1, [None, offsets.buffers()[1], pa.py_buffer(joined)])


def int32_array(values: Ints) -> pa.Array:
    """Returns C ints as an array over the same memory."""
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])


def packed_ints(values: Sequence[int]) -> bytes:
    """Returns Python's numbers as C ints, in a fifth of the time of `array.extend`."""
    return struct.pack(f"{len(values)}i", *values)


def _times_by_event(times: CommitTimes, count: int) -> bytes:
    """Returns the time of each event as a 64-bit number."""
    if not times.offsets:
        return array("q", [times.first]).tobytes() * count
    packed = struct.pack(f"{count}I", *times.offsets[:])
    offsets = pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(packed)]).cast(pa.int64())
    encoded: bytes = pc.add(offsets, pa.scalar(times.first)).buffers()[1].to_pybytes()
    return encoded[: 8 * count]


def ints(values: pa.Array) -> Ints:
    """Returns an array of whole numbers without nulls, which may be a slice, as C ints."""
    # Kernels widen an operand that meets a bare Python number to 64 bits.
    narrow = values.cast(pa.int32())
    copied = array("i")
    buffer = narrow.buffers()[1]
    if buffer is not None:
        first = narrow.offset * copied.itemsize
        copied.frombytes(memoryview(buffer)[first : first + len(narrow) * copied.itemsize])
    return copied


def counting(numbers: range, data_type: pa.DataType) -> pa.Array:
    """Returns consecutive numbers as an array."""
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, data_type), len(numbers)), start=numbers.start - 1)


def plain(values: pa.Array) -> pa.Array:
    """Returns the values themselves, decoded where the array is a dictionary."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
