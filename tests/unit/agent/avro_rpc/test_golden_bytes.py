"""Bytes of both directions, written out by hand from Avro's specification.

An int or long is zigzag: n >= 0 becomes 2n, n < 0 becomes -2n - 1; then seven bits a byte. So 1 is 02, 2 is 04, 7 is
0e, 64 is 80 01, -1 is 01. A string or bytes is its size as a long, then its bytes. A map or an array is blocks of a
count and so many items, then a count of 0. A union is the index of its branch, then the value. A record is its fields.
"""

import hashlib
from io import BytesIO

import fastavro
import pytest

from millrace_server.agent.avro_rpc.calls import call_head, error_response, read_call, read_response, status_response
from millrace_server.agent.avro_rpc.event_reader import EventReader
from millrace_server.agent.avro_rpc.framing import Frame, FrameReader, framed
from millrace_server.agent.avro_rpc.handshakes import ServerHandshakes, handshake_request, read_reply
from millrace_server.agent.avro_rpc.protocol import PROTOCOL_TEXT, Status
from tests.flume_peer import PROTOCOL


def spaced(text: str) -> bytes:
    return bytes.fromhex(text)


HASH = hashlib.md5(PROTOCOL.encode(), usedforsecurity=False).digest()

# 509 characters: zigzag 1018 = 7 * 128 + 122, so 122 with the bit for more, fa, and 07.
PROTOCOL_STRING = spaced("fa 07") + PROTOCOL.encode()

EVENT = (
    spaced("02")  # headers: a block of one entry
    + spaced("08")
    + b"host"  # its key, 4 bytes
    + spaced("06")
    + b"web"  # its value, 3 bytes
    + spaced("00")  # the end of the map
    + spaced("04")
    + b"hi"  # body: 2 bytes
)
EVENT_WITHOUT_HEADERS = spaced("00 00")
"""No block in the map; no bytes in the body."""

HANDSHAKE_BY_HASH = HASH + spaced("00") + HASH + spaced("00")
"""clientHash; clientProtocol: null, the first branch; serverHash; meta: null."""
HANDSHAKE_BY_TEXT = HASH + spaced("02") + PROTOCOL_STRING + HASH + spaced("00")
"""clientProtocol: the second branch, a string."""

WELCOME_BOTH = spaced("00 00 00 00")
"""match: BOTH, index 0; serverProtocol, serverHash and meta: null."""
WELCOME_CLIENT = spaced("02 02") + PROTOCOL_STRING + spaced("02") + HASH + spaced("00")
"""match: CLIENT, index 1; then the server's protocol and hash, each the second branch."""
WELCOME_NONE = spaced("04 02") + PROTOCOL_STRING + spaced("02") + HASH + spaced("00")

APPEND = spaced("00") + spaced("0c") + b"append" + EVENT
"""Metadata: an empty map; the message's name, 6 bytes; the parameter."""
APPEND_BATCH = spaced("00 16") + b"appendBatch" + spaced("04") + EVENT + EVENT_WITHOUT_HEADERS + spaced("00")
"""The name has 11 bytes; the parameter is an array with a block of two items."""

OK_RESPONSE = spaced("00 00 00")
"""Metadata: an empty map; no error; Status.OK, index 0."""
FAILED_RESPONSE = spaced("00 00 02")
ERROR_RESPONSE = spaced("00 01 00 0a") + b"wrong"
"""Metadata; an error; the first branch of its union, a string; 5 bytes."""

OK_FRAME = spaced("00000007 00000001 00000007") + WELCOME_BOTH + OK_RESPONSE
"""Serial 7, a list of one buffer, whose length is 7."""


def test_protocol_has_the_text_and_hash_of_flume() -> None:
    """The text is what Flume's classes print, so both sides know each other by its hash."""
    assert PROTOCOL_TEXT == PROTOCOL
    assert len(PROTOCOL) == 509
    assert HASH.hex() == hashlib.md5(PROTOCOL_TEXT.encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("received", "responded"),
    [
        (HANDSHAKE_BY_HASH, WELCOME_BOTH),
        (HANDSHAKE_BY_TEXT, WELCOME_BOTH),
        (HASH + spaced("00") + bytes(16) + spaced("00"), WELCOME_CLIENT),
        (bytes(16) + spaced("00") + HASH + spaced("00"), WELCOME_NONE),
    ],
)
def test_respond_responses_handshake_as_specified(received: bytes, responded: bytes) -> None:
    """The match tells which protocols are known, and the server's is sent unless the client knows it."""
    reply = ServerHandshakes().respond(received + b"rest")
    assert (reply.response, reply.end) == (responded, len(received))
    assert (reply.peer is None) == (responded is WELCOME_NONE)


def test_handshake_request_is_as_specified() -> None:
    """The sink sends its protocol's text at once."""
    assert handshake_request() == HANDSHAKE_BY_TEXT


@pytest.mark.parametrize(
    ("welcome", "is_accepted"), [(WELCOME_BOTH, True), (WELCOME_CLIENT, True), (WELCOME_NONE, False)]
)
def test_read_reply_reads_each_match(welcome: bytes, is_accepted: bool) -> None:  # noqa: FBT001 - a parameter
    """All three responses of a server are understood."""
    assert read_reply(welcome + OK_RESPONSE, "appendBatch") == (is_accepted, HASH, len(welcome))


def test_read_call_reads_append() -> None:
    """A call of one event is read."""
    call = read_call(APPEND, 0)
    [table] = EventReader(APPEND, call.position, is_array=False).tables()
    assert call.message == "append"
    assert list(table.rows()) == [({"host": "web"}, b"hi")]


def test_read_call_reads_append_batch() -> None:
    """A call of several events is read, also where its metadata is not empty and its blocks tell their bytes."""
    block = EVENT + EVENT_WITHOUT_HEADERS
    # Metadata {"k": "v"}. A count of -2 (zigzag 3) is followed by the bytes of the block.
    sized = spaced("02 02") + b"k" + spaced("02") + b"v" + spaced("00 16") + b"appendBatch"
    sized += spaced("03") + bytes([2 * len(block)]) + block + spaced("00")
    for encoded in (APPEND_BATCH, sized):
        call = read_call(encoded, 0)
        [table] = EventReader(encoded, call.position, is_array=True).tables()
        assert call.message == "appendBatch"
        assert list(table.rows()) == [({"host": "web"}, b"hi"), ({}, b"")]


def test_call_head_precedes_the_parameters() -> None:
    """What the sink sends before the events is a call's metadata and name."""
    assert APPEND_BATCH.startswith(call_head("appendBatch"))
    assert len(call_head("appendBatch")) == 13


def test_encoded_events_are_as_specified() -> None:
    """The schema of the sink's events is that of the golden bytes."""
    from millrace_server.agent.sinks.avro.client import _EVENTS

    content = BytesIO()
    fastavro.schemaless_writer(
        content, _EVENTS, [{"headers": {"host": "web"}, "body": b"hi"}, {"headers": {}, "body": b""}]
    )
    assert content.getvalue() == APPEND_BATCH[13:]


def test_responses_are_as_specified() -> None:
    """Statuses and errors are written and read."""
    assert status_response(Status.OK) == OK_RESPONSE
    assert status_response(Status.FAILED) == FAILED_RESPONSE
    assert error_response("wrong") == ERROR_RESPONSE
    assert read_response(OK_RESPONSE, 0) is Status.OK
    assert read_response(b"before" + FAILED_RESPONSE, 6) is Status.FAILED
    assert read_response(spaced("00 00 04"), 0) is Status.UNKNOWN


def test_frames_are_as_the_netty_transport_has_them() -> None:
    """A frame is written in one buffer, and read however it is cut into buffers."""
    assert framed(7, WELCOME_BOTH + OK_RESPONSE) == OK_FRAME
    cut = spaced("00000007 00000003 00000004") + WELCOME_BOTH + spaced("00000000 00000003") + OK_RESPONSE
    for encoded in (OK_FRAME, cut):
        assert list(FrameReader(100).feed(encoded)) == [Frame(7, WELCOME_BOTH + OK_RESPONSE)]
    assert list(FrameReader(100).feed(spaced("fffffffe 00000000"))) == [Frame(0xFFFFFFFE, b"")]
