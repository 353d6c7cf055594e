"""Events in columns become Arrow, without a Python loop over events.

What is to be done for each event is done by C code: slices of protobuf's repeated fields, `array.array`, and pyarrow's
kernels. Bodies and header values stay the bytes that came over the wire.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from millrace.columns import HEADER_CELLS_MAX, ColumnsCutter
from millrace.v1 import event_pb2
from millrace_spark.arrow_buffers import Ints, counting, int32_array, ints, packed_ints

RECORD_BATCH_ROWS_MAX = 10_000
"""Small batches are gathered into RecordBatches of up to so many rows; below some 1,000 Spark's cost for each shows."""

RECORD_BATCH_BYTES_MAX = 16 * 1024 * 1024
"""A RecordBatch that has so many bytes of bodies and header values is joined by no further batch."""


@dataclass(frozen=True)
class EventOrigin:
    """Where events come from; the same in every row of a RecordBatch."""

    channel: str
    endpoint: str


def record_batches(
    batches: Iterable[tuple[int, event_pb2.EventColumns]], origin: EventOrigin, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Turns batches of events into RecordBatches, one row an event, in order.

    Batches are gathered, so that a channel that was filled event by event does not become RecordBatches of one row. A
    batch that is larger than `RECORD_BATCH_ROWS_MAX` stays whole.

    Args:
        batches: For each batch the sequence of its first event, and its events.
        origin: What stands in the columns `channel` and `endpoint`.
        schema: Any of the columns `(channel: string, endpoint: string, sequence: int64,
            headers: map<string, string>, body: binary)` in any order; names may differ in case.
    """
    builder = RecordBatchBuilder(origin, schema)
    for batch in batches:
        for first_sequence, columns in _parts(*batch):
            if not builder.has_room_for(columns):
                yield builder.build()
                builder = RecordBatchBuilder(origin, schema)
            builder.add(first_sequence, columns)
    if builder.count:
        yield builder.build()


def _parts(first_sequence: int, columns: event_pb2.EventColumns) -> Iterator[tuple[int, event_pb2.EventColumns]]:
    """Cuts a batch whose constant headers would, once they stand in each row, pass what Arrow's offsets can count."""
    constant_bytes = sum(len(header.values) for header in columns.headers if len(header.sizes) == 1)
    count_max = max(RECORD_BATCH_BYTES_MAX // max(constant_bytes, 1), 1)
    if columns.count <= count_max:
        yield first_sequence, columns
        return
    cutter = ColumnsCutter(columns)
    for start in range(0, columns.count, count_max):
        yield first_sequence + start, cutter.cut(start, min(start + count_max, columns.count))


class RecordBatchBuilder:
    """Gathers batches of events for one RecordBatch."""

    def __init__(self, origin: EventOrigin, schema: pa.Schema) -> None:
        self.count = 0
        self._origin = origin
        self._schema = schema
        self._wants_headers = any(name.lower() == "headers" for name in schema.names)
        self._bytes = 0
        self._body_sizes = array("i", [0])
        self._bodies: list[bytes] = []
        self._headers: dict[str, _GatheredHeader] = {}
        self._sequences: list[range] = []

    def has_room_for(self, columns: event_pb2.EventColumns) -> bool:
        """Tells whether a batch may join. An empty builder takes any batch."""
        if not self.count:
            return True
        count = self.count + columns.count
        key_count = len(self._headers) + sum(header.key not in self._headers for header in columns.headers)
        return (
            count <= RECORD_BATCH_ROWS_MAX
            and self._bytes < RECORD_BATCH_BYTES_MAX
            and key_count * count <= HEADER_CELLS_MAX
        )

    def add(self, first_sequence: int, columns: event_pb2.EventColumns) -> None:
        """Adds a batch behind the others."""
        for header in columns.headers if self._wants_headers else ():
            gathered = self._headers.setdefault(header.key, _GatheredHeader(header.key))
            gathered.add(header, columns.count, count_before=self.count)
            self._bytes += len(header.values) * (columns.count if len(header.sizes) == 1 else 1)
        # Reading a bytes field copies it: once.
        bodies = columns.bodies
        self._bodies.append(bodies)
        self._bytes += len(bodies)
        self._body_sizes.frombytes(packed_ints(columns.body_sizes[:]))
        self._add_sequences(range(first_sequence, first_sequence + columns.count))
        self.count += columns.count

    def build(self) -> pa.RecordBatch:
        """The RecordBatch of all that was added."""
        return pa.RecordBatch.from_arrays([self._column(column) for column in self._schema], schema=self._schema)

    def _column(self, column: pa.Field) -> pa.Array:
        name: str = column.name
        match name.lower():
            case "channel":
                return pa.repeat(pa.scalar(self._origin.channel), self.count)
            case "endpoint":
                return pa.repeat(pa.scalar(self._origin.endpoint), self.count)
            case "sequence":
                return pa.concat_arrays([counting(numbers, pa.int64()) for numbers in self._sequences])
            case "headers":
                return _maps(list(self._headers.values()), self.count, column.type)
            case "body":
                return _slices(int32_array(self._body_sizes), self._bodies, column.type)
            case _:
                raise ValueError(f"schema: has the column {name!r}; events have none of that name")

    def _add_sequences(self, numbers: range) -> None:
        if self._sequences and self._sequences[-1].stop == numbers.start:
            numbers = range(self._sequences.pop().start, numbers.stop)
        self._sequences.append(numbers)


@dataclass
class _GatheredHeader:
    """One header of all gathered events: HeaderColumn's `sizes` and `values`.

    As there, one single size holds for all `count` events.
    """

    key: str
    count: int = 0
    sizes: Ints = field(default_factory=lambda: array("i"))
    values: list[bytes] = field(default_factory=list)

    @property
    def is_constant(self) -> bool:
        return len(self.sizes) == 1 and self.sizes[0] > 0

    def add(self, header: event_pb2.HeaderColumn, count: int, count_before: int) -> None:
        """Adds the header of `count` events; `count_before` events have been gathered before them."""
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
        """Gives each of `count` events a size of its own; those after `self.count` have no such header."""
        if self.is_constant:
            self.sizes *= self.count
            self.values = [self.values[0] * self.count]
        if missing := count - len(self.sizes):
            self.sizes.extend(array("i", [0]) * missing)
        self.count = count

    def _continues(self, sizes: Ints, values: bytes) -> bool:
        return not self.count or (self.is_constant and self.sizes == sizes and self.values[0] == values)


def _maps(headers: Sequence[_GatheredHeader], count: int, data_type: pa.DataType) -> pa.Array:
    """One map an event; its entries stand in the order of `headers`."""
    strings, value_numbers = _values_by_event(headers, count)
    key_numbers = int32_array(array("i", range(len(headers))) * count)
    has_value = pc.greater_equal(value_numbers, 0)
    if pc.all(has_value, min_count=0).as_py():
        offsets = pc.multiply(counting(range(count + 1), pa.int32()), len(headers)).cast(pa.int32())
    else:
        value_numbers = value_numbers.filter(has_value)
        key_numbers = key_numbers.filter(has_value)
        entry_ends = ints(pc.cumulative_sum(has_value.cast(pa.int32())))
        offsets = int32_array(array("i", [0]) + entry_ends[len(headers) - 1 :: len(headers)])
    keys = pa.array([header.key for header in headers], pa.string())
    return pa.MapArray.from_arrays(offsets, keys.take(key_numbers), strings.take(value_numbers), type=data_type)


def _values_by_event(headers: Sequence[_GatheredHeader], count: int) -> tuple[pa.Array, pa.Array]:
    """All values, and for each event and header the number of its value among them, -1 where there is none."""
    sizes = array("i", [0])
    values: list[bytes] = []
    numbers = array("i", [0]) * (count * len(headers))
    for position, header in enumerate(headers):
        if header.count < count:
            header.spread(count)
        numbers[position :: len(headers)] = _value_numbers(header, count, first=len(sizes) - 1)
        sizes.extend(header.sizes)
        values.extend(header.values)
    # A size is the value's length plus one, so that 0 says "none".
    lengths = pc.max_element_wise(pc.subtract(int32_array(sizes), 1), 0)
    return _slices(lengths, values, pa.string()), int32_array(numbers)


def _value_numbers(header: _GatheredHeader, count: int, first: int) -> Ints:
    if header.is_constant:
        return array("i", [first]) * count
    numbers = counting(range(first, first + count), pa.int32())
    if 0 in header.sizes:
        numbers = pc.if_else(pc.greater(int32_array(header.sizes), 0), numbers, -1)
    return ints(numbers)


def _slices(lengths: pa.Array, values: Sequence[bytes], data_type: pa.DataType) -> pa.Array:
    """Cuts the joined values into strings or binaries; `lengths` begins with a 0 that stands for none of them."""
    offsets = pc.cumulative_sum(lengths).cast(pa.int32())
    joined = values[0] if len(values) == 1 else b"".join(values)
    return pa.Array.from_buffers(data_type, len(lengths) - 1, [None, offsets.buffers()[1], pa.py_buffer(joined)])
