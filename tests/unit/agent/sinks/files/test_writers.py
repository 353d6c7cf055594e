"""Each format, read back by an independent reader."""

import gzip
import io
import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.sinks.files.avro_writer import AvroWriter
from millrace_server.agent.sinks.files.chunks import EventChunk, Rows, chunks_of
from millrace_server.agent.sinks.files.parquet_writer import ROW_GROUP_BYTES, ParquetWriter
from millrace_server.agent.sinks.files.writers import Compression, EventWriter, JsonWriter, TextWriter
from tests.files_sink import Row, raw_of

HOSTILE: list[Row] = [
    ({"host": "web-1", "all": "same"}, b"plain"),
    ({"all": "same", "quote": '"\\\n\u2028'}, "Zürich \U0001f30a".encode()),
    ({"all": "same", "host": "", "ключ": "é"}, b"\xff\xfe broken"),
    ({"all": "same"}, b""),
    ({"all": "same", "host": "web-1"}, b'{"json": "in\tside"}\x00'),
]

Read = tuple[int, dict[str, str], bytes]


def _chunk(rows: Sequence[Row], first_sequence: int = 1) -> EventChunk:
    [chunk] = chunks_of([(first_sequence, raw_of(rows))])
    return chunk


def _expected(rows: Sequence[Row], first_sequence: int = 1) -> list[Read]:
    return [(first_sequence + index, dict(headers), body) for index, (headers, body) in enumerate(rows)]


def _written(make: Callable[[Any], EventWriter], *parts: tuple[EventChunk, Rows]) -> bytes:
    file = io.BytesIO()
    writer = make(file)
    for chunk, rows in parts:
        writer.write(chunk, rows)
    writer.finish()
    return file.getvalue()


def _unpacked(content: bytes, compression: Compression) -> bytes:
    if compression == "gzip":
        return gzip.decompress(content)
    if compression == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return content


def _json_rows(content: bytes) -> Iterator[Read]:
    for line in content.decode().split("\n")[:-1]:
        document = json.loads(line)
        body = document["body"].encode() if "body" in document else b64decode(document["body_base64"])
        yield document["sequence"], document["headers"], body


def _avro_rows(content: bytes) -> Iterator[Read]:
    for record in fastavro.reader(io.BytesIO(content)):
        assert isinstance(record, dict)
        body = record["body"] if isinstance(record["body"], bytes) else _text_body(record)
        yield record["sequence"], record["headers"], body


def _parquet_rows(content: bytes) -> Iterator[Read]:
    for record in pq.read_table(pa.BufferReader(content)).to_pylist():
        body = record["body"] if isinstance(record["body"], bytes) else _text_body(record)
        yield record["sequence"], dict(record["headers"]), body


def _text_body(record: dict[str, Any]) -> bytes:
    assert (record["body"] is None) != (record["body_bytes"] is None)
    body: bytes = record["body_bytes"] if record["body"] is None else record["body"].encode()
    return body


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_text_written_has_bodies_as_they_are(compression: Compression) -> None:
    """A text file has the bodies, each followed by a newline."""
    chunk = _chunk(HOSTILE)
    content = _written(lambda file: TextWriter(file, compression, append_newline=True), (chunk, range(5)))
    assert _unpacked(content, compression) == b"".join(body + b"\n" for _, body in HOSTILE)


def test_text_written_without_newlines_is_the_bodies_alone() -> None:
    """Bodies with line ends of their own get no second one."""
    content = _written(lambda file: TextWriter(file, "none", append_newline=False), (_chunk(HOSTILE), range(5)))
    assert content == b"".join(body for _, body in HOSTILE)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("is_body_text", [True, False])
def test_json_written_is_read_back_whole(compression: Compression, is_body_text: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    """Each line is one event; a body that is not UTF-8 is stored as base64."""
    content = _written(
        lambda file: JsonWriter(file, compression, is_body_text=is_body_text), (_chunk(HOSTILE), range(5))
    )
    lines = _unpacked(content, compression)
    assert list(_json_rows(lines)) == _expected(HOSTILE)
    assert lines.count(b'"body": ') == (4 if is_body_text else 0)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("is_body_text", [True, False])
def test_avro_written_is_read_back_whole(compression: Compression, is_body_text: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    """Each record is one event; with text bodies, one that is not UTF-8 is stored as bytes."""
    content = _written(
        lambda file: AvroWriter(file, compression, is_body_text=is_body_text), (_chunk(HOSTILE), range(5))
    )
    assert list(_avro_rows(content)) == _expected(HOSTILE)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "snappy"])
@pytest.mark.parametrize("is_body_text", [True, False])
def test_parquet_written_is_read_back_whole(compression: Compression, is_body_text: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    """Each row is one event; with text bodies, one that is not UTF-8 is stored as bytes."""
    content = _written(
        lambda file: ParquetWriter(file, compression, is_body_text=is_body_text), (_chunk(HOSTILE), range(5))
    )
    assert list(_parquet_rows(content)) == _expected(HOSTILE)


def test_parquet_schema_is_as_promised() -> None:
    """The columns have the types that readers rely on."""
    content = _written(lambda file: ParquetWriter(file, "none", is_body_text=False), (_chunk(HOSTILE), range(5)))
    schema = pq.read_schema(pa.BufferReader(content))
    assert schema.names == ["sequence", "headers", "body"]
    assert schema.types == [pa.int64(), pa.map_(pa.string(), pa.string()), pa.binary()]


WRITERS: dict[str, tuple[Callable[[Any], EventWriter], Callable[[bytes], Iterator[Read]]]] = {
    "json": (lambda file: JsonWriter(file, "none", is_body_text=True), _json_rows),
    "avro": (lambda file: AvroWriter(file, "none", is_body_text=False), _avro_rows),
    "parquet": (lambda file: ParquetWriter(file, "none", is_body_text=True), _parquet_rows),
}


@pytest.mark.parametrize("name", WRITERS)
def test_write_of_some_rows_leaves_the_others_out(name: str) -> None:
    """A file has exactly its own events, contiguous or not, with their own sequences."""
    make, read = WRITERS[name]
    chunk = _chunk(HOSTILE, first_sequence=41)
    whole = _expected(HOSTILE, first_sequence=41)
    content = _written(make, (chunk, [0, 2, 3]), (chunk, range(1, 3)), (chunk, [4]))
    assert list(read(content)) == [whole[0], whole[2], whole[3], whole[1], whole[2], whole[4]]


@pytest.mark.parametrize("name", WRITERS)
def test_finish_without_events_makes_a_file_that_can_be_read(name: str) -> None:
    """A file without events is valid too."""
    make, read = WRITERS[name]
    assert list(read(_written(make))) == []


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
ROWS = st.lists(
    st.tuples(st.dictionaries(KEYS, KEYS, max_size=3), st.one_of(st.binary(max_size=6), KEYS.map(str.encode))),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("name", WRITERS)
@given(batches=st.lists(ROWS, min_size=1, max_size=3))
def test_write_of_any_events_is_read_back_whole(name: str, batches: list[list[Row]]) -> None:
    """Any headers and bodies are read back unchanged."""
    make, read = WRITERS[name]
    parts = [(_chunk(rows, 100 * number), range(len(rows))) for number, rows in enumerate(batches, start=1)]
    expected = [row for number, rows in enumerate(batches, start=1) for row in _expected(rows, 100 * number)]
    assert list(read(_written(make, *parts))) == expected


def test_parquet_with_many_events_has_row_groups_of_a_bounded_size() -> None:
    """The buffer becomes a row group at its limit."""
    chunk = _chunk([({}, b"x" * (ROW_GROUP_BYTES // 8 + 1))])
    file = io.BytesIO()
    writer = ParquetWriter(file, "none", is_body_text=False)
    for _ in range(20):
        writer.write(chunk, range(1))
        assert writer.buffered_bytes < ROW_GROUP_BYTES
    writer.finish()
    assert pq.ParquetFile(pa.BufferReader(file.getvalue())).metadata.num_row_groups == 3


def test_parquet_discarded_writes_nothing_more(tmp_path: Path) -> None:
    """A discarded file may be closed and removed at once."""
    with (tmp_path / "part").open("xb") as file:
        writer = ParquetWriter(file, "none", is_body_text=False)
        writer.write(_chunk(HOSTILE), range(5))
    writer.discard()
    del writer
    assert (tmp_path / "part").stat().st_size <= 4
