import json
from typing import Any

import pytest

from millrace_server.agent.avro_rpc.calls import BadCallError, RemoteError, error_response, read_call, read_response
from millrace_server.agent.avro_rpc.handshakes import ServerHandshakes, read_reply
from millrace_server.agent.avro_rpc.protocol import FLUME, ForeignProtocolError, read_protocol
from tests.flume_peer import CLIENT, PROTOCOL, md5, write_long, write_map, write_string

ONE_WAY = {"request": [{"name": "e", "type": "AvroFlumeEvent"}], "one-way": True}
BOTH_MESSAGES = {"append", "appendBatch"}


def request(client_hash: bytes, text: str | None) -> bytes:
    protocol = write_long(0) if text is None else write_long(1) + write_string(text)
    return client_hash + protocol + md5(PROTOCOL) + write_long(0)


def changed(**places: Any) -> str:
    """Flume's protocol with other contents, by dotted path."""
    protocol = json.loads(PROTOCOL)
    for path, value in places.items():
        *parents, last = path.split("__")
        place = protocol
        for parent in parents:
            place = place[int(parent) if isinstance(place, list) else parent]
        place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(protocol, indent=1)


def test_respond_after_a_text_knows_its_hash() -> None:
    """A protocol that came once is known by its hash, on every connection."""
    handshakes = ServerHandshakes()
    text = changed(doc="with documentation")
    assert handshakes.respond(request(md5(text), None)).peer is None
    assert handshakes.respond(request(md5(text), text)).peer == FLUME
    assert handshakes.respond(request(md5(text), None)).peer == FLUME


def test_respond_with_a_false_hash_is_remembered_for_no_other_client() -> None:
    """A client cannot replace the protocol of others by its own under their hash."""
    handshakes = ServerHandshakes()
    mine = changed(messages={})
    theirs = md5(changed(doc="theirs"))
    assert handshakes.respond(request(theirs, mine)).peer == ("AvroSourceProtocol", frozenset(), frozenset())
    assert handshakes.respond(request(theirs, None)).peer is None
    assert handshakes.respond(request(md5(PROTOCOL), mine)).peer == FLUME


def test_respond_of_many_protocols_remembers_a_limited_number() -> None:
    """Strangers do not fill the memory, and Flume's own protocol is never forgotten."""
    handshakes = ServerHandshakes()
    for number in range(300):
        text = changed(doc=str(number))
        handshakes.respond(request(md5(text), text))
    assert len(handshakes._learned) <= 100
    assert handshakes.respond(request(md5(PROTOCOL), None)).peer == FLUME


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(16) + b"\x09",  # a branch that the union does not have
        bytes(16) + b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a text of 2^63 - 1 bytes
        bytes(16) + b"\x02\x01",  # a text of -1 bytes
        bytes(16) + b"\x02\x04\xff\xff",  # a text that is not UTF-8
        bytes(16) + b"\x00" + bytes(16) + b"\x02" + b"\xff" * 9 + b"\x01",  # metadata of 2^63 entries
        request(bytes(16), "[" * 10_000),
        request(bytes(16), "{}"),
        request(bytes(16), '{"protocol": 1, "types": [1], "messages": 2}'),
        request(bytes(16), "x" * 100_000),
    ],
)
def test_respond_of_what_is_no_handshake_is_refused(payload: bytes) -> None:
    """Any other bytes are refused as such."""
    with pytest.raises(BadCallError):
        ServerHandshakes().respond(payload)


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        (PROTOCOL, BOTH_MESSAGES),
        (changed(doc="d", namespace="other", protocol="Other"), BOTH_MESSAGES),
        (changed(types__1__fields__0__type__values={"type": "string", "avro.java.string": "String"}), BOTH_MESSAGES),
        (changed(types__1__fields__0__type__values="bytes"), set()),
        (changed(types__1__fields__1__type="string"), set()),
        (changed(types__1__fields=[]), set()),
        (changed(messages__append__request=[]), {"appendBatch"}),
        (changed(messages__append=ONE_WAY), {"appendBatch"}),
        (changed(messages__appendBatch__request__0__type="AvroFlumeEvent"), {"append"}),
        (changed(messages={}), set()),
    ],
)
def test_read_protocol_compares_requests(text: str, requests: set[str]) -> None:
    """Only messages whose requests are encoded alike may be called."""
    assert read_protocol(text).requests == requests


def test_read_protocol_of_a_recursive_schema_ends() -> None:
    """A type that contains itself does no harm."""
    loop = [{"type": "map", "name": "A", "values": "A"}, {"type": "array", "name": "B", "items": "B"}]
    text = changed(types=loop, messages__append__request__0__type="A", messages__appendBatch__request__0__type="B")
    assert read_protocol(text).requests == set()


def test_read_reply_of_another_protocol_is_refused() -> None:
    """A server whose statuses differ would be misunderstood."""
    text = changed(types__0__symbols=["FAILED", "OK"])
    welcome = write_long(CLIENT) + write_long(1) + write_string(text) + write_long(1) + md5(text) + write_long(0)
    with pytest.raises(ForeignProtocolError, match="has no message appendBatch that matches Flume's"):
        read_reply(welcome, "appendBatch")


def test_read_call_with_endless_metadata_is_refused() -> None:
    """Metadata is skipped, and only so much of it."""
    assert read_call(write_map({"k": b"v"}) + write_string("m"), 0).message == "m"
    with pytest.raises(BadCallError, match="metadata"):
        read_call(write_map({str(number): b"" for number in range(1_001)}) + write_string("m"), 0)
    with pytest.raises(BadCallError, match="the name of a message has 300 bytes"):
        read_call(write_map({}) + write_string("m" * 300), 0)


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00\x00", b"\x00\x00\x06", b"\x00\x02\x00", b"\x00\x00\x01"])
def test_read_response_of_what_is_no_response_is_refused(payload: bytes) -> None:
    """A server's mistake is told as such."""
    with pytest.raises(BadCallError):
        read_response(payload, 0)


def test_read_response_of_an_error_raises_its_text() -> None:
    """A long text is cut, at a whole character."""
    with pytest.raises(RemoteError, match=r"^wrong$"):
        read_response(error_response("wrong"), 0)
    with pytest.raises(RemoteError, match=r"^ü{500}$"):
        read_response(error_response("ü" * 5_000), 0)
    with pytest.raises(RemoteError, match="unknown type"):
        read_response(b"\x00\x01\x02", 0)
