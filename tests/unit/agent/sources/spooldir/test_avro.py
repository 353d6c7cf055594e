import datetime as dt
import io
import json
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from millrace_server.agent.sources.spooldir import avro as avro_module
from millrace_server.agent.sources.spooldir.chunks import Chunk, ChunkLimits
from millrace_server.agent.sources.spooldir.config import AvroFormat
from millrace_server.agent.sources.spooldir.content import BadFileError, Content
from millrace_server.agent.sources.spooldir.source import open_chunks
from millrace_server.agent.sources.stored_ranges import StoredRanges
from millrace_server.agent.supervision import ComponentError
from tests.spool import opened, put

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
RECORDS = [{"number": number, "note": None if number % 3 else f"note {number} \u20ac"} for number in range(1_000)]


def container(records: list[Any], schema: dict[str, Any] = SCHEMA, **options: Any) -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, schema, records, sync_interval=200, **options)
    return file.getvalue()


def pieces_and_failure_of(
    path: Path, stored: list[list[tuple[int, int]]] | None = None, events_max: int = 100, **settings: Any
) -> tuple[list[Chunk], str | None]:
    """All chunks of a file of which channels have stored these ranges, and the failure if the file is bad."""
    file = opened(path)
    found: list[Chunk] = []
    try:
        config = AvroFormat(type="avro", **settings)
        reader = open_chunks(Content(file), config, StoredRanges(stored or [[]]), ChunkLimits(events_max, 1 << 20))
        found.extend(reader)
    except BadFileError as error:
        return found, str(error)
    finally:
        file.close()
    return found, None


def chunks_of(path: Path, stored: list[list[tuple[int, int]]] | None = None, **settings: Any) -> list[Chunk]:
    found, failure = pieces_and_failure_of(path, stored, **settings)
    assert failure is None
    return found


def bodies_of(chunks: list[Chunk]) -> list[bytes]:
    return [body for chunk in chunks for body in chunk.bodies]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_chunks_of_a_container_are_its_records_as_json(tmp_path: Path, codec: str) -> None:
    """Each record is an event, numbered from 0."""
    found = chunks_of(put(tmp_path, "a.avro", container(RECORDS, codec=codec)))
    assert [json.loads(body) for body in bodies_of(found)] == RECORDS
    assert [(chunk.first, chunk.last) for chunk in found] == [(first, first + 99) for first in range(0, 1_000, 100)]
    assert list(found[1].offsets) == list(range(100, 200))
    assert bodies_of(found)[0] == '{"number":0,"note":"note 0 \u20ac"}'.encode()


def test_chunks_in_avro_are_the_bytes_of_the_file(tmp_path: Path) -> None:
    """A body is the encoded record, and the schema that it needs is in a header."""
    found = chunks_of(put(tmp_path, "a.avro", container(RECORDS)), body="avro", schema_header="schema")
    schema = fastavro.parse_schema(json.loads(found[0].headers["schema"]))
    decoded = [fastavro.schemaless_reader(io.BytesIO(body), schema, None) for body in bodies_of(found)]
    assert decoded == RECORDS
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(SCHEMA), RECORDS[3])
    assert bodies_of(found)[3] == encoded.getvalue()


def test_chunks_of_values_that_json_lacks_are_text(tmp_path: Path) -> None:
    """Bytes, times, decimals and NaN have a representation."""
    schema = {
        "type": "record",
        "name": "All",
        "fields": [
            {"name": "raw", "type": "bytes"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "ratios", "type": {"type": "array", "items": "double"}},
        ],
    }
    record = {
        "raw": b"\x00\xff",
        "at": dt.datetime(2025, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "day": dt.date(2025, 1, 2),
        "price": Decimal("12.50"),
        "ratios": [0.5, float("inf"), float("-inf"), float("nan")],
    }
    [chunk] = chunks_of(put(tmp_path, "a.avro", container([record], schema)))
    assert json.loads(chunk.bodies[0]) == {
        "raw": "\x00\xff",
        "at": "2025-01-02T03:04:05+00:00",
        "day": "2025-01-02",
        "price": "12.50",
        "ratios": [0.5, "Infinity", "-Infinity", "NaN"],
    }


@pytest.mark.parametrize("body", ["json", "avro"])
def test_chunks_from_any_stored_record_on_are_the_rest(tmp_path: Path, body: str) -> None:
    """This includes records in the middle of a block."""
    path = put(tmp_path, "a.avro", container(RECORDS))
    whole = bodies_of(chunks_of(path, body=body))
    for position in (1, 7, 16, 17, 500, 999, 1_000):
        assert bodies_of(chunks_of(path, [[(0, position - 1)]], body=body)) == whole[position:]


def test_chunks_for_channels_that_differ_end_where_their_ranges_do(tmp_path: Path) -> None:
    """Events that only one of the channels has stored are a batch of their own."""
    path = put(tmp_path, "a.avro", container(RECORDS))
    found = chunks_of(path, [[(0, 9)], [(0, 149)]])
    assert [(chunk.first, chunk.last) for chunk in found[:3]] == [(10, 109), (110, 149), (150, 249)]


def test_chunks_of_a_broken_container_report_which_record(tmp_path: Path) -> None:
    """Any damage makes the file bad: the records before it are returned, and none is invented."""
    whole = container(RECORDS, codec="deflate")
    choice = random.Random(17)
    outcomes = Counter[str]()
    for index in range(60):
        broken = bytearray(whole)
        position = choice.randrange(len(broken))
        if index % 2:
            del broken[position:]
        else:
            broken[position] ^= 1 << choice.randrange(8)
        found, failure = pieces_and_failure_of(put(tmp_path, f"{index}.avro", bytes(broken)))
        # Cut between two blocks, it is a valid container; a change of some bytes may be undetectable.
        outcomes["whole" if failure is None else "bad"] += 1
        assert failure is None or failure.startswith("record ")
        numbers = [json.loads(body).get("number") for body in bodies_of(found)]
        if index % 2:
            assert numbers == list(range(len(numbers)))
        if position > len(whole) // 2:
            assert numbers[:400] == list(range(400))
    assert outcomes["bad"] > 40


def test_chunks_of_something_else_call_it_bad(tmp_path: Path) -> None:
    """A text file is not a container."""
    _, failure = pieces_and_failure_of(put(tmp_path, "a.avro", b"no container\n"))
    assert failure is not None
    assert failure.startswith("record 0 cannot be read: ValueError cannot read header")


def test_chunks_of_a_block_that_is_too_large_call_the_file_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is held in memory as a whole, and its declared size may be wrong."""
    monkeypatch.setattr(avro_module, "BLOCK_BYTES_MAX", 1_000)
    path = put(tmp_path, "a.avro", container([{"number": 1, "note": "x" * 2_000}]))
    _, failure = pieces_and_failure_of(path)
    assert failure is not None
    assert "bytes; at most 1000 are allowed" in failure


def test_chunks_of_a_container_whose_codec_is_not_installed_blame_no_file(tmp_path: Path) -> None:
    """The file is read once the library is installed."""
    snappy = container(RECORDS, codec="deflate").replace(b"\x0edeflate", b"\x0csnappy")
    with pytest.raises(ComponentError, match="you need to install"):
        chunks_of(put(tmp_path, "a.avro", snappy))
