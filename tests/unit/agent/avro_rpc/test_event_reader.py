import random
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import HEADER_KEYS_MAX
from millrace_server.agent.avro_rpc.calls import BadCallError, long
from millrace_server.agent.avro_rpc.event_reader import TABLE_EVENTS_MAX, EventReader
from millrace_server.agent.avro_rpc.protocol import EVENT_SCHEMA
from tests.flume_peer import Event, write_bytes, write_event, write_events, write_string

ARRAY: Any = fastavro.parse_schema({"type": "array", "items": EVENT_SCHEMA})

# Few keys, so that events with equal shapes follow each other, and sizes of one and of two bytes.
KEYS = st.sampled_from(["host", "timestamp", "", "ü"])
VALUES = st.one_of(st.text(max_size=3), st.integers(60, 70).map("v".__mul__), st.just("x" * 9_000))
BODIES = st.one_of(st.binary(max_size=3), st.sampled_from([60, 64, 8_191, 8_192, 20_000]).map(bytes))
EVENTS = st.tuples(st.dictionaries(KEYS, VALUES, max_size=3), BODIES)


def rows_of(payload: bytes, *, is_array: bool = True) -> list[Event]:
    tables = EventReader(payload, 0, is_array=is_array).tables()
    return [row for table in tables for row in table.rows()]


def stored_rows_of(payload: bytes) -> list[Event]:
    """The events after they were columns as channels store them."""
    tables = EventReader(payload, 0, is_array=True).tables()
    return [row for table in tables for stored in table.stored() for row in stored.cutter().rows(0, stored.count)]


@given(st.lists(st.one_of(EVENTS, st.just(({"host": "web", "timestamp": "17"}, b"body"))), max_size=12))
def test_tables_of_any_events_have_all_of_them(events: list[Event]) -> None:
    """The reader agrees with a writer made from the specification, and with fastavro's."""
    content = BytesIO()
    fastavro.schemaless_writer(content, ARRAY, [{"headers": headers, "body": body} for headers, body in events])
    assert content.getvalue() == write_events(events)
    assert rows_of(content.getvalue()) == events
    assert stored_rows_of(content.getvalue()) == events


@given(st.lists(EVENTS, min_size=1, max_size=4), st.data())
def test_tables_of_damaged_events_are_refused_or_read(events: list[Event], data: st.DataObject) -> None:
    """Bytes that are cut or changed are refused, or are other events; nothing else happens."""
    payload = bytearray(write_events(events))
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    try:
        rows = rows_of(cut)
    except BadCallError:
        return
    assert sum(len(body) for _, body in rows) <= len(cut)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_tables_of_a_truncated_call_are_refused(count: int) -> None:
    """Each proper beginning of a call is refused."""
    whole = write_events([({"host": "web-1", "k": "v" * 100}, b"b" * 70)] * count)
    for end in range(len(whole)):
        with pytest.raises(BadCallError):
            rows_of(whole[:end])
    with pytest.raises(BadCallError, match="1 bytes follow the parameters"):
        rows_of(whole + b"\x00")


def test_tables_of_many_events_are_of_limited_size() -> None:
    """A large call becomes several tables, whose events are in order."""
    events = [({"n": str(number)}, b"") for number in range(2 * TABLE_EVENTS_MAX + 5)]
    tables = list(EventReader(write_events(events), 0, is_array=True).tables())
    assert [table.count for table in tables] == [TABLE_EVENTS_MAX, TABLE_EVENTS_MAX, 5]
    assert [row for table in tables for row in table.rows()] == events


def test_tables_of_large_events_are_of_limited_size() -> None:
    """Tables end at a megabyte, too."""
    events: list[Event] = [({}, b"x" * 300_000)] * 9
    counts = [table.count for table in EventReader(write_events(events), 0, is_array=True).tables()]
    assert counts == [4, 4, 1]


def test_tables_of_events_with_many_keys_are_of_limited_size() -> None:
    """Few bytes do not become columns of many empty cells."""
    events = [({f"{number}-{key}": "v" for key in range(100)}, b"") for number in range(50)]
    events += [({}, b"")] * TABLE_EVENTS_MAX
    tables = list(EventReader(write_events(events), 0, is_array=True).tables())
    assert max(len(table.headers) * table.count for table in tables) <= 2 * 1_000_000
    assert max(len(table.headers) for table in tables) < 2 * HEADER_KEYS_MAX
    assert [row for table in tables for row in table.rows()] == events
    assert stored_rows_of(write_events(events)) == events


def test_tables_of_an_event_with_too_many_headers_are_refused() -> None:
    """As many headers as channels store are read, and no more."""
    most = ({str(number): "v" for number in range(HEADER_KEYS_MAX)}, b"")
    assert rows_of(write_events([most])) == [most]
    with pytest.raises(BadCallError, match="more than 256 headers"):
        rows_of(write_events([({**most[0], "one": "more"}, b"")]))


def test_tables_of_an_event_with_a_key_twice_keep_the_last_value() -> None:
    """As in a map of Java."""
    twice = long(2) + write_string("k") + write_string("1") + write_string("k") + write_string("2") + long(0)
    event = twice + write_bytes(b"")
    payload = long(3) + event + write_event(({"k": "3"}, b"")) + event + long(0)
    assert rows_of(payload) == [({"k": "2"}, b""), ({"k": "3"}, b""), ({"k": "2"}, b"")]


def test_tables_of_text_that_is_not_utf8_replace_it() -> None:
    """Losing a character is better than losing the event."""
    event = long(1) + write_string("k") + write_bytes(b"a\xff") + long(0) + write_bytes(b"\xff")
    assert stored_rows_of(long(2) + event + write_event(({"k": "b"}, b"")) + long(0)) == [
        ({"k": "a\ufffd"}, b"\xff"),
        ({"k": "b"}, b""),
    ]


def test_tables_of_a_map_in_blocks_have_all_headers() -> None:
    """Maps may have several blocks, which may tell their bytes."""
    one, two = write_string("a") + write_string("1"), write_string("b") + write_string("2")
    event = long(1) + one + long(-1) + long(len(two)) + two + long(0) + write_bytes(b"x")
    assert (
        rows_of(long(2) + event + event + long(-1) + long(len(event)) + event + long(0))
        == [({"a": "1", "b": "2"}, b"x")] * 3
    )


@pytest.mark.parametrize("count", [1 << 40, -(1 << 40), 1 << 62])
def test_tables_with_a_huge_count_are_refused(count: int) -> None:
    """A declared count reserves nothing."""
    for payload in (long(count) + long(3), long(1) + long(count) + long(3)):
        with pytest.raises(BadCallError):
            rows_of(payload)


def test_read_of_a_number_without_end_is_refused() -> None:
    """A number has at most 64 bits."""
    with pytest.raises(BadCallError, match="64 bits"):
        rows_of(b"\xff" * 100)


def test_tables_of_random_bytes_are_refused_or_read() -> None:
    """A short run of what `make fuzz` does for long."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")  # noqa: T201 - to repeat a failure
    chance = random.Random(seed)
    for _ in range(2_000):
        payload = chance.randbytes(chance.choice([3, 10, 100]))
        for is_array in (True, False):
            try:
                rows_of(payload, is_array=is_array)
            except BadCallError:
                continue
