from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import ColumnsCutter, columns_from_events
from millrace.v1 import admin_service_pb2, event_pb2
from millrace.v1 import channel_service_pb2 as pb
from millrace.wire_format import field_head
from millrace_server.channels.batches import Form, StoredBatch, StoredColumns, Window
from millrace_server.channels.config import SECONDS_MAX
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError, MillraceError
from millrace_server.grpc_services.messages import (
    EventsRequest,
    consume_response,
    duration_of,
    encode_batches,
    events_of,
    form_of,
    parse,
    parse_apart,
    seconds_of,
    stamp_of,
    take_response,
)
from tests.channel_events import stored_rows
from tests.event_rows import Row, rows

KINDS = [pb.PutRequest, pb.AppendRequest, pb.AppendStreamRequest]
LARGE = 20_000
"""The size of a body from which requests are decoded by hand."""


def columns(*bodies: bytes, **headers: str) -> event_pb2.EventColumns:
    [encoded] = columns_from_events((headers, body) for body in bodies)
    return encoded


def rows_of(requests: list[StoredColumns]) -> list[tuple[dict[str, str], bytes]]:
    cutters = [ColumnsCutter(event_pb2.EventColumns.FromString(bytes(stored.raw))) for stored in requests]
    return [row for cutter in cutters for row in cutter.rows(0, cutter.count)]


def received(kind: Any, raw: bytes) -> tuple[EventsRequest, list[StoredColumns]]:
    request: EventsRequest
    request, encoded = parse_apart(kind, raw)
    assert not request.HasField("columns")
    return request, events_of(request, encoded)


@pytest.mark.parametrize("kind", [pb.TakeRequest, admin_service_pb2.ListChannelsRequest, *KINDS])
def test_parse_of_bytes_that_are_no_message_says_which_was_wanted(kind: type[Message]) -> None:
    """BAD_ARGUMENT names the message and the number of bytes."""
    with pytest.raises(BadArgumentError, match=rf"request: its 3 bytes are not a valid millrace.v1.{kind.__name__}"):
        parse(kind, b"\xff\xff\xff")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body_bytes", [0, 10, LARGE])
def test_parse_apart_of_columns_keeps_them_as_they_came(kind: type[EventsRequest], body_bytes: int) -> None:
    """The stored bytes are those of the request's columns, for small and large requests."""
    sent = columns(bytes(body_bytes), b"b", host="web-1")
    raw = kind(columns=sent).SerializeToString()
    _, [stored] = received(kind, raw)
    assert stored.raw == sent.SerializeToString()
    assert (stored.count, stored.body_bytes) == (2, body_bytes + 1)


@pytest.mark.parametrize("body_bytes", [10, LARGE])
def test_parse_apart_leaves_all_else_of_the_request(body_bytes: int) -> None:
    """Name, stamp and offset are the same as when the whole is parsed."""
    stamp = event_pb2.ProducerStamp(producer_id="p", first_sequence=3, last_sequence=4)
    append, _ = received(
        pb.AppendRequest,
        pb.AppendRequest(channel="orders", stamp=stamp, columns=columns(bytes(body_bytes))).SerializeToString(),
    )
    assert append == pb.AppendRequest(channel="orders", stamp=stamp)
    put, _ = received(
        pb.PutRequest,
        pb.PutRequest(txn_id="t", put_offset=0, columns=columns(bytes(body_bytes))).SerializeToString(),
    )
    assert put == pb.PutRequest(txn_id="t", put_offset=0)


def test_parse_apart_of_columns_beside_more_than_they_are_keeps_nothing_else() -> None:
    """A view on a request would keep its unknown fields in memory as long as the events."""
    raw = pb.AppendRequest(channel="orders", columns=columns(bytes(LARGE))).SerializeToString()
    unknown = field_head(15, 3 * LARGE) + bytes(3 * LARGE)

    _, alone = parse_apart(pb.AppendRequest, raw)
    _, beside = parse_apart(pb.AppendRequest, raw + unknown)

    assert isinstance(alone, memoryview)
    assert beside == bytes(alone)
    assert isinstance(beside, bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_parse_apart_of_columns_in_pieces_joins_them_as_protobuf_does(kind: type[EventsRequest]) -> None:
    """Repeated pieces of a message field are merged as protobuf does."""
    pieces = [event_pb2.EventColumns(count=2, body_sizes=[LARGE]), event_pb2.EventColumns(body_sizes=[1])]
    pieces[1].bodies = bytes(LARGE) + b"b"
    raw = b"".join(kind(columns=piece).SerializeToString() for piece in pieces)
    _, requests = received(kind, raw)
    assert rows_of(requests) == [({}, bytes(LARGE)), ({}, b"b")]


@pytest.mark.parametrize("body_bytes", [10, LARGE])
@pytest.mark.parametrize("spoil", [lambda raw: raw[:-1], lambda raw: raw + b"\x0a", lambda raw: raw + b"\x0a\x01\xff"])
def test_parse_apart_of_broken_bytes_refuses(spoil: Callable[[bytes], bytes], body_bytes: int) -> None:
    """Truncated messages, incomplete fields and invalid text get BAD_ARGUMENT."""
    raw = spoil(pb.AppendRequest(columns=columns(bytes(body_bytes))).SerializeToString())
    with pytest.raises(
        BadArgumentError, match=rf"request: its {len(raw)} bytes are not a valid millrace.v1.AppendRequest"
    ):
        parse_apart(pb.AppendRequest, raw)


@given(st.binary(max_size=200), st.integers(0, LARGE + 200))
def test_events_of_any_bytes_are_events_or_a_refusal(garbage: bytes, position: int) -> None:
    """Damaged bytes are refused, or are events that are consistent."""
    whole = pb.AppendRequest(channel="orders", columns=columns(bytes(LARGE), b"", key="value")).SerializeToString()
    raw = whole[:position] + garbage + whole[position + len(garbage) :]
    try:
        _, requests = received(pb.AppendRequest, raw)
    except MillraceError:
        return
    assert len(rows_of(requests)) == sum(stored.count for stored in requests)
    assert sum(len(body) for _, body in rows_of(requests)) == sum(stored.body_bytes for stored in requests)


@given(
    st.lists(st.tuples(st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=3), st.binary(max_size=9)))
)
def test_events_of_rows_are_the_same_events(rows: list[tuple[dict[str, str], bytes]]) -> None:
    """Headers and bodies are unchanged by the conversion."""
    sent = [event_pb2.Event(headers=headers, body=body) for headers, body in rows]
    _, requests = received(pb.AppendRequest, pb.AppendRequest(events=sent).SerializeToString())
    assert rows_of(requests) == rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body_bytes", [10, LARGE])
def test_events_of_both_forms_are_refused(kind: type[EventsRequest], body_bytes: int) -> None:
    """A request has one form."""
    request = kind(events=[event_pb2.Event()], columns=columns(bytes(body_bytes)))
    with pytest.raises(BadArgumentError, match="in rows and in columns; use one form"):
        received(kind, request.SerializeToString())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_given", [False, True])
def test_events_of_a_request_without_any_are_none(kind: type[EventsRequest], *, is_given: bool) -> None:
    """A request without events and columns without events are the same."""
    request = kind(columns=event_pb2.EventColumns() if is_given else None)
    assert received(kind, request.SerializeToString())[1] == []


@pytest.mark.parametrize("body_bytes", [10, LARGE])
def test_events_of_columns_that_contradict_themselves_are_refused(body_bytes: int) -> None:
    """The sentence names the field, also if the bodies were never parsed."""
    sent = columns(bytes(body_bytes))
    sent.bodies += b"?"
    raw = pb.AppendRequest(columns=sent).SerializeToString()
    with pytest.raises(BadArgumentError, match=rf"bodies: has {body_bytes + 1} bytes; .* sum to {body_bytes}"):
        received(pb.AppendRequest, raw)


@pytest.mark.parametrize("body_bytes", [10, LARGE])
def test_events_of_columns_that_are_no_message_are_refused(body_bytes: int) -> None:
    """A header's name must be text."""
    raw = pb.AppendRequest(columns=columns(bytes(body_bytes), key="v")).SerializeToString().replace(b"key", b"k\xffy")
    with pytest.raises(BadArgumentError, match=r"are not a valid millrace.v1.(AppendRequest|EventColumns)"):
        received(pb.AppendRequest, raw)


def test_stamp_of_a_request_is_checked() -> None:
    """Absent is None; otherwise the stamp must be valid."""
    assert stamp_of(pb.AppendRequest(), "") is None
    good = event_pb2.ProducerStamp(producer_id="p", first_sequence=0, last_sequence=9)
    assert stamp_of(pb.CommitRequest(stamp=good), "web") == Stamp("p", 0, 9, owner="web")
    full = event_pb2.ProducerStamp(
        producer_id="p", first_sequence=1, last_sequence=9, after_sequence=0, oldest_open_sequence=0
    )
    assert stamp_of(pb.CommitRequest(stamp=full), "") == Stamp("p", 1, 9, after=0, oldest_open=0)
    with pytest.raises(BadArgumentError, match=r"stamp\.producer_id"):
        stamp_of(pb.AppendRequest(stamp=event_pb2.ProducerStamp()), "")


def test_form_of_a_request_is_rows_unless_it_asks_for_columns() -> None:
    """Rows are simpler for clients."""
    assert form_of(columns=False) is Form.ROWS
    assert form_of(columns=True) is Form.COLUMNS


ROWS = rows(min_size=1)
SEQUENCES = st.integers(1, (1 << 64) - 100)
BATCHES = st.lists(st.tuples(SEQUENCES, ROWS), max_size=4)
"""The first sequence and the events of some batches."""


def stored(first_sequence: int, events: Sequence[Row]) -> StoredBatch:
    return StoredBatch(first_sequence, Window.whole(stored_rows(events)))


def message(first_sequence: int, events: Sequence[Row], form: Form) -> event_pb2.EventBatch:
    """The batch as encoded by protobuf."""
    if form is Form.COLUMNS:
        [columns] = columns_from_events(events)
        return event_pb2.EventBatch(first_sequence=first_sequence, columns=columns)
    rows_sent = [event_pb2.Event(headers=headers, body=body) for headers, body in events]
    return event_pb2.EventBatch(first_sequence=first_sequence, events=rows_sent)


@pytest.mark.parametrize("form", Form)
@given(BATCHES, st.integers(0, (1 << 64) - 1))
def test_take_response_says_what_protobuf_would_say(
    form: Form, contents: list[tuple[int, Sequence[Row]]], take_count: int
) -> None:
    """The bytes encoded by hand are a TakeResponse, in both forms."""
    encoded = take_response([stored(*one) for one in contents], take_count, form)
    expected = pb.TakeResponse(take_count=take_count, batches=[message(*one, form) for one in contents])
    assert pb.TakeResponse.FromString(encoded) == expected
    assert len(encoded) == expected.ByteSize()


@pytest.mark.parametrize("form", Form)
@given(BATCHES, st.integers(1, (1 << 64) - 1))
def test_delivery_says_what_protobuf_would_say(
    form: Form, contents: list[tuple[int, Sequence[Row]]], delivery_id: int
) -> None:
    """The bytes are a ConsumeResponse."""
    encoded = consume_response(delivery_id, [stored(*one) for one in contents], form)
    expected = pb.ConsumeResponse(delivery_id=delivery_id, batches=[message(*one, form) for one in contents])
    assert pb.ConsumeResponse.FromString(encoded) == expected


@given(SEQUENCES, ROWS)
def test_take_response_in_columns_is_byte_for_byte_protobufs(first_sequence: int, events: Sequence[Row]) -> None:
    """Fields are in the order of their numbers, except the response's own, which come first."""
    encoded = take_response([stored(first_sequence, events)], 0, Form.COLUMNS)
    expected = pb.TakeResponse(batches=[message(first_sequence, events, Form.COLUMNS)])
    assert encoded == expected.SerializeToString()


@pytest.mark.parametrize("form", Form)
@given(st.data(), SEQUENCES, ROWS)
def test_encode_of_a_part_of_a_batch_holds_that_part(
    form: Form, data: st.DataObject, first_sequence: int, events: Sequence[Row]
) -> None:
    """Windows may start and end anywhere, and the field may be a single one."""
    start = data.draw(st.integers(0, len(events) - 1))
    stop = data.draw(st.integers(start + 1, len(events)))
    part = stored(first_sequence, events).part(start, stop)
    head = admin_service_pb2.PeekEventsResponse(skipped_events=7)
    encoded = encode_batches(head, admin_service_pb2.PeekEventsResponse.BATCH_FIELD_NUMBER, [part], form)
    response = admin_service_pb2.PeekEventsResponse.FromString(encoded)
    assert response.skipped_events == 7
    assert response.batch.first_sequence == first_sequence + start
    if form is Form.ROWS:
        assert response.batch == message(first_sequence + start, events[start:stop], form)
    else:
        assert response.batch.columns.count == stop - start
        assert response.batch.columns.bodies == b"".join(body for _, body in events[start:stop])


def test_encode_of_no_batches_is_the_response_alone() -> None:
    """A take whose wait has ended returns only the number of events taken."""
    assert take_response([], 5, Form.COLUMNS) == pb.TakeResponse(take_count=5).SerializeToString()


SECONDS = st.integers(-(1 << 63), (1 << 63) - 1)
NANOS = st.integers(-(1 << 31), (1 << 31) - 1)


@given(st.integers(0, 3_600_000_000))
def test_seconds_of_a_duration_are_what_it_was_made_of(microseconds: int) -> None:
    """Encoding and decoding a duration gives the same value."""
    assert seconds_of("wait", duration_of(microseconds / 1e6)) == pytest.approx(microseconds / 1e6, abs=1e-9)


@given(SECONDS, NANOS)
def test_seconds_of_anything_are_within_the_limit_or_refused(whole: int, nanos: int) -> None:
    """Any duration is a number from 0 to the cap, or BAD_ARGUMENT with the field."""
    encoded = Duration(seconds=whole, nanos=nanos)
    is_good = whole >= 0 and 0 <= nanos < 1_000_000_000
    if is_good:
        assert 0 <= seconds_of("lease", encoded) <= SECONDS_MAX
        return
    with pytest.raises(BadArgumentError, match=r"^lease: "):
        seconds_of("lease", encoded)


@pytest.mark.parametrize("encoded", [Duration(seconds=3600), Duration(seconds=3601), Duration(seconds=(1 << 63) - 1)])
def test_seconds_beyond_the_longest_are_capped(encoded: Duration) -> None:
    """The maximum is an hour."""
    assert seconds_of("lease", encoded) == SECONDS_MAX


@pytest.mark.parametrize(
    ("encoded", "sentence"),
    [
        (Duration(seconds=-1), "lease: is -1 s; it must not be negative"),
        (Duration(nanos=-1), "lease: is -1e-09 s; it must not be negative"),
        (Duration(seconds=1, nanos=-1), "lease: has 1 seconds and -1 nanos; .* have the sign of the seconds"),
        (Duration(nanos=1_000_000_000), "lease: has 0 seconds and 1000000000 nanos; nanos must be between"),
    ],
)
def test_seconds_of_a_bad_duration_are_refused(encoded: Duration, sentence: str) -> None:
    """The sentence contains the value and what is allowed."""
    with pytest.raises(BadArgumentError, match=sentence):
        seconds_of("lease", encoded)
