"""Records as events, and the same events as records again."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import HEADER_KEYS_MAX, check_columns
from millrace.v1 import event_pb2
from millrace_server.agent.kafka.header_names import HeaderNames
from millrace_server.agent.sinks.kafka.config import KafkaSinkConfig
from millrace_server.agent.sinks.kafka.records import ANY_PARTITION, Record, RecordWriter
from millrace_server.agent.sources.kafka.config import KafkaSourceConfig
from millrace_server.agent.sources.kafka.records import REPEATED, RecordBatch, RecordReader

NAMES = HeaderNames.with_prefix("kafka.")
SERVERS = {"type": "kafka", "bootstrap_servers": ["127.0.0.1:9092"]}


def reader_of(**settings: Any) -> RecordReader:
    table = {**SERVERS, "channels": ["orders"], "group": "g", "topics": ["orders"], **settings}
    return RecordReader(KafkaSourceConfig.model_validate(table, strict=True))


def message(value: bytes | None = b"v", offset: int = 0, **fields: Any) -> Message:
    return Message(
        topic="orders", partition=3, offset=offset, value=value, timestamp=(1, 1_700_000_000_000 + offset), **fields
    )


def batches_of(messages: Sequence[Message], reader: RecordReader | None = None) -> list[RecordBatch]:
    return list((reader or reader_of()).read("orders", 3, messages))


def rows_of(messages: Sequence[Message], reader: RecordReader | None = None) -> list[tuple[dict[str, str], bytes]]:
    return [row for batch in batches_of(messages, reader) for row in batch.table.rows()]


def test_read_record_describes_it_in_headers() -> None:
    """The key and the place become headers beside the record's own."""
    made = message(b"body", 41, key=b"k", headers=[("host", b"web-1")])
    assert rows_of([made]) == [
        (
            {
                "host": "web-1",
                "kafka.key": "k",
                "kafka.topic": "orders",
                "kafka.partition": "3",
                "kafka.offset": "41",
                "kafka.timestamp": "1700000000041",
            },
            b"body",
        )
    ]


def test_read_with_other_settings_sets_other_headers() -> None:
    """Which headers there are, and how their names begin, is configured."""
    reader = reader_of(headers=["offset"], header_prefix="")
    assert rows_of([message(offset=5, key=b"k")], reader) == [({"offset": "5"}, b"v")]


def test_read_bytes_that_are_no_text_encodes_and_marks_them() -> None:
    """Headers are text; bytes that are not UTF-8 are kept as Base64, and a header says of which that holds."""
    (headers, _), (others, _) = rows_of(
        [message(key=b"\xff", headers=[("a", b"\xfe"), ("b", b"x")]), message(key=b"k", headers=[("a", b"y")])]
    )
    assert (headers["kafka.key"], headers["a"], headers["b"]) == ("/w==", "/g==", "x")
    assert headers["kafka.base64"] == '["a", "kafka.key"]'
    assert "kafka.base64" not in others


def test_read_repeated_header_keeps_the_last_and_counts() -> None:
    """As an event has each header once, the last one counts; the others are counted."""
    reader = reader_of()
    (headers, _) = rows_of([message(headers=[("a", b"\xff"), ("a", None), ("a", b"z")])], reader)[0]
    assert headers["a"] == "z"
    assert "kafka.base64" not in headers
    assert reader.remarks[REPEATED] == 2


def test_read_tombstone_marks_or_skips_it() -> None:
    """A null value is told from an empty one, or left out while the offsets go on."""
    messages = [message(b"", 0), message(None, 1), message(b"x", 2), message(None, 3)]
    marks = [headers.get("kafka.tombstone") for headers, _ in rows_of(messages)]
    assert marks == [None, "true", None, "true"]
    (skipping,) = batches_of(messages, reader_of(tombstones="skip"))
    assert (skipping.offsets, skipping.table.bodies, skipping.next_offset) == ([0, 2], [b"", b"x"], 4)
    assert skipping.table.values("kafka.offset") == ["0", "2"]


def test_read_marks_of_a_mirrored_record_does_not_believe_them() -> None:
    """A record's own headers cannot pass for the source's marks."""
    forged: list[tuple[str, bytes]] = [("kafka.tombstone", b"true"), ("kafka.base64", b'["a"]'), ("kafka.offset", b"9")]
    (headers, _) = rows_of([message(offset=2, headers=forged)])[0]
    assert "kafka.tombstone" not in headers
    assert "kafka.base64" not in headers
    assert headers["kafka.offset"] == "2"


def test_read_records_with_many_different_headers_makes_several_batches() -> None:
    """Records with ever different headers do not become one table of all names and all records."""
    messages = [message(offset=at, headers=[(f"{at}-{each}", b"") for each in range(100)]) for at in range(500)]
    began = time.process_time()
    batches = batches_of(messages)
    assert [offset for batch in batches for offset in batch.offsets] == list(range(500))
    assert max(len(batch.table.headers) for batch in batches) <= HEADER_KEYS_MAX
    assert time.process_time() - began < 20


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
_HEADERS = st.lists(st.tuples(_TEXT | st.sampled_from(NAMES), st.none() | st.binary(max_size=4)), max_size=4)
_RECORDS = st.lists(
    st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=4), _HEADERS), min_size=1, max_size=5
)


@given(_RECORDS)
def test_read_and_write_any_records_gives_them_back(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    """Whatever keys, values and headers have in them, a channel takes the events, and a sink makes the same records."""
    messages = [message(value, at, key=key, headers=headers) for at, (value, key, headers) in enumerate(records)]
    written: list[Record] = []
    for batch in batches_of(messages):
        for stored in batch.table.stored():
            check_columns(event_pb2.EventColumns.FromString(bytes(stored.raw)))
            written += RecordWriter(_sink_config()).records(stored.raw)
    for at, (record, (value, key, headers)) in enumerate(zip(written, records, strict=True)):
        expected = {name: each or b"" for name, each in headers if name not in NAMES}
        assert record[:5] == ("orders", value, key, ANY_PARTITION, 1_700_000_000_000 + at)
        assert Counter(record[5] or ()) == Counter(expected.items())


def _sink_config() -> KafkaSinkConfig:
    return KafkaSinkConfig.model_validate({**SERVERS, "channel": "orders", "topic": "orders"}, strict=True)
