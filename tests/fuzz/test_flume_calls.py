"""Whatever strangers send, calls of Flume's protocol are read or refused; nothing else is raised."""

import json
import os
import random
import time
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.avro_rpc.calls import BadCallError, RemoteError, read_call, read_response
from millrace_server.agent.avro_rpc.compression import CompressionError, Inflater
from millrace_server.agent.avro_rpc.event_reader import EventReader
from millrace_server.agent.avro_rpc.framing import FrameReader, FramingError
from millrace_server.agent.avro_rpc.handshakes import ServerHandshakes, read_reply
from millrace_server.agent.avro_rpc.protocol import ForeignProtocolError, read_protocol
from tests.flume_peer import PROTOCOL, md5, write_events, write_long, write_map, write_string

LIMIT = 4_096
BYTES = st.binary(max_size=200)
EVENTS = st.lists(st.tuples(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3), BYTES), max_size=4)
HANDSHAKES = st.sampled_from(
    [
        md5(PROTOCOL) + write_long(0) + md5(PROTOCOL) + write_long(0),
        md5(PROTOCOL) + write_long(1) + write_string(PROTOCOL) + bytes(16) + write_long(1) + write_map({"k": b"v"}),
    ]
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(["record", "map", "AvroFlumeEvent", "bytes"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "values", "request"]), inner, max_size=4),
    ),
    max_leaves=20,
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Handshakes and calls, whole or damaged."""
    call = (
        write_map({}) + write_string(draw(st.sampled_from(["append", "appendBatch", ""]))) + write_events(draw(EVENTS))
    )
    payload = bytearray(draw(st.one_of(HANDSHAKES, st.just(b""), BYTES)) + draw(st.one_of(st.just(call), BYTES)))
    for _ in range(draw(st.integers(0, 4)) if payload else 0):
        payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
    return bytes(payload[: draw(st.integers(0, len(payload)))])


def _respond(payload: bytes) -> None:
    try:
        reply = ServerHandshakes().respond(payload)
        for position in (0, reply.end):
            call = read_call(payload, position)
            for is_array in (True, False):
                for table in EventReader(payload, call.position, is_array=is_array).tables():
                    table.stored()
                    assert sum(map(len, table.bodies)) <= len(payload)
    except BadCallError:
        return


@given(payloads())
def test_calls_of_whatever_bytes_are_refused_or_read(payload: bytes) -> None:
    """A client's bytes are a call, or are refused as none."""
    _respond(payload)


@given(payloads())
def test_responses_of_whatever_bytes_are_refused_or_read(payload: bytes) -> None:
    """A server's bytes are a response, or are refused as none."""
    for start in (0, 3):
        try:
            read_response(payload, read_reply(payload[start:], "appendBatch").end)
        except (BadCallError, ForeignProtocolError, RemoteError):
            continue


@given(st.lists(st.one_of(BYTES, st.builds(zlib.compress, BYTES)), max_size=6), st.booleans())
def test_frames_of_whatever_bytes_are_refused_or_found(pieces: Sequence[bytes], is_compressed: bool) -> None:  # noqa: FBT001 - drawn
    """A stream is frames, or is refused as none; no more is held than has come."""
    inflater, reader = Inflater(), FrameReader(LIMIT)
    fed = 0
    try:
        for piece in pieces:
            for data in inflater.feed(piece) if is_compressed else (piece,):
                fed += len(data)
                for frame in reader.feed(data):
                    _respond(frame.payload)
                assert reader.held_bytes <= min(fed, LIMIT)
    except (CompressionError, FramingError):
        return


@given(JSON, JSON)
def test_protocols_of_whatever_json_are_refused_or_compared(types: object, messages: object) -> None:
    """A client's protocol is compared with Flume's, or is none."""
    for text in (json.dumps(types), json.dumps({"protocol": "P", "types": types, "messages": {"append": messages}})):
        try:
            assert read_protocol(text).requests <= {"append"}
        except ForeignProtocolError:
            continue


@pytest.mark.fuzz
def test_calls_of_random_bytes_for_long_are_refused_or_read() -> None:
    """The same for FUZZ_SECONDS, with whole calls that are damaged in random places."""
    end = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "60"))
    seed = int(os.environ.get("MILLRACE_SEED", random.randrange(1 << 32)))
    print(f"MILLRACE_SEED={seed}")  # noqa: T201 - pytest shows it where the test fails
    chance = random.Random(seed)
    head = md5(PROTOCOL) + write_long(0) + md5(PROTOCOL) + write_long(0) + write_map({}) + write_string("appendBatch")
    count = 0
    while time.monotonic() < end:
        keys = chance.sample(["host", "timestamp", "k", "\u00fc", ""], chance.randrange(4))
        events = [
            ({key: "v" * chance.randrange(80) for key in keys}, chance.randbytes(chance.randrange(200)))
            for _ in range(chance.randrange(8))
        ]
        payload = bytearray(head + write_events(events))
        for _ in range(chance.randrange(4)):
            payload[chance.randrange(len(payload))] = chance.randrange(256)
        _respond(bytes(payload[: chance.randrange(len(payload) + 1)] if chance.random() < 0.3 else payload))
        count += 1
    print(f"{count} payloads")  # noqa: T201 - how much that was
