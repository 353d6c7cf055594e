"""Answers that hold events: stored batches go out as the bytes that they are."""

from collections.abc import Iterable

from google.protobuf.message import Message

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer, field_head
from millrace_server.channels.batches import Form, StoredBatch

_COLUMNS_FIELD = event_pb2.EventBatch.COLUMNS_FIELD_NUMBER


def encode(answer: Message, batches_field: int, batches: Iterable[StoredBatch], form: Form) -> bytes:
    """An answer with batches.

    Args:
        answer: All other fields.
        batches_field: The number of the field of type EventBatch, single or repeated.
        batches: What the field is to hold.
        form: How the events are encoded.
    """
    pieces: list[Buffer] = [answer.SerializeToString()]
    for batch in batches:
        encoded = _columns_batch(batch) if form is Form.COLUMNS else _rows_batch(batch)
        pieces += [field_head(batches_field, sum(map(len, encoded))), *encoded]
    return b"".join(pieces)


def take_answer(batches: Iterable[StoredBatch], take_count: int, form: Form) -> bytes:
    """A TakeResponse."""
    return encode(pb.TakeResponse(take_count=take_count), pb.TakeResponse.BATCHES_FIELD_NUMBER, batches, form)


def delivery(delivery_id: int, batches: Iterable[StoredBatch], form: Form) -> bytes:
    """A ConsumeResponse."""
    return encode(pb.ConsumeResponse(delivery_id=delivery_id), pb.ConsumeResponse.BATCHES_FIELD_NUMBER, batches, form)


def _columns_batch(batch: StoredBatch) -> list[Buffer]:
    columns = batch.window.columns()
    head = event_pb2.EventBatch(first_sequence=batch.first_sequence).SerializeToString()
    return [head, field_head(_COLUMNS_FIELD, len(columns)), columns]


def _rows_batch(batch: StoredBatch) -> list[Buffer]:
    encoded = event_pb2.EventBatch(first_sequence=batch.first_sequence)
    for headers, body in batch.window.rows():
        encoded.events.add(headers=headers, body=body)
    return [encoded.SerializeToString()]
