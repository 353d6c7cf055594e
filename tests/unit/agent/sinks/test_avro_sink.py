import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from millrace_server.agent.channel_reader import ChannelReader
from millrace_server.agent.sinks.avro.config import AvroSinkConfig
from millrace_server.agent.sinks.avro.sink import AvroSink
from millrace_server.agent.sinks.sink import SinkContext
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.registry import ChannelRegistry
from tests.agent_components import registry_with
from tests.certificates import Authority
from tests.channel_events import stored_rows
from tests.flume_peer import BOTH, CLIENT, PROTOCOL, Event, FlumeServer, Wire
from tests.forward_targets import reader_of
from tests.waiting import WAIT_SECONDS_MAX, until

EVENTS: list[Event] = [({"host": "wéb", "n": str(number)}, b"body-%d" % number) for number in range(250)]


def make_sink(*endpoints: str, **settings: Any) -> AvroSink:
    table = {"type": "avro", "channel": "orders", "endpoints": list(endpoints), **settings}
    made = AvroSinkConfig.model_validate(table).make(SinkContext("out", Path()))
    assert isinstance(made, AvroSink)
    return made


@asynccontextmanager
async def flume_server(**settings: Any) -> AsyncIterator[FlumeServer]:
    server = FlumeServer(**settings)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.close)


@pytest.fixture
async def registry() -> ChannelRegistry:
    made = registry_with("orders", capacity=10_000, transaction_capacity=1_000)
    await made.get("orders").appends.append([stored_rows(EVENTS)], None)
    return made


def event_count(registry: ChannelRegistry) -> int:
    return registry.get("orders")._contents.capacity.event_count


async def empty(registry: ChannelRegistry, sink: AvroSink, reader: ChannelReader | None = None) -> None:
    """Runs a sink until the channel is empty and what it held is settled."""
    reader = reader or reader_of(registry, batch_events_max=100)
    work = asyncio.create_task(sink.run(reader))
    await until(lambda: not event_count(registry) or work.done())
    reader.close()
    await work


async def run_failing(registry: ChannelRegistry, sink: AvroSink, words: str) -> ComponentError:
    """Runs a sink that must fail; returns its error."""
    reader = reader_of(registry, batch_events_max=100)
    with pytest.raises(ComponentError, match=words) as raised:
        await sink.run(reader)
    reader.nack_all()
    return raised.value


async def test_run_sends_batches_in_order(registry: ChannelRegistry) -> None:
    """Events arrive as they are, in batches of the size that is set, over one connection."""
    async with flume_server() as server:
        await empty(registry, make_sink(server.endpoint))
    assert server.events == EVENTS
    assert server.batch_sizes == [100, 100, 50]
    assert server.connection_count == 1
    assert server.handshakes == [BOTH]


async def test_run_with_another_protocol_of_the_server_adopts_its_hash(registry: ChannelRegistry) -> None:
    """A newer or older server has another hash; its messages are the same."""
    async with flume_server(protocol=PROTOCOL.replace('"types"', '"doc":"old","types"')) as server:
        await empty(registry, make_sink(server.endpoint))
    assert server.events == EVENTS
    assert server.handshakes == [CLIENT]


class Forgetful(FlumeServer):
    """Responds NONE to the first handshakes, although it has the text of the protocol."""

    refusals = 0

    def _greet(self, call: Any) -> tuple[bool, bytes]:
        is_greeted, response = super()._greet(call)
        if not self.refusals:
            return is_greeted, response
        self.refusals -= 1
        # The match is the first byte: the index of NONE, zigzag.
        return False, b"\x04" + response[1:]


@pytest.mark.parametrize("refusals", [1, 2])
async def test_run_with_a_server_that_responds_none_repeats_it_once(refusals: int, registry: ChannelRegistry) -> None:
    """The call is repeated with another handshake; a second NONE is reported."""
    server = Forgetful()
    server.refusals = refusals
    try:
        if refusals == 1:
            await empty(registry, make_sink(server.endpoint))
        else:
            await run_failing(registry, make_sink(server.endpoint), "does not accept the protocol")
    finally:
        await asyncio.to_thread(server.close)
    assert server.events == (EVENTS if refusals == 1 else [])


async def test_run_with_a_server_of_another_protocol_reports_it(registry: ChannelRegistry) -> None:
    """A server that would misread the events gets none of them."""
    async with flume_server(protocol=PROTOCOL.replace("appendBatch", "appendMany")) as server:
        await run_failing(registry, make_sink(server.endpoint), "has no message appendBatch that matches Flume's")
    assert event_count(registry) == len(EVENTS)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ("FAILED", "returned FAILED: its channel is full"),
        ("UNKNOWN", "returned UNKNOWN"),
        ("error", "returned an error: java.lang.Oops"),
        ("close", "was closed before the response came|connection broke"),
        ("lost", "was closed before the response came|connection broke"),
    ],
)
async def test_run_without_ok_sends_the_batch_again(response: str, words: str, registry: ChannelRegistry) -> None:
    """Only OK removes events from the channel; a lost response makes copies, and loses nothing."""
    async with flume_server(responses=["OK", response]) as server:
        sink = make_sink(server.endpoint)
        await run_failing(registry, sink, words)
        assert event_count(registry) == len(EVENTS) - 100
        await empty(registry, sink)
        copies = EVENTS[100:200] if response == "lost" else []
    assert server.events == EVENTS[:100] + copies + EVENTS[100:]
    assert server.connection_count == 2


async def test_run_without_any_response_sends_the_batch_again(registry: ChannelRegistry) -> None:
    """A server that is silent for too long is given up, and its connection is closed."""
    async with flume_server(responses=["silence"]) as server:
        sink = make_sink(server.endpoint, timeout_seconds=0.1)
        await run_failing(registry, sink, "has not responded after 0.1 seconds")
        # The next responses may be slow.
        sink._config = sink._config.model_copy(update={"timeout_seconds": WAIT_SECONDS_MAX})
        await empty(registry, sink)
    assert server.events == EVENTS
    assert server.connection_count == 2


@pytest.mark.parametrize("level", [0, 1, 9])
async def test_run_with_deflate_compresses(level: int, registry: ChannelRegistry) -> None:
    """Both directions are zlib streams."""
    async with flume_server(deflate_level=6) as server:
        await empty(registry, make_sink(server.endpoint, compression="deflate", compression_level=level))
    assert server.events == EVENTS


async def test_run_with_tls_shows_its_certificate(registry: ChannelRegistry, tmp_path: Path) -> None:
    """Servers are verified, and may require a certificate; host names may be left unchecked."""
    authority = Authority()
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    certificate, key = authority.issue(tmp_path, "agent")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
    context.load_cert_chain(*authority.issue(tmp_path, "collector"))
    context.verify_mode = ssl.CERT_REQUIRED
    mine = {"certificate": str(certificate), "private_key": str(key)}
    async with flume_server(tls=context) as server:
        await run_failing(registry, make_sink(server.endpoint, tls=mine), "certificate verify failed")
        tls = {"ca": str(ca), "check_host_name": False}
        await run_failing(registry, make_sink(server.endpoint, tls=tls), "connection broke|was closed|cannot connect")
        await empty(registry, make_sink(server.endpoint, tls={**tls, **mine}))
    assert server.events == EVENTS


async def test_run_with_files_of_tls_that_cannot_be_used_names_them(registry: ChannelRegistry, tmp_path: Path) -> None:
    """Nothing is sent, and nothing asks for the password of a key on the terminal."""
    certificate, key = Authority().issue(tmp_path, "agent")
    loaded = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush")))
    mine = {"certificate": str(certificate), "private_key": str(key)}
    sink = make_sink("127.0.0.1:1", tls=mine)
    await run_failing(
        registry,
        sink,
        f"tls: {certificate} and {key} are not a certificate and its unencrypted .*protected by a password",
    )
    await run_failing(
        registry, make_sink("127.0.0.1:1", tls={"ca": str(key)}), f"tls.ca: {key} has no readable PEM certificate"
    )


async def test_run_after_the_server_closed_connects_again(registry: ChannelRegistry) -> None:
    """An idle connection that ended is noticed before the next batch, which is sent once."""
    async with flume_server() as server:
        reader = reader_of(registry, batch_events_max=100)
        sink = make_sink(server.endpoint)
        work = asyncio.create_task(sink.run(reader))
        await until(lambda: not event_count(registry))
        client = sink._client
        assert client is not None
        server.close_connections()
        await until(lambda: not client.is_open)
        await registry.get("orders").appends.append([stored_rows(EVENTS)], None)
        await until(lambda: not event_count(registry) or work.done())
        reader.close()
        await work
    assert server.events == EVENTS * 2
    assert server.connection_count == 2


async def test_run_resets_the_connection_at_its_interval(registry: ChannelRegistry) -> None:
    """Between two batches the sink connects again, so that it finds new servers behind a name."""
    async with flume_server() as server:
        await empty(registry, make_sink(server.endpoint, reset_connection_seconds=0.000_001))
    assert server.events == EVENTS
    # The loop's clock may stand still between two of them.
    assert server.connection_count > 1


async def test_run_with_several_endpoints_uses_the_next_after_a_failure(registry: ChannelRegistry) -> None:
    """An endpoint that cannot be reached, or fails, is followed by the next one."""
    async with flume_server(responses=["FAILED"]) as first, flume_server() as second:
        sink = make_sink("127.0.0.1:1", first.endpoint, second.endpoint)
        await run_failing(registry, sink, "returned FAILED")
        await empty(registry, sink)
    assert (first.events, second.events) == ([], EVENTS)


async def test_run_without_any_endpoint_takes_nothing(registry: ChannelRegistry) -> None:
    """The reason names each of them."""
    reader = reader_of(registry, batch_events_max=100)
    with pytest.raises(ComponentError, match=r"127.0.0.1:1: cannot connect.*; 127.0.0.1:2: cannot connect"):
        await make_sink("127.0.0.1:1", "127.0.0.1:2").run(reader)
    assert reader.unsettled_count == 0


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not an Avro source of Flume: a frame declares"),
        (b"\x00\x00\x00\x01\x00\x00\x00\x01\x7f\xff\xff\xff", "is not an Avro source of Flume: a frame declares"),
        (b"\x00\x00\x00\x01\x00\x00\x00\x00", "does not begin with a handshake"),
        (b"\x00\x00\x00\x09\x00\x00\x00\x00", "it responded to call 9 instead of 1"),
    ],
)
async def test_run_with_a_server_that_is_none_reports_it(sent: bytes, words: str, registry: ChannelRegistry) -> None:
    """Whatever responds, the sink says what it is, and loses nothing."""

    class Stranger(FlumeServer):
        def _respond_to_calls(self, wire: Wire) -> None:
            wire.receive()
            wire.send_raw(sent)
            wire.receive()

    server = Stranger()
    try:
        await run_failing(registry, make_sink(server.endpoint), words)
    finally:
        await asyncio.to_thread(server.close)
    assert event_count(registry) == len(EVENTS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"endpoints": []}, "at least 1"),
        ({"endpoints": ["a:1", "a:1"]}, "twice"),
        ({"endpoints": ["a:0"]}, "its port must be at least 1"),
        ({"compression_level": 3}, "has no effect"),
        ({"compression": "deflate", "compression_level": 10}, "9"),
        ({"deliveries_max": 3}, "has no effect here"),
        ({"tls": {"certificate": "/a.pem"}}, "must be given together"),
    ],
)
def test_config_with_a_wrong_setting_is_refused(settings: Mapping[str, object], words: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(ValidationError, match=words):
        AvroSinkConfig.model_validate({"type": "avro", "channel": "orders", "endpoints": ["a:1"], **settings})
