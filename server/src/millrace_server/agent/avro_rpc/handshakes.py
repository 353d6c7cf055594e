"""The handshake of Avro RPC: each side learns the other's protocol by its hash, or by its text.

It precedes the first call of a connection, in the same frame, and is repeated until the server knows the client's
protocol.
"""

from collections import OrderedDict
from io import BytesIO
from typing import Any, NamedTuple

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from millrace_server.agent.avro_rpc.calls import BadCallError
from millrace_server.agent.avro_rpc.protocol import (
    FLUME,
    HASH_BYTES,
    PROTOCOL_HASH,
    PROTOCOL_TEXT,
    ForeignProtocolError,
    PeerProtocol,
    protocol_hash,
    read_protocol,
)

_HANDSHAKE_BYTES_MAX = 64 * 1024
_PROTOCOLS_MAX = 100

_MD5 = {"type": "fixed", "name": "MD5", "size": HASH_BYTES}
_META = ["null", {"type": "map", "values": "bytes"}]
_REQUEST: Any = parse_schema(
    {
        "type": "record",
        "name": "HandshakeRequest",
        "namespace": "org.apache.avro.ipc",
        "fields": [
            {"name": "clientHash", "type": _MD5},
            {"name": "clientProtocol", "type": ["null", "string"]},
            {"name": "serverHash", "type": "MD5"},
            {"name": "meta", "type": _META},
        ],
    }
)
_RESPONSE: Any = parse_schema(
    {
        "type": "record",
        "name": "HandshakeResponse",
        "namespace": "org.apache.avro.ipc",
        "fields": [
            {
                "name": "match",
                "type": {"type": "enum", "name": "HandshakeMatch", "symbols": ["BOTH", "CLIENT", "NONE"]},
            },
            {"name": "serverProtocol", "type": ["null", "string"]},
            {"name": "serverHash", "type": ["null", _MD5]},
            {"name": "meta", "type": _META},
        ],
    }
)


def _read(payload: bytes, schema: Any) -> tuple[dict[str, Any], int]:
    """Returns the record at the beginning of a payload, and the position of its end."""
    # Limits the memory of the decoded objects, whatever sizes the payload declares.
    content = BytesIO(payload[:_HANDSHAKE_BYTES_MAX])
    try:
        record: Any = schemaless_reader(content, schema, None)
    except Exception as error:  # noqa: BLE001 - fastavro raises errors of many types for bytes that do not fit
        raise BadCallError(
            f"the connection does not begin with a handshake: {str(error) or type(error).__name__}"
        ) from None
    return record, content.tell()


def _write(record: dict[str, Any], schema: Any) -> bytes:
    content = BytesIO()
    schemaless_writer(content, schema, record)
    return content.getvalue()


class HandshakeReply(NamedTuple):
    """A server's reply to a handshake."""

    response: bytes
    peer: PeerProtocol | None
    """The client's protocol; None: the call after the handshake must be ignored, and the client repeats both."""
    end: int
    """Where the handshake ends in the payload."""


class ServerHandshakes:
    """Responds to handshakes, and remembers the protocols of clients by their hashes."""

    def __init__(self) -> None:
        self._learned: OrderedDict[bytes, PeerProtocol] = OrderedDict()

    def respond(self, payload: bytes) -> HandshakeReply:
        """Responds to the handshake at the beginning of a payload. Raises BadCallError if there is none."""
        request, end = _read(payload, _REQUEST)
        client_hash = request["clientHash"]
        peer = FLUME if client_hash == PROTOCOL_HASH else self._learned.get(client_hash) or self._learn(request)
        match = "NONE" if peer is None else "BOTH" if request["serverHash"] == PROTOCOL_HASH else "CLIENT"
        is_known = match == "BOTH"
        response = {
            "match": match,
            "serverProtocol": None if is_known else PROTOCOL_TEXT,
            "serverHash": None if is_known else PROTOCOL_HASH,
            "meta": None,
        }
        return HandshakeReply(_write(response, _RESPONSE), peer, end)

    def _learn(self, request: dict[str, Any]) -> PeerProtocol | None:
        text = request["clientProtocol"]
        if text is None:
            return None
        try:
            peer = read_protocol(text)
        except ForeignProtocolError as error:
            raise BadCallError(f"the handshake's clientProtocol: {error}") from None
        # A protocol with a wrong hash would be mistaken for the protocol of other clients.
        if protocol_hash(text) == request["clientHash"]:
            self._learned[request["clientHash"]] = peer
            if len(self._learned) > _PROTOCOLS_MAX:
                self._learned.popitem(last=False)
        return peer


def handshake_request(server_hash: bytes = PROTOCOL_HASH) -> bytes:
    """Returns a client's handshake, with the text of its protocol, so that the server knows it afterwards."""
    request = {"clientHash": PROTOCOL_HASH, "clientProtocol": PROTOCOL_TEXT, "serverHash": server_hash, "meta": None}
    return _write(request, _REQUEST)


class HandshakeResult(NamedTuple):
    """What a client learns from a server's reply to a handshake."""

    is_accepted: bool
    """Whether the response to the call follows."""
    server_hash: bytes
    end: int
    """Where the handshake ends in the payload."""


def read_reply(payload: bytes, message: str) -> HandshakeResult:
    """Reads a server's reply to a handshake.

    Raises:
        BadCallError: The payload does not begin with a reply.
        ForeignProtocolError: The server's protocol lacks the message, or defines it differently from Flume's.
    """
    response, end = _read(payload, _RESPONSE)
    text = response["serverProtocol"]
    if text is not None:
        peer = read_protocol(text)
        if message not in peer.requests & peer.responses:
            raise ForeignProtocolError(
                f"its protocol {peer.name[:100]!r} has no message {message} that matches Flume's"
            )
    return HandshakeResult(response["match"] != "NONE", response["serverHash"] or PROTOCOL_HASH, end)
