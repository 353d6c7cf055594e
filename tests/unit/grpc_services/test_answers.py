from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import columns_from_events
from millrace.v1 import admin_service_pb2, event_pb2
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.channels.batches import Form, StoredBatch, Window
from millrace_server.grpc_services.messages import consume_response, encode_batches, take_response
from tests.channel_events import stored_rows
from tests.event_rows import Row, rows

ROWS = rows(min_size=1)
SEQUENCES = st.integers(1, (1 << 64) - 100)
BATCHES = st.lists(st.tuples(SEQUENCES, ROWS), max_size=4)
"""First sequence and events of some batches."""


def stored(first_sequence: int, events: Sequence[Row]) -> StoredBatch:
    return StoredBatch(first_sequence, Window.whole(stored_rows(events)))


def message(first_sequence: int, events: Sequence[Row], form: Form) -> event_pb2.EventBatch:
    """The batch as protobuf makes it."""
    if form is Form.COLUMNS:
        [columns] = columns_from_events(events)
        return event_pb2.EventBatch(first_sequence=first_sequence, columns=columns)
    rows_sent = [event_pb2.Event(headers=headers, body=body) for headers, body in events]
    return event_pb2.EventBatch(first_sequence=first_sequence, events=rows_sent)


@pytest.mark.parametrize("form", Form)
@given(BATCHES, st.integers(0, (1 << 64) - 1))
def test_take_answer_says_what_protobuf_would_say(
    form: Form, contents: list[tuple[int, Sequence[Row]]], take_count: int
) -> None:
    """The bytes put together by hand are a TakeResponse, in both forms."""
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
def test_take_answer_in_columns_is_byte_for_byte_protobufs(first_sequence: int, events: Sequence[Row]) -> None:
    """Fields stand in the order of their numbers, but for the answer's own, which come first."""
    encoded = take_response([stored(first_sequence, events)], 0, Form.COLUMNS)
    expected = pb.TakeResponse(batches=[message(first_sequence, events, Form.COLUMNS)])
    assert encoded == expected.SerializeToString()


@pytest.mark.parametrize("form", Form)
@given(st.data(), SEQUENCES, ROWS)
def test_encode_of_a_part_of_a_batch_holds_that_part(
    form: Form, data: st.DataObject, first_sequence: int, events: Sequence[Row]
) -> None:
    """Windows are cut where they begin and end; the field may be a single one."""
    start = data.draw(st.integers(0, len(events) - 1))
    stop = data.draw(st.integers(start + 1, len(events)))
    part = stored(first_sequence, events).part(start, stop)
    head = admin_service_pb2.PeekEventsResponse(skipped_events=7)
    encoded = encode_batches(head, admin_service_pb2.PeekEventsResponse.BATCH_FIELD_NUMBER, [part], form)
    answer = admin_service_pb2.PeekEventsResponse.FromString(encoded)
    assert answer.skipped_events == 7
    assert answer.batch.first_sequence == first_sequence + start
    if form is Form.ROWS:
        assert answer.batch == message(first_sequence + start, events[start:stop], form)
    else:
        assert answer.batch.columns.count == stop - start
        assert answer.batch.columns.bodies == b"".join(body for _, body in events[start:stop])


def test_encode_of_no_batches_is_the_answer_alone() -> None:
    """A take whose wait passed says how many were taken, and nothing else."""
    assert take_response([], 5, Form.COLUMNS) == pb.TakeResponse(take_count=5).SerializeToString()
