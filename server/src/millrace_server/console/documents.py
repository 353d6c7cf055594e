"""Protobuf messages as JSON documents, with units in the names of fields."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_NANOS = 1_000_000_000
_MICROS = 1_000_000


def document_of(message: Message) -> dict[str, Any]:
    """Returns all fields of a message: None for an absent one, and names in lower case for enums.

    Durations are seconds in fields with the suffix `_seconds`, times are seconds since 1970 in those with `_time`.
    """
    return dict(_entry(message, field) for field in message.DESCRIPTOR.fields)


def time_of(micros: int) -> float | None:
    """Returns a time in seconds since 1970; None for 0, which means unknown."""
    return micros / _MICROS if micros else None


def _entry(message: Message, field: Any) -> tuple[str, object]:
    value = getattr(message, field.name)
    if isinstance(value, Duration | Timestamp):
        unit = "_seconds" if isinstance(value, Duration) else "_time"
        seconds = value.seconds + value.nanos / _NANOS if message.HasField(field.name) else None
        return field.name.removesuffix(unit) + unit, seconds
    if isinstance(value, Mapping):
        return field.name, dict(value)
    if field.is_repeated:
        return field.name, [_plain(one, field) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return field.name, None
    return field.name, _plain(value, field)


def _plain(value: Any, field: Any) -> object:
    if isinstance(value, Message):
        return document_of(value)
    if field.enum_type is not None:
        return _word(value, field)
    return value


def _word(number: int, field: Any) -> str:
    """Returns the name of an enum number in lower case, without the common prefix of its enum."""
    names = field.enum_type.values_by_number
    prefix = names[0].name.removesuffix("UNSPECIFIED")
    return names[number].name.removeprefix(prefix).lower() if number in names else str(number)
