"""The requests of the benchmarks, encoded once, so that building them is not measured."""

from millrace.columns import columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2

MEMORY_CHANNEL = "memory"
FILE_CHANNEL = "file"
FULL_CHANNEL = "full"
"""A file channel that is kept full."""
FULL_EVENTS = 100_000
"""The number of events that it holds."""
BODY_BYTES = 512
BATCH_EVENTS = 1_000

_BODY = bytes(range(256)) * (BODY_BYTES // 256)


def append_columns(count: int, channel: str) -> bytes:
    """An AppendRequest in columns; an AppendStreamRequest has the same bytes."""
    return pb.AppendRequest(channel=channel, columns=columns(count)).SerializeToString()


def append_rows(count: int, channel: str) -> bytes:
    """An AppendRequest in rows."""
    return pb.AppendRequest(channel=channel, events=rows(count)).SerializeToString()


def columns(count: int) -> event_pb2.EventColumns:
    """Events with 512 bytes of body and two headers, one of which differs in each event."""
    [encoded] = columns_from_events((_headers(number), _BODY) for number in range(count))
    return encoded


def rows(count: int) -> list[event_pb2.Event]:
    """The same events in rows."""
    return [event_pb2.Event(headers=_headers(number), body=_BODY) for number in range(count)]


def _headers(number: int) -> dict[str, str]:
    return {"host": "web-1.example.org", "timestamp": str(1_700_000_000_000 + number)}
