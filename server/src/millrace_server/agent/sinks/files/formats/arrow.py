"""Chunks of events become Arrow, without a Python loop over events.

What is to be done for each event is done by C code: slices of protobuf's repeated fields, `array.array`, and pyarrow's
kernels.
"""

from array import array
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from millrace.v1 import event_pb2
from millrace_server.agent.sinks.files.chunks import EventChunk

_COMMON_FIELDS = [
    pa.field("sequence", pa.int64(), nullable=False),
    pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
]

BINARY_SCHEMA = pa.schema([*_COMMON_FIELDS, pa.field("body", pa.binary(), nullable=False)])
"""Bodies as bytes."""

TEXT_SCHEMA = pa.schema([*_COMMON_FIELDS, pa.field("body", pa.string()), pa.field("body_bytes", pa.binary())])
"""Bodies as text; null where one is no text, which stands in `body_bytes` then."""


def record_batch(chunk: EventChunk, schema: pa.Schema) -> pa.RecordBatch:
    """A chunk as a RecordBatch, one row an event; `schema` is one of this module's, and always the same for a chunk."""
    if chunk.record_batch is None:
        chunk.record_batch = _record_batch(chunk, schema)
    return chunk.record_batch


def _record_batch(chunk: EventChunk, schema: pa.Schema) -> pa.RecordBatch:
    sequences = array("q", range(chunk.first_sequence, chunk.last_sequence + 1))
    columns = [_array(pa.int64(), sequences), _maps(chunk)]
    if schema is BINARY_SCHEMA:
        columns.append(_bodies(chunk, pa.binary()))
    else:
        columns += _text_bodies(chunk)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _bodies(chunk: EventChunk, data_type: pa.DataType) -> pa.Array:
    buffers = [None, pa.py_buffer(chunk.body_ends), pa.py_buffer(chunk.joined_bodies)]
    return pa.Array.from_buffers(data_type, chunk.count, buffers)


def _text_bodies(chunk: EventChunk) -> list[pa.Array]:
    bodies = _bodies(chunk, pa.string())
    try:
        bodies.validate(full=True)
    except pa.ArrowInvalid:
        texts = [_text(body) for body in chunk.bodies]
        others = [body if text is None else None for text, body in zip(texts, chunk.bodies, strict=True)]
        return [pa.array(texts, pa.string()), pa.array(others, pa.binary())]
    return [bodies, pa.nulls(chunk.count, pa.binary())]


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _maps(chunk: EventChunk) -> pa.Array:
    """One map an event; its entries stand in the order of the columns."""
    headers = chunk.columns.headers
    data_type = pa.map_(pa.string(), pa.string())
    count, key_count = chunk.count, len(headers)
    if not key_count:
        no_text = pa.array([], pa.string())
        return pa.MapArray.from_arrays(
            _array(pa.int32(), array("i", [0]) * (count + 1)), no_text, no_text, type=data_type
        )
    # The values of the columns stand one column behind the other; the maps want them one event behind the other.
    numbers = array("i", [0]) * (count * key_count)
    for position in range(key_count):
        numbers[position::key_count] = array("i", range(position * count, (position + 1) * count))
    values = pa.concat_arrays([_header_values(header, count) for header in headers]).take(_array(pa.int32(), numbers))
    keys = pa.array([header.key for header in headers], pa.string())
    keys = keys.take(_array(pa.int32(), array("i", range(key_count)) * count))
    offsets = array("i", range(0, count * key_count + 1, key_count))
    if values.null_count:
        has_value = values.is_valid()
        ends = pc.cumulative_sum(has_value.cast(pa.int32()))
        entry_ends = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        offsets_array = entry_ends.take(_array(pa.int32(), offsets))
        return pa.MapArray.from_arrays(offsets_array, keys.filter(has_value), values.filter(has_value), type=data_type)
    return pa.MapArray.from_arrays(_array(pa.int32(), offsets), keys, values, type=data_type)


def _header_values(header: event_pb2.HeaderColumn, count: int) -> pa.Array:
    sizes = header.sizes[:]
    if len(sizes) == 1 and sizes[0]:
        return pa.repeat(pa.scalar(header.values.decode(), pa.string()), count)
    # A size is the value's length plus one, so that 0 says "none".
    ends = array("i", accumulate((max(size - 1, 0) for size in sizes), initial=0))
    validity = None
    if 0 in sizes:
        validity = pc.greater(_array(pa.int32(), array("i", sizes)), 0).buffers()[1]
    return pa.Array.from_buffers(pa.string(), count, [validity, pa.py_buffer(ends), pa.py_buffer(header.values)])


def _array(data_type: pa.DataType, numbers: "array[int]") -> pa.Array:
    return pa.Array.from_buffers(data_type, len(numbers), [None, pa.py_buffer(numbers)])
