"""Records of Avro container files."""

import datetime as dt
import decimal
import io
import json
import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import fastavro

from millrace_server.agent.sources.spooldir.chunks import CHUNK_BYTES, Chunk, ChunkLimits
from millrace_server.agent.sources.spooldir.config import AvroFormat
from millrace_server.agent.sources.spooldir.content import BadFileError, Content
from millrace_server.agent.sources.stored_ranges import StoredRanges
from millrace_server.agent.supervision import ComponentError

BLOCK_BYTES_MAX = 64 << 20
"""A file with a larger compressed block is bad."""

_LACKS_LIBRARY = "you need to install"
"""A part of fastavro's error for a codec whose library is not installed."""


def avro_chunks(content: Content, config: AvroFormat, stored: StoredRanges, limits: ChunkLimits) -> Iterator[Chunk]:
    """Yields the records of a file, numbered from 0.

    Raises BadFileError if the rest of the file cannot be used, after the records before the damage.
    """
    headers: dict[str, str] = {}
    first = stored.position
    bodies: list[bytes] = []
    body_bytes = 0
    failure = None
    try:
        for body in _checked_bodies(content, config, first, headers):
            bodies.append(body)
            body_bytes += len(body)
            end = first + len(bodies)
            is_full = len(bodies) >= limits.events_max or body_bytes >= CHUNK_BYTES
            if is_full or end == stored.next_boundary(first):
                yield Chunk(bodies, range(first, end), first, end - 1, headers)
                first, bodies, body_bytes = end, [], 0
    except BadFileError as error:
        failure = error
    if bodies:
        end = first + len(bodies)
        yield Chunk(bodies, range(first, end), first, end - 1, headers)
    if failure is not None:
        raise failure


def _checked_bodies(content: Content, config: AvroFormat, position: int, headers: dict[str, str]) -> Iterator[bytes]:
    try:
        for body in _read_bodies(content, config, position, headers):
            yield body
            position += 1
    except (OSError, MemoryError, BadFileError):
        raise
    except Exception as error:  # noqa: BLE001 - the decoder may raise anything for a damaged file
        if _LACKS_LIBRARY in str(error):
            # The file is not bad.
            raise ComponentError(str(error)) from None
        text = f"record {position} cannot be read: {type(error).__name__} {error}"
        raise BadFileError(text.rstrip()) from None


def _read_bodies(content: Content, config: AvroFormat, skipped_count: int, headers: dict[str, str]) -> Iterator[bytes]:
    blocks = fastavro.block_reader(_BoundedReads(content))  # type: ignore[arg-type]  # it only reads
    schema: Any = blocks.writer_schema
    if config.schema_header is not None:
        headers[config.schema_header] = json.dumps(schema, separators=(",", ":"))
    bodies_of = _json_bodies if config.body == "json" else _binary_bodies(schema)
    for block in blocks:
        if block.num_records <= skipped_count:
            skipped_count -= block.num_records
            continue
        for index, body in enumerate(bodies_of(block)):
            if index >= skipped_count:
                yield body
        skipped_count = 0


class _BoundedReads:
    """A file for a decoder, which limits the sizes that the file itself declares."""

    def __init__(self, content: Content) -> None:
        self._content = content

    def read(self, size: int) -> bytes:
        if not 0 <= size <= BLOCK_BYTES_MAX:
            raise BadFileError(f"it has a block of {size} bytes; at most {BLOCK_BYTES_MAX} are allowed")
        return self._content.read(size)

    def tell(self) -> int:
        return self._content.position


def _binary_bodies(schema: Any) -> Callable[[Any], Iterator[bytes]]:
    parsed = fastavro.parse_schema(schema)

    def bodies_of(block: Any) -> Iterator[bytes]:
        # A record must be decoded to find its end, but its bytes are passed on unchanged.
        data = block.bytes_.getvalue()
        records = io.BytesIO(data)
        for _ in range(block.num_records):
            start = records.tell()
            fastavro.schemaless_reader(records, parsed, None)
            yield data[start : records.tell()]

    return bodies_of


def _json_bodies(block: Any) -> Iterator[bytes]:
    for record in block:
        try:
            text = _encode(record)
        except ValueError:
            text = _encode(_with_finite_numbers(record))
        yield text.encode()


def _encode(value: object) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _plain(value: object) -> str:
    match value:
        case bytes():
            return value.decode("iso-8859-1")  # As in Avro's JSON encoding.
        case dt.date() | dt.time():  # Includes datetime.
            return value.isoformat()
        case decimal.Decimal() | uuid.UUID():
            return str(value)
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be represented in JSON")


def _with_finite_numbers(value: Any) -> Any:
    """Returns the value with text in place of numbers that JSON does not support."""
    match value:
        case dict():
            return {key: _with_finite_numbers(each) for key, each in value.items()}
        case list():
            return [_with_finite_numbers(each) for each in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return value
