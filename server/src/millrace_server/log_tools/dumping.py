"""Shows a log record by record, and goes on behind damage."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from millrace.columns import ColumnsCutter, ColumnsError, check_columns
from millrace.v1 import event_pb2
from millrace_server.log_tools.contents_check import ContradictionError, decoded
from millrace_server.log_tools.errors import UsageError
from millrace_server.log_tools.survey import key_id_of, open_payload
from millrace_server.log_tools.view import LogView, ViewedSegment
from millrace_server.log_tools.walking import SegmentWalker, WalkedRecord
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, Flags, Kind
from millrace_server.wal.payload_codec import KeyMissingError, Payload, PayloadCodec
from millrace_server.wal.segments import LogCorruptError

Document = dict[str, Any]
"""What JSON has."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dump begins."""

    segment_id: int
    position: int = SEGMENT_HEADER_BYTES

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Reads `SEGMENT:BYTE`.

        Raises:
            UsageError: The text is no place.
        """
        segment_id, colon, position = text.partition(":")
        if not segment_id.isdecimal() or (colon and not position.isdecimal()):
            raise UsageError(f"--from: is {text!a}; it must be SEGMENT or SEGMENT:BYTE, such as 3:64")
        return cls(int(segment_id), max(SEGMENT_HEADER_BYTES, int(position or 0)))


def dump(
    view: LogView, codec: PayloadCodec, start: Place | None = None, *, shows_bodies: bool = False
) -> Iterator[Document]:
    """What each record says, and where none lies though one should.

    Args:
        view: The log.
        codec: Opens payloads; what it has no key for stays closed.
        start: Where to begin.
        shows_bodies: Whether events are shown, and not only counted.

    Raises:
        UsageError: There is no such segment.
        UnknownVersionError: Another version of Millrace wrote a part of it.
    """
    if start is not None and all(segment.segment_id != start.segment_id for segment in view.segments):
        raise UsageError(f"--from: there is no segment {start.segment_id}")
    expected: int | None = None
    for segment in view.segments:
        if start is not None and segment.segment_id < start.segment_id:
            continue
        if expected is not None and segment.segment_id > expected:
            yield {"segment": expected, "position": 0, "damage": "the segment is missing"}
        expected = segment.segment_id + 1
        is_first = start is not None and segment.segment_id == start.segment_id
        position = start.position if start is not None and is_first else SEGMENT_HEADER_BYTES
        yield from _dump_segment(view, segment, _Decoder(codec, shows_bodies=shows_bodies), position)


def _dump_segment(view: LogView, segment: ViewedSegment, decoder: "_Decoder", position: int) -> Iterator[Document]:
    walker = view.walker(segment)
    while True:
        for record in walker.records(position):
            yield decoder.document(segment, walker, record)
            position = record.end
        behind = next(walker.good_ones_from(position + 1), None)
        # The end of a segment that is rotten may be zeros that were set aside.
        if behind is None and not segment.file.read(segment.file.size() - position, position).strip(b"\0"):
            return
        end = behind.position if behind else segment.file.size()
        yield {
            "segment": segment.segment_id,
            "position": position,
            "damage": f"no good record lies in {end - position} bytes",
        }
        if behind is None:
            return
        position = behind.position


class _Decoder:
    """Makes documents of records."""

    def __init__(self, codec: PayloadCodec, *, shows_bodies: bool) -> None:
        self._codec = codec
        self._shows_bodies = shows_bodies

    def document(self, segment: ViewedSegment, walker: SegmentWalker, record: WalkedRecord) -> Document:
        head = record.head
        document: Document = {
            "segment": segment.segment_id,
            "position": record.position,
            "write_number": head.write_number,
            "kind": head.kind.name,
            "flags": [flag.name for flag in Flags if flag in head.flags],
            "synced_position": head.synced_position,
            "payload_bytes": head.payload_length,
        }
        if (key_id := key_id_of(record)) is not None:
            document["key_id"] = key_id
        try:
            payload = open_payload(self._codec, walker, record)
            document["message"] = self._message(head.kind, payload)
        except KeyMissingError as error:
            document["closed"] = str(error)
        except (LogCorruptError, ContradictionError, DecodeError, ColumnsError) as error:
            document["damage"] = str(error)
        return document

    def _message(self, kind: Kind, payload: Payload) -> Document:
        if kind is Kind.MARK:
            return {}
        if kind is not Kind.PUT:
            return plain(decoded(kind, payload))
        columns = event_pb2.EventColumns.FromString(bytes(payload))
        check_columns(columns)
        message: Document = {
            "count": columns.count,
            "body_bytes": len(columns.bodies),
            "header_keys": [header.key for header in columns.headers],
        }
        if self._shows_bodies:
            message["events"] = [
                {"headers": headers, "body": base64.b64encode(body).decode()}
                for headers, body in ColumnsCutter(columns).rows(0, columns.count)
            ]
        return message


def plain(message: Message) -> Document:
    """A message as JSON has it, with the names of the protos and whole numbers as numbers."""
    return {field.name: _plain_value(value) for field, value in message.ListFields()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, str | int | float):
        return value
    return list(value)
