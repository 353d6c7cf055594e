"""The parts that all requests and responses share: events, stamps and durations, checked and encoded."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from millrace.columns import ColumnsError, columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer, field_head, place_of
from millrace_server.channels.batches import Form, StoredBatch, StoredColumns
from millrace_server.channels.commit import Receipt
from millrace_server.channels.config import SECONDS_MAX
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError

EventsRequest = pb.PutRequest | pb.AppendRequest | pb.AppendStreamRequest
Columns = Buffer | event_pb2.EventColumns
"""A request's columns, encoded or parsed."""

RequestT = TypeVar("RequestT", bound=Message)
ReceiptT = TypeVar("ReceiptT", pb.CommitResponse, pb.AppendResponse)
EventsRequestT = TypeVar("EventsRequestT", pb.PutRequest, pb.AppendRequest, pb.AppendStreamRequest)

_NANOS = 1_000_000_000
_MICROS = 1_000_000
_COLUMNS_FIELD = event_pb2.EventBatch.COLUMNS_FIELD_NUMBER
_COLUMNS_NAME = event_pb2.EventColumns.DESCRIPTOR.full_name


def parse(kind: type[RequestT], raw: bytes) -> RequestT:
    """Parses a request."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise _bad_request(kind, raw) from None


def parse_apart(kind: type[EventsRequestT], raw: bytes) -> tuple[EventsRequestT, Columns | None]:
    """Parses a request apart from its columns; returns both, or None instead of absent columns.

    Large columns are a view of the request: copying them would take longer than all the rest of their processing.
    """
    place = place_of(kind.COLUMNS_FIELD_NUMBER, raw)
    if place is not None:
        try:
            request = kind.FromString(raw[: place.head] + raw[place.end :])
        except DecodeError:
            raise _bad_request(kind, raw) from None
        view = memoryview(raw)[place.content : place.end]
        # A view keeps the whole request in memory, so columns that are the smaller part are copied.
        return request, view if 2 * len(view) > len(raw) else bytes(view)
    request = parse(kind, raw)
    if not request.HasField("columns"):
        return request, None
    columns = request.columns
    request.ClearField("columns")
    return request, columns


def _bad_request(kind: type[Message], raw: bytes) -> BadArgumentError:
    return BadArgumentError(f"request: its {len(raw)} bytes are not a valid {kind.DESCRIPTOR.full_name}")


def stamp_of(request: pb.CommitRequest | pb.AppendRequest | pb.AppendStreamRequest, owner: str) -> Stamp | None:
    """Returns the request's stamp, which belongs to an identity; None if it has none."""
    if not request.HasField("stamp"):
        return None
    stamp = request.stamp
    after = stamp.after_sequence if stamp.HasField("after_sequence") else None
    oldest_open = stamp.oldest_open_sequence if stamp.HasField("oldest_open_sequence") else None
    return Stamp(stamp.producer_id, stamp.first_sequence, stamp.last_sequence, after, oldest_open, owner)


def events_of(request: EventsRequest, columns: Columns | None) -> list[StoredColumns]:
    """Returns the events of a request that `parse_apart` returned, in columns, whichever form they were sent in."""
    try:
        if columns is None:
            rows = ((event.headers, event.body) for event in request.events)
            return [StoredColumns.of(made) for made in columns_from_events(rows)]
        if request.events:
            raise BadArgumentError("events: are given in rows and in columns; use one form")
        stored = StoredColumns.received(columns)
    except ColumnsError as error:
        raise BadArgumentError(str(error)) from None
    except DecodeError:
        raise BadArgumentError(f"columns: their bytes are not a valid {_COLUMNS_NAME}") from None
    return [stored] if stored.count else []


def nonempty_events_of(request: EventsRequest, columns: Columns | None) -> list[StoredColumns]:
    """Returns the events of an append, at least one."""
    batches = events_of(request, columns)
    if not batches:
        raise BadArgumentError("events: is empty; an append must have at least one event")
    return batches


def form_of(*, columns: bool) -> Form:
    """Returns the form in which the caller wants events."""
    return Form.COLUMNS if columns else Form.ROWS


def duration_of(value: float) -> Duration:
    """Returns seconds as a protobuf Duration."""
    encoded = Duration()
    encoded.FromNanoseconds(round(value * _NANOS))
    return encoded


def seconds_of(field: str, encoded: Duration, seconds_max: float = SECONDS_MAX) -> float:
    """Returns a request's duration in seconds, capped at the longest that is granted; it must not be negative."""
    if not -_NANOS < encoded.nanos < _NANOS or encoded.seconds * encoded.nanos < 0:
        raise BadArgumentError(
            f"{field}: has {encoded.seconds} seconds and {encoded.nanos} nanos; nanos must be between "
            "-999,999,999 and 999,999,999 and have the sign of the seconds"
        )
    value = encoded.seconds + encoded.nanos / _NANOS
    if value < 0:
        raise BadArgumentError(f"{field}: is {value:g} s; it must not be negative")
    return min(value, seconds_max)


def timestamp_of(micros: int) -> Timestamp | None:
    """Returns microseconds since 1970 as a protobuf Timestamp; None for 0, which is no time."""
    if not micros:
        return None
    encoded = Timestamp()
    set_timestamp(encoded, micros)
    return encoded


def set_timestamp(encoded: Timestamp, micros: int) -> None:
    """Sets a protobuf Timestamp to microseconds since 1970."""
    encoded.seconds, rest = divmod(micros, _MICROS)
    encoded.nanos = rest * 1000


def micros_of(field: str, encoded: Timestamp) -> int:
    """Returns a request's time in microseconds since 1970, rounded up, and at least 1."""
    if not 0 <= encoded.nanos < _NANOS:
        raise BadArgumentError(f"{field}: has {encoded.nanos} nanos; they must be between 0 and 999,999,999")
    return max(encoded.seconds * _MICROS + -(-encoded.nanos // 1000), 1)


def receipt_response(kind: type[ReceiptT], receipt: Receipt) -> ReceiptT:
    """Returns the response to a commit or an append."""
    # Field by field: with keywords, and another message for the time, it takes twice as long.
    response = kind()
    response.first_sequence, response.last_sequence, is_deduplicated, commit_time = receipt
    if is_deduplicated:
        response.deduplicated = True
    if commit_time:
        set_timestamp(response.commit_time, commit_time)
    return response


def encode_append_response(receipt: Receipt) -> bytes:
    """Encodes the AppendStreamResponse of an append, of which there are many with the same commit time."""
    first_sequence, last_sequence, is_deduplicated, commit_time = receipt
    response = pb.AppendStreamResponse(first_sequence=first_sequence, last_sequence=last_sequence)
    if is_deduplicated:
        response.deduplicated = True
    return response.SerializeToString() + _commit_time_field(commit_time)


@lru_cache(maxsize=16)
def _commit_time_field(micros: int) -> bytes:
    return pb.AppendStreamResponse(commit_time=timestamp_of(micros)).SerializeToString()


def encode_batches(response: Message, batches_field: int, batches: Iterable[StoredBatch], form: Form) -> bytes:
    """Encodes a response with batches in a field of type EventBatch; stored columns are sent as they are."""
    pieces: list[Buffer] = [response.SerializeToString()]
    for batch in batches:
        encoded = _columns_batch(batch) if form is Form.COLUMNS else _rows_batch(batch)
        pieces += [field_head(batches_field, sum(map(len, encoded))), *encoded]
    return b"".join(pieces)


def take_response(batches: Iterable[StoredBatch], take_count: int, form: Form) -> bytes:
    """Encodes a TakeResponse."""
    return encode_batches(pb.TakeResponse(take_count=take_count), pb.TakeResponse.BATCHES_FIELD_NUMBER, batches, form)


def consume_response(delivery_id: int, batches: Iterable[StoredBatch], form: Form) -> bytes:
    """Encodes a ConsumeResponse."""
    return encode_batches(
        pb.ConsumeResponse(delivery_id=delivery_id), pb.ConsumeResponse.BATCHES_FIELD_NUMBER, batches, form
    )


def _batch_head(batch: StoredBatch) -> event_pb2.EventBatch:
    """Returns a batch without its events."""
    return event_pb2.EventBatch(
        first_sequence=batch.first_sequence,
        commit_time=timestamp_of(batch.first_time),
        commit_offsets=batch.commit_offsets(),
    )


def _columns_batch(batch: StoredBatch) -> list[Buffer]:
    columns = batch.window.columns()
    head = _batch_head(batch).SerializeToString()
    return [head, field_head(_COLUMNS_FIELD, len(columns)), columns]


def _rows_batch(batch: StoredBatch) -> list[Buffer]:
    encoded = _batch_head(batch)
    for headers, body in batch.window.rows():
        encoded.events.add(headers=headers, body=body)
    return [encoded.SerializeToString()]
