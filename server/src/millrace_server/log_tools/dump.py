"""Shows a log record by record; damage is skipped."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.message import Message

from millrace.columns import ColumnsCutter
from millrace.units import counted
from millrace_server.channels.replay import ContradictionError, decode_message
from millrace_server.log_tools.contents_check import columns_of
from millrace_server.log_tools.layout import UsageError
from millrace_server.log_tools.scanning import key_id_of, log_record
from millrace_server.log_tools.view import LogView, SegmentView
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, Flags, Kind
from millrace_server.wal.log import LogRecord
from millrace_server.wal.payload_codec import KeyMissingError, PayloadCodec
from millrace_server.wal.reading import ScannedRecord, SegmentScanner
from millrace_server.wal.segments import LogCorruptError

Document = dict[str, Any]
"""A JSON object."""

_TIMES = {"commit_time", "last_commit_time"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Older names, on which scripts rely.
_KIND_NAMES = {Kind.SYNC_POINT: "MARK", Kind.MEMORY_STATE: "KEEP"}


@dataclass(frozen=True, slots=True)
class DumpStart:
    """Where a dump begins."""

    segment_id: int
    position: int = SEGMENT_HEADER_BYTES

    @classmethod
    def parse(cls, text: str) -> "DumpStart":
        """Parses `SEGMENT` or `SEGMENT:BYTE`; refuses any other text with UsageError."""
        segment_id, colon, position = text.partition(":")
        if not segment_id.isdecimal() or (colon and not position.isdecimal()):
            raise UsageError(f"--from: is {text!a}; it must be SEGMENT or SEGMENT:BYTE, such as 3:64")
        return cls(int(segment_id), max(SEGMENT_HEADER_BYTES, int(position or 0)))


def dump(
    view: LogView, codec: PayloadCodec, start: DumpStart | None = None, *, shows_bodies: bool = False
) -> Iterator[Document]:
    """Yields the content of each record, and each gap where a record should be.

    Payloads whose key is missing are not decoded. Events are counted; they are shown only if `shows_bodies`.
    Raises UsageError if there is no such segment, and UnknownVersionError at a record of another version.
    """
    if start is not None and all(segment.segment_id != start.segment_id for segment in view.segments):
        raise UsageError(f"--from: there is no segment {start.segment_id}")
    decoder = RecordDecoder(codec, shows_bodies=shows_bodies)
    expected: int | None = None
    for segment in view.segments:
        if start is not None and segment.segment_id < start.segment_id:
            continue
        if expected is not None and segment.segment_id > expected:
            yield {"segment": expected, "position": 0, "damage": "the segment is missing"}
        position = (
            start.position if start is not None and segment.segment_id == start.segment_id else SEGMENT_HEADER_BYTES
        )
        expected = segment.segment_id + 1
        yield from _dump_segment(view, segment, decoder, position)


def _dump_segment(view: LogView, segment: SegmentView, decoder: "RecordDecoder", position: int) -> Iterator[Document]:
    scanner = view.scanner(segment)
    size = segment.file.size()
    for item in scanner.records_and_gaps(position, size):
        if isinstance(item, ScannedRecord):
            yield decoder.document(segment.segment_id, scanner, item)
        # A damaged last segment may end with preallocated zeros, which are not damage.
        elif item.end is not None or segment.file.read(size - item.position, item.position).strip(b"\0"):
            damage = f"there is no valid record in {(item.end or size) - item.position} bytes"
            yield {"segment": segment.segment_id, "position": item.position, "damage": damage}


class RecordDecoder:
    """Turns records into documents."""

    def __init__(self, codec: PayloadCodec, *, shows_bodies: bool) -> None:
        self._codec = codec
        self._shows_bodies = shows_bodies

    def document(self, segment_id: int, scanner: SegmentScanner, record: ScannedRecord) -> Document:
        """Returns the content of a record, or how it is damaged."""
        head = record.head
        document: Document = {
            "segment": segment_id,
            "position": record.position,
            "write_number": head.lsn,
            "kind": _KIND_NAMES.get(head.kind, head.kind.name),
            "flags": [flag.name for flag in Flags if flag in head.flags],
            "synced_position": head.synced_position,
            "payload_bytes": head.payload_length,
        }
        if (key_id := key_id_of(record)) is not None:
            document["key_id"] = key_id
        try:
            document["message"] = self._message(log_record(self._codec, scanner, segment_id, record))
        except KeyMissingError as error:
            document["closed"] = str(error)
        except (LogCorruptError, ContradictionError) as error:
            document["damage"] = str(error)
        return document

    def _message(self, record: LogRecord) -> Document:
        if record.kind is Kind.SYNC_POINT:
            return {}
        if record.kind is not Kind.PUT:
            return _document_of(decode_message(record))
        columns = columns_of(record.payload)
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


def _document_of(message: Message) -> Document:
    """Returns a message as JSON values, with the field names of the protos and integers as numbers."""
    return {
        field.name: time_text(value) if field.name in _TIMES else _plain(value) for field, value in message.ListFields()
    }


def time_text(micros: int) -> str | None:
    """Returns the time of a commit in ISO 8601; None if it is 0."""
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds") if micros else None
    except OverflowError:
        return str(micros)


def _plain(value: Any) -> Any:
    match value:
        case Message():
            return _document_of(value)
        case str() | int() | float():
            return value
        case _:
            return [_plain(item) for item in value]


def record_line(document: Document) -> str:
    """Returns a record, or damage, as one line."""
    place = f"{document['segment']}:{document['position']}"
    if "kind" not in document:
        return f"{place}  DAMAGED  {document['damage']}"
    parts = [
        f"{place}  {document['kind']}  number {document['write_number']}",
        f"synced up to {document['synced_position']}",
        counted(document["payload_bytes"], "byte"),
    ]
    if document["flags"]:
        flags = "+".join(document["flags"]).lower()
        parts.append(f"{flags} {document.get('key_id', '')}".strip())
    line = ", ".join(parts)
    if "damage" in document:
        return f"{line}  DAMAGED  {document['damage']}"
    if "closed" in document:
        return f"{line}  ({document['closed']})"
    return f"{line}  " + " ".join(f"{key}={_shown(value)}" for key, value in document["message"].items())


def _shown(value: Any) -> str:
    match value:
        case dict():
            return "{" + " ".join(f"{key}={_shown(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + " ".join(_shown(item) for item in value) + "]"
        case str():
            return ascii(value)
        case _:
            return str(value)
