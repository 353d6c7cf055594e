"""Flume's protocol, `AvroSourceProtocol`, and the comparison of a peer's protocol with it."""

import hashlib
import json
from enum import IntEnum
from typing import Any, NamedTuple

APPEND, APPEND_BATCH = "append", "appendBatch"

EVENT_SCHEMA = {
    "type": "record",
    "name": "AvroFlumeEvent",
    "fields": [
        {"name": "headers", "type": {"type": "map", "values": "string"}},
        {"name": "body", "type": "bytes"},
    ],
}


class Status(IntEnum):
    """The response to both messages; the values are the indexes in the protocol's enum."""

    OK = 0
    FAILED = 1
    UNKNOWN = 2


def _message(parameter: str, schema: object) -> dict[str, object]:
    return {"request": [{"name": parameter, "type": schema}], "response": "Status"}


PROTOCOL_TEXT = json.dumps(
    {
        "protocol": "AvroSourceProtocol",
        "namespace": "org.apache.flume.source.avro",
        "types": [{"type": "enum", "name": "Status", "symbols": [each.name for each in Status]}, EVENT_SCHEMA],
        "messages": {
            APPEND: _message("event", "AvroFlumeEvent"),
            APPEND_BATCH: _message("events", {"type": "array", "items": "AvroFlumeEvent"}),
        },
    },
    separators=(",", ":"),
)
"""The protocol, exactly as Flume's own classes print it, so that both sides compute the same hash."""

HASH_BYTES = 16


def protocol_hash(text: str) -> bytes:
    """Returns the hash that identifies a protocol in Avro's handshake."""
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


PROTOCOL_HASH = protocol_hash(PROTOCOL_TEXT)


class PeerProtocol(NamedTuple):
    """What a peer's protocol has in common with Flume's."""

    name: str
    requests: frozenset[str]
    """The messages that have the same request."""
    responses: frozenset[str]
    """The messages that have the same response."""


class ForeignProtocolError(ValueError):
    """Raised when a text is not an Avro protocol, or the protocol is not Flume's."""


def read_protocol(text: str) -> PeerProtocol:
    """Compares a protocol with Flume's; the names of parameters and types, and documentation, are ignored.

    Raises ForeignProtocolError if the text is not a protocol.
    """
    try:
        declared = json.loads(text)
        return _Comparison(declared["types"]).peer(str(declared["protocol"]), declared["messages"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ForeignProtocolError("the text is not an Avro protocol in JSON") from None


class _Comparison:
    """Compares schemas with those of Flume's protocol only as deep as these are, so recursive schemas are harmless."""

    def __init__(self, types: list[Any]) -> None:
        self._types = {_last_name(each["name"]): each for each in types}

    def peer(self, name: str, messages: dict[str, Any]) -> PeerProtocol:
        known = {each: messages[each] for each in (APPEND, APPEND_BATCH) if each in messages}
        return PeerProtocol(
            name,
            frozenset(each for each, message in known.items() if self._has_our_request(each, message)),
            frozenset(each for each, message in known.items() if self._is_status(message.get("response"))),
        )

    def _has_our_request(self, name: str, message: dict[str, Any]) -> bool:
        parameters = message["request"]
        if len(parameters) != 1 or message.get("one-way"):
            return False
        schema = parameters[0]["type"]
        if name == APPEND:
            return self._is_event(schema)
        array = self._found(schema)
        return array.get("type") == "array" and self._is_event(array["items"])

    def _is_event(self, schema: object) -> bool:
        fields = self._found(schema).get("fields", ())
        if [field["name"] for field in fields] != ["headers", "body"]:
            return False
        headers = self._found(fields[0]["type"])
        return (
            headers.get("type") == "map"
            and self._found(headers["values"]).get("type") == "string"
            and self._found(fields[1]["type"]).get("type") == "bytes"
        )

    def _is_status(self, schema: object) -> bool:
        return self._found(schema).get("symbols") == [each.name for each in Status]

    def _found(self, schema: object) -> dict[str, Any]:
        """Returns a schema as an object, as which Java writes even a string: `{"type": "string", ...}`."""
        if isinstance(schema, dict):
            return schema
        if isinstance(schema, str):
            found: dict[str, Any] = self._types.get(_last_name(schema), {"type": schema})
            return found
        return {}


def _last_name(name: str) -> str:
    return name.rpartition(".")[2]


FLUME = read_protocol(PROTOCOL_TEXT)
