import asyncio
import random
import socket
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from millrace.setting_problems import describe_problems
from millrace_server.agent.sources.avro import source as source_module
from millrace_server.agent.sources.avro.config import AvroSourceConfig
from millrace_server.agent.sources.avro.source import AvroSource
from millrace_server.errors import ChannelFullError, TxnCapacityError
from tests.certificates import Authority
from tests.flume_peer import (
    BOTH,
    CLIENT,
    NONE,
    PROTOCOL,
    Event,
    FlumeClient,
    RpcError,
    Wire,
    md5,
    write_event,
    write_events,
    write_map,
    write_string,
)
from tests.unit.agent.sources.recording_writer import WAIT_SECONDS_MAX, RecordingWriter, running

_T = TypeVar("_T")

EVENTS: list[Event] = [({"host": "web-1", "n": str(number)}, b"body-%d" % number) for number in range(30)]


def make_source(**settings: object) -> AvroSource:
    table = {"type": "avro", "channels": ["logs"], "listen": "127.0.0.1:0"}
    return AvroSource("in", AvroSourceConfig.model_validate({**table, **settings}, strict=True))


def problems_of(**settings: object) -> str:
    with pytest.raises(ValidationError) as raised:
        make_source(**settings)
    return str(describe_problems(raised.value, AvroSourceConfig))


def address_of(source: AvroSource) -> tuple[str, int]:
    return source._listen.address.host, source._listen.address.port


async def talk(act: Callable[[], _T]) -> _T:
    """Lets a client, which blocks, do something in a thread of its own."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return await asyncio.to_thread(act)


@asynccontextmanager
async def client_of(source: AvroSource, **settings: Any) -> AsyncIterator[FlumeClient]:
    client = await talk(lambda: FlumeClient(address_of(source), **settings))
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def raw_client_of(source: AvroSource) -> AsyncIterator[socket.socket]:
    with socket.create_connection(address_of(source), timeout=WAIT_SECONDS_MAX) as client:
        yield client


def is_closed(client: socket.socket) -> bool:
    """Waits until the other side has closed the connection without another word."""
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def writer() -> RecordingWriter:
    return RecordingWriter()


async def test_run_stores_append_and_append_batch(writer: RecordingWriter) -> None:
    """Events of both messages are stored as they are, and acknowledged with OK."""
    source = make_source()
    async with running(source, writer), client_of(source) as client:
        assert await talk(lambda: client.append(EVENTS[0])) == "OK"
        assert await talk(lambda: client.append_batch(EVENTS[1:])) == "OK"
        assert await talk(lambda: client.append_batch([])) == "OK"
        assert client.handshakes == [BOTH]
    assert writer.rows == EVENTS
    assert writer.batch_sizes == [1, 29]


async def test_run_responds_only_after_the_commit(writer: RecordingWriter) -> None:
    """OK is not said before the events are stored."""
    source = make_source()
    writer.may_store.clear()
    async with running(source, writer), client_of(source) as client:
        response = asyncio.create_task(talk(lambda: client.append(EVENTS[0])))
        await writer.waiting.wait()
        assert not response.done()
        writer.may_store.set()
        assert await response == "OK"


async def test_run_with_another_protocol_asks_for_its_text(writer: RecordingWriter) -> None:
    """A client whose hash is unknown repeats its call with its protocol, and nothing is stored twice."""
    source = make_source()
    text = PROTOCOL.replace('"types"', '"doc":"old","types"')
    async with running(source, writer):
        async with client_of(source, protocol=text) as client:
            assert await talk(lambda: client.append(EVENTS[0])) == "OK"
            assert client.handshakes == [NONE, BOTH]
        async with client_of(source, protocol=text) as client:
            assert await talk(lambda: client.append(EVENTS[1])) == "OK"
            assert client.handshakes == [CLIENT]
    assert writer.rows == EVENTS[:2]


async def test_run_while_the_channel_is_full_responses_failed(writer: RecordingWriter) -> None:
    """As Flume's source does; the client repeats the call on the same connection."""
    source = make_source()
    writer.refusals = [ChannelFullError("it is full"), None]
    async with running(source, writer), client_of(source) as client:
        assert await talk(lambda: client.append_batch(EVENTS)) == "FAILED"
        assert writer.rows == []
        assert await talk(lambda: client.append_batch(EVENTS)) == "OK"
    assert writer.rows == EVENTS


async def test_run_while_storing_takes_too_long_responses_failed(writer: RecordingWriter) -> None:
    """A client hears of it before it gives up by itself."""
    source = make_source(store_seconds_max=0.05)
    writer.may_store.clear()
    async with running(source, writer), client_of(source) as client:
        assert await talk(lambda: client.append_batch(EVENTS)) == "FAILED"


async def test_run_with_a_batch_above_what_a_channel_takes_halves_it(writer: RecordingWriter) -> None:
    """Otherwise its sender would repeat it for ever."""
    source = make_source()
    writer.refusals = [TxnCapacityError("too many"), TxnCapacityError("still"), None, None]
    async with running(source, writer), client_of(source) as client:
        assert await talk(lambda: client.append_batch(EVENTS)) == "OK"
    assert writer.rows == EVENTS
    assert writer.batch_sizes == [7, 8, 15]


async def test_run_with_a_large_call_stores_it_in_several_batches(writer: RecordingWriter) -> None:
    """A call above what is read at once is stored completely, or if it is damaged not at all."""
    source = make_source()
    events = [({"n": str(number)}, bytes(60_000)) for number in range(100)]
    async with running(source, writer), client_of(source) as client:
        damaged = write_events(events)[:-1] + b"\x02"
        with pytest.raises(RpcError, match="BAD_ARGUMENT: the bytes end in the middle"):
            await talk(lambda: client.call("appendBatch", damaged))
        assert writer.rows == []
        assert await talk(lambda: client.append_batch(events)) == "OK"
    assert writer.rows == events
    assert len(writer.batch_sizes) == 6


async def test_run_with_an_unexpected_error_responses_an_error(writer: RecordingWriter) -> None:
    """A bug, or a user's interceptor, ends no other call."""
    source = make_source()
    writer.refusals = [ZeroDivisionError("oops"), None]
    async with running(source, writer), client_of(source) as client:
        with pytest.raises(RpcError, match="INTERNAL"):
            await talk(lambda: client.append(EVENTS[0]))
        assert await talk(lambda: client.append(EVENTS[0])) == "OK"


@pytest.mark.parametrize(
    ("message", "parameters", "words"),
    [
        ("acknowledge", b"", "there is no message 'acknowledge'"),
        ("x" * 1_000, b"", "the name of a message has 1000 bytes"),
        ("append", b"", "the bytes end in the middle of a number"),
        ("append", b"\x00\x00more", "4 bytes follow the parameters"),
        ("appendBatch", b"\xff" * 20, "more than 64 bits"),
        ("appendBatch", b"\xfe\xff\xff\xff\x0f", "the bytes end"),
    ],
)
async def test_run_with_a_bad_call_responses_an_error(
    message: str, parameters: bytes, words: str, writer: RecordingWriter
) -> None:
    """The connection stays usable: the frame was one."""
    source = make_source()
    async with running(source, writer), client_of(source) as client:
        with pytest.raises(RpcError, match=words):
            await talk(lambda: client.call(message, parameters))
        assert await talk(lambda: client.append(EVENTS[0])) == "OK"
    assert writer.rows == EVENTS[:1]


async def test_run_with_another_schema_refuses_its_calls(writer: RecordingWriter) -> None:
    """Events of another shape are not misread."""
    source = make_source()
    text = PROTOCOL.replace(
        '{"name":"body","type":"bytes"}', '{"name":"body","type":"bytes"},{"name":"id","type":"long"}'
    )
    async with running(source, writer), client_of(source, protocol=text) as client:
        with pytest.raises(RpcError, match="'AvroSourceProtocol' defines append differently from Flume"):
            await talk(lambda: client.append(EVENTS[0]))
    assert writer.rows == []


async def test_run_responds_to_a_ping(writer: RecordingWriter) -> None:
    """An empty name makes a handshake without a call, and then an empty response."""
    source = make_source()
    async with running(source, writer), client_of(source) as client:
        ping = write_map({}) + write_string("")
        assert await talk(lambda: client.exchange(client.handshake(None) + ping)) == bytes(4)
        assert await talk(lambda: client.exchange(ping)) == b""
        client._is_greeted = True
        assert await talk(lambda: client.append(EVENTS[0])) == "OK"


async def test_run_responses_calls_that_overlap_by_their_serials(writer: RecordingWriter) -> None:
    """A client may send before it has a response; all get responses, and begin in their order."""
    source = make_source()
    async with running(source, writer), client_of(source) as client:
        assert await talk(lambda: client.append(EVENTS[0])) == "OK"
        head = write_map({}) + write_string("appendBatch")
        for serial, event in enumerate(EVENTS[1:]):
            await talk(partial(client.wire.send, serial, head + write_events([event])))
        responses = [await talk(client.wire.receive) for _ in EVENTS[1:]]
    assert sorted(responses) == [(serial, bytes(3)) for serial in range(29)]
    assert writer.rows == EVENTS


@pytest.mark.parametrize("level", [0, 6, 9])
async def test_run_with_deflate_reads_what_clients_compress(level: int, writer: RecordingWriter) -> None:
    """Both directions are compressed, at any level of the client."""
    source = make_source(compression="deflate")
    async with running(source, writer), client_of(source, deflate_level=level) as client:
        for _ in range(3):
            assert await talk(lambda: client.append_batch(EVENTS * 100)) == "OK"
    assert writer.rows == EVENTS * 300


async def test_run_with_tls_admits_clients_with_certificates(writer: RecordingWriter, tmp_path: Path) -> None:
    """TLS is around the compression; a client without a certificate is refused where one is required."""
    authority = Authority()
    certificate, key = authority.issue(tmp_path, "localhost")
    mine, my_key = authority.issue(tmp_path, "agent")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    tls = {"certificate": str(certificate), "private_key": str(key)}
    tls |= {"client_ca": str(ca), "client_certificate": "required"}
    source = AvroSource(
        "in",
        AvroSourceConfig.model_validate(
            {"type": "avro", "channels": ["logs"], "listen": "127.0.0.1:0", "compression": "deflate", "tls": tls}
        ),
    )
    context = ssl.create_default_context(cafile=str(ca))
    async with running(source, writer):
        with capture_logs() as logs, pytest.raises((ssl.SSLError, ConnectionError)):
            async with client_of(source, tls=context, deflate_level=6) as client:
                await talk(lambda: client.append(EVENTS[0]))
        assert any("did not return a certificate" in log.get("reason", "").replace("_", " ").lower() for log in logs)
        context.load_cert_chain(mine, my_key)
        async with client_of(source, tls=context, deflate_level=6) as client:
            assert await talk(lambda: client.append_batch(EVENTS)) == "OK"
    assert writer.rows == EVENTS


def declared(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}i", *numbers)


HANDSHAKE = md5(PROTOCOL) + b"\x00" + md5(PROTOCOL) + b"\x00"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        declared(1, 1, (1 << 31) - 1),
        declared(1, (1 << 31) - 1),
        declared(1, -1),
        declared(1, 1, -5),
        declared(1, 0),
        declared(1, 1, 4) + b"\x00\x00\x00\x00",
        declared(1, 1, 100) + b"\x05" * 100,
        declared(1, 1, 20) + md5("stranger") + b"\x02\xff\xff\xff",
        zlib.compress(b"x" * 100),
    ],
)
async def test_run_with_what_is_no_call_closes_the_connection(sent: bytes, writer: RecordingWriter) -> None:
    """Strangers get no response, and other clients do not notice them."""
    source = make_source()
    async with running(source, writer), client_of(source) as client, raw_client_of(source) as stranger:
        stranger.sendall(sent)
        assert await talk(lambda: is_closed(stranger))
        assert await talk(lambda: client.append(EVENTS[0])) == "OK"


async def test_run_with_a_bomb_closes_the_connection(writer: RecordingWriter) -> None:
    """A frame may not be larger than allowed after it is decompressed."""
    source = make_source(compression="deflate", request_bytes_max=1 << 20)
    bomb = zlib.compress(declared(1, 60) + (declared(1 << 20) + bytes(1 << 20)) * 60, 9)
    async with running(source, writer), client_of(source, deflate_level=6) as client:
        async with raw_client_of(source) as stranger:
            stranger.sendall(bomb)
            assert await talk(lambda: is_closed(stranger))
        assert await talk(lambda: client.append(EVENTS[0])) == "OK"


async def test_run_with_a_slow_sender_closes_its_connection(writer: RecordingWriter) -> None:
    """An incomplete call has its time, however it trickles in."""
    source = make_source(request_seconds_max=0.2)
    async with running(source, writer), client_of(source) as client, raw_client_of(source) as slow:
        slow.sendall(declared(1, 1, 1_000) + HANDSHAKE)
        assert await talk(lambda: is_closed(slow))
        # One that is silent between calls stays.
        assert await talk(lambda: client.append(EVENTS[0])) == "OK"


async def test_run_with_many_incomplete_calls_gives_the_oldest_up(writer: RecordingWriter) -> None:
    """Incomplete calls take limited memory, and do not keep complete ones out."""
    source = make_source(request_bytes_max=1 << 20, inflight_bytes_max=2 << 20)
    part = declared(1, 1, 1 << 20) + bytes(700_000)
    async with running(source, writer), raw_client_of(source) as first, raw_client_of(source) as second:
        await talk(lambda: first.sendall(part))
        await talk(lambda: second.sendall(part))
        assert await talk(lambda: is_closed(first))
        async with client_of(source) as client:
            assert await talk(lambda: client.append_batch([({}, bytes(1_000_000))])) == "OK"


async def test_run_with_many_calls_being_stored_reads_no_more(writer: RecordingWriter) -> None:
    """Then clients wait, and each of their calls is stored."""
    source = make_source(request_bytes_max=1 << 20, inflight_bytes_max=2 << 20)
    writer.may_store.clear()
    call = HANDSHAKE + write_map({}) + write_string("append") + write_event(({}, bytes(150_000)))
    later = call.removeprefix(HANDSHAKE)

    def send_and_receive(client: FlumeClient) -> set[bytes]:
        client.wire.send(0, call)
        for serial in range(1, 4):
            client.wire.send(serial, later)
        responses = {client.wire.receive()[1][-3:] for _ in range(4)}
        client.close()
        return responses

    async with running(source, writer):
        clients = [await talk(partial(FlumeClient, address_of(source))) for _ in range(5)]
        talks = [asyncio.create_task(talk(partial(send_and_receive, client))) for client in clients]
        await writer.waiting.wait()
        writer.may_store.set()
        assert await asyncio.gather(*talks) == [{bytes(3)}] * 5
    assert len(writer.rows) == 20


async def test_run_above_connections_max_replaces_idle_ones(writer: RecordingWriter) -> None:
    """Half-open connections keep nobody out; one with a call in progress stays."""
    source = make_source(connections_max=2)
    writer.may_store.clear()
    async with running(source, writer), client_of(source) as busy, raw_client_of(source) as idle:
        response = asyncio.create_task(talk(lambda: busy.append(EVENTS[0])))
        await writer.waiting.wait()
        async with client_of(source) as third:
            assert await talk(lambda: is_closed(idle))
            also = asyncio.create_task(talk(lambda: third.append(EVENTS[1])))
            writer.may_store.set()
            assert (await response, await also) == ("OK", "OK")


async def test_run_refuses_clients_by_its_rules(writer: RecordingWriter) -> None:
    """A client that a rule denies is not heard."""
    source = make_source(ip_filter_rules=["deny:ip:127.*"])
    with capture_logs() as logs:
        async with running(source, writer), raw_client_of(source) as client:
            assert await talk(lambda: is_closed(client))
    assert ("127.0.0.1", "its address may not connect") in [(log.get("client"), log.get("reason")) for log in logs]
    source = make_source(ip_filter_rules=["allow:name:localhost", "deny:ip:*"])
    async with running(source, writer), client_of(source) as client:
        assert await talk(lambda: client.append(EVENTS[0])) == "OK"


async def test_run_logs_a_kind_of_problem_again_after_events_were_stored(writer: RecordingWriter) -> None:
    """A client that begins to send what is no frame months after another one is seen, too."""
    source = make_source()
    with capture_logs() as logs:
        async with running(source, writer):
            for _ in range(2):
                async with raw_client_of(source) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    assert await talk(partial(is_closed, stranger))
                async with client_of(source) as client:
                    assert await talk(partial(client.append, EVENTS[0])) == "OK"
    assert [log["event"] for log in logs if "client" in log] == ["a connection was closed"] * 2


async def test_stop_completes_the_calls_that_it_has(writer: RecordingWriter) -> None:
    """Calls that are being stored still get their responses; idle connections are closed."""
    source = make_source()
    writer.may_store.clear()
    async with running(source, writer) as work, client_of(source) as client, raw_client_of(source) as idle:
        response = asyncio.create_task(talk(lambda: client.append(EVENTS[0])))
        await writer.waiting.wait()
        work.cancel()
        assert await talk(lambda: is_closed(idle))
        writer.may_store.set()
        assert await response == "OK"
        assert await talk(lambda: is_closed(client.wire.connection))


async def test_stop_gives_up_calls_that_take_too_long(writer: RecordingWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get no response, and their clients repeat them."""
    monkeypatch.setattr(source_module, "CLOSING_SECONDS_MAX", 0.05)
    source = make_source()
    writer.may_store.clear()
    async with running(source, writer) as work, client_of(source) as client:
        response = asyncio.create_task(talk(lambda: client.append(EVENTS[0])))
        await writer.waiting.wait()
        work.cancel()
        with pytest.raises(ConnectionError):
            await response


async def test_run_again_listens_on_the_same_port(writer: RecordingWriter) -> None:
    """A port that the system chose stays, so that clients find the source again."""
    source = make_source()
    async with running(source, writer):
        before = address_of(source)
    async with running(source, writer):
        assert address_of(source) == before


async def test_run_with_random_bytes_serves_others(writer: RecordingWriter) -> None:
    """A short run of what `make fuzz` does for long."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")  # noqa: T201 - to repeat a failure
    chance = random.Random(seed)
    source = make_source()

    def rave() -> None:
        with socket.create_connection(address_of(source), timeout=WAIT_SECONDS_MAX) as stranger:
            payload = (HANDSHAKE if chance.random() < 0.7 else b"") + chance.randbytes(chance.randrange(60))
            wire = Wire(stranger)
            wire.send(1, payload)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1_000):
                pass

    async with running(source, writer):
        for _ in range(100):
            await talk(rave)
        async with client_of(source) as client:
            assert await talk(lambda: client.append(EVENTS[0])) == "OK"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listen": "0.0.0.0:4141"}, "nothing is encrypted"),
        ({"listen": "nonsense"}, "it must be host:port"),
        ({"compression": "gzip"}, "deflate"),
        ({"ip_filter_rules": ["127.*"]}, "it must be"),
        ({"ip_filter_rules": ["allow:host:127.*"]}, "it must be"),
        ({"inflight_bytes_max": 1 << 20}, "twice request_bytes_max"),
    ],
)
def test_config_with_a_wrong_setting_is_refused(settings: dict[str, object], words: str) -> None:
    """The message says what is allowed."""
    assert words in problems_of(**settings)
