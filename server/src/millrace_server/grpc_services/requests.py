"""What requests say, checked: a malformed part is refused with its name, what it was and what is allowed."""

from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from millrace.columns import ColumnsError, columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer, place_of
from millrace_server.channels.batches import Form, StoredColumns
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError

EventsRequest = pb.PutRequest | pb.AppendRequest | pb.AppendStreamRequest
"""A request that brings events."""

Columns = Buffer | event_pb2.EventColumns
"""A request's columns: the bytes that came, or parsed."""

RequestT = TypeVar("RequestT", bound=Message)
EventsRequestT = TypeVar("EventsRequestT", pb.PutRequest, pb.AppendRequest, pb.AppendStreamRequest)

_COLUMNS_NAME = event_pb2.EventColumns.DESCRIPTOR.full_name


class _WithStamp(Protocol):
    @property
    def stamp(self) -> event_pb2.ProducerStamp: ...

    def HasField(self, field_name: str) -> bool: ...  # noqa: N802 - protobuf's name


def parse(kind: type[RequestT], raw: bytes) -> RequestT:
    """The request that the bytes hold."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise _no_message(kind, raw) from None


def parse_apart(kind: type[EventsRequestT], raw: bytes) -> tuple[EventsRequestT, Columns | None]:
    """A request without its columns, and its columns; None where it has none.

    Large columns are a view on the request: copying them would take longer than all else that is done with them.
    """
    place = place_of(kind.COLUMNS_FIELD_NUMBER, raw)
    if place is not None:
        try:
            request = kind.FromString(raw[: place.head] + raw[place.end :])
        except DecodeError:
            raise _no_message(kind, raw) from None
        view = memoryview(raw)[place.content : place.end]
        # Unless the rest is more than they are: a view keeps all of it in memory.
        return request, view if 2 * len(view) > len(raw) else bytes(view)
    request = parse(kind, raw)
    if not request.HasField("columns"):
        return request, None
    columns = request.columns
    request.ClearField("columns")
    return request, columns


def _no_message(kind: type[Message], raw: bytes) -> BadArgumentError:
    return BadArgumentError(f"request: its {len(raw)} bytes are no {kind.DESCRIPTOR.full_name}")


def stamp_of(request: _WithStamp) -> Stamp | None:
    """The request's stamp; None where it has none."""
    if not request.HasField("stamp"):
        return None
    stamp = request.stamp
    after = stamp.after_sequence if stamp.HasField("after_sequence") else None
    oldest_open = stamp.oldest_open_sequence if stamp.HasField("oldest_open_sequence") else None
    return Stamp(stamp.producer_id, stamp.first_sequence, stamp.last_sequence, after, oldest_open)


def events_of(request: EventsRequest, columns: Columns | None) -> list[StoredColumns]:
    """The events of a request that was parsed apart, whichever form they came in; rows are turned into columns here."""
    try:
        if columns is None:
            rows = ((event.headers, event.body) for event in request.events)
            return [StoredColumns.of(made) for made in columns_from_events(rows)]
        if request.events:
            raise BadArgumentError("events: are given in rows and in columns; choose one form")
        stored = StoredColumns.received(columns)
    except ColumnsError as error:
        raise BadArgumentError(str(error)) from None
    except DecodeError:
        raise BadArgumentError(f"columns: their bytes are no {_COLUMNS_NAME}") from None
    return [stored] if stored.count else []


def form_of(*, columns: bool) -> Form:
    """The form that the caller wants."""
    return Form.COLUMNS if columns else Form.ROWS
