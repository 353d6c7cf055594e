"""Kafka over TLS and with passwords: a broker behind a proxy that asks for certificates, or for a user."""

import asyncio
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace_server.agent.sinks.kafka.config import KafkaSinkConfig
from millrace_server.agent.sinks.sink import Sink, SinkContext
from millrace_server.agent.sources.kafka.config import KafkaSourceConfig
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.network import Address
from tests.agent_components import registry_with
from tests.certificates import Authority
from tests.channel_events import append, queued
from tests.forward_targets import reader_of
from tests.kafka_brokers import Broker
from tests.unit.agent.sources.running_sources import running_source
from tests.waiting import until

_READ_BYTES = 1 << 16
_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE = 17, 18, 36
_AUTHENTICATION_FAILED = 58
_NO_TEXT, _NO_BYTES = struct.pack(">h", -1), struct.pack(">i", 0)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def broker_behind(
    serve: Callable[[Streams, Streams], Awaitable[object]],
    properties: Mapping[str, str],
    context: ssl.SSLContext | None = None,
) -> AsyncGenerator[Broker]:
    """A broker whose clients connect to a proxy, with a topic."""
    connections = set[asyncio.Task[None]]()

    async def forward(client: Streams) -> None:
        address = Address.parse(broker.address)
        try:
            await serve(client, await asyncio.open_connection(address.host, address.port))
        except OSError:
            pass  # The broker has ended.
        finally:
            client[1].close()

    def connect(*client: Any) -> None:
        connections.add(asyncio.create_task(forward(client)))

    async with await asyncio.start_server(connect, "127.0.0.1", 0, ssl=context) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        with Broker(f"127.0.0.1:{port}", properties) as broker:
            await asyncio.to_thread(broker.create, orders=1)
            yield broker
    for connection in connections:
        connection.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


async def pass_bytes(client: Streams, broker: Streams) -> None:
    await asyncio.gather(pump(client[0], broker[1]), pump(broker[0], client[1]))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
    except OSError:
        pass  # One side has gone.
    finally:
        writer.close()


async def ask_for_password(client: Streams, broker: Streams) -> None:
    """Responds to SASL's calls, and passes the others once the user `me` has shown its password."""
    responses = asyncio.create_task(pump(broker[0], client[1]))
    is_admitted = False
    try:
        while True:
            call = await client[0].readexactly(*struct.unpack(">i", await client[0].readexactly(4)))
            kind, version, correlation = struct.unpack_from(">hhi", call)
            response = struct.pack(">i", correlation)
            if kind == _SASL_HANDSHAKE:
                response += struct.pack(">hih", 0, 1, len(b"PLAIN")) + b"PLAIN"
            elif kind == _SASL_AUTHENTICATE:
                is_admitted = call.endswith(b"\0me\0s3cret")
                response += struct.pack(">h", 0 if is_admitted else _AUTHENTICATION_FAILED) + _NO_TEXT + _NO_BYTES
                response += bytes(8) * (version > 0)
            elif is_admitted or kind == _API_VERSIONS:
                broker[1].write(struct.pack(">i", len(call)) + call)
                continue
            else:
                break
            client[1].write(struct.pack(">i", len(response)) + response)
    except (asyncio.IncompleteReadError, OSError):
        pass  # One side has gone.
    finally:
        broker[1].close()
        await responses


@pytest.fixture
async def registry() -> ChannelRegistry:
    made = registry_with("orders", "copies", capacity=100, transaction_capacity=10)
    await append(made.get("orders"), b"1", b"2")
    return made


def sink_of(table: dict[str, Any]) -> Sink:
    config = KafkaSinkConfig.model_validate({**table, "channel": "orders", "topic": "orders"})
    return config.make(SinkContext("out", Path()))


async def send_and_read(registry: ChannelRegistry, table: dict[str, Any], folder: Path) -> None:
    """A sink sends the events of the channel, and a source reads them into another one."""
    reader = reader_of(registry)
    sending = asyncio.create_task(sink_of(table).run(reader))
    await until(lambda: not queued(registry.get("orders")) or sending.done())
    reader.close()
    await sending
    source = {**table, "channels": ["copies"], "partitions": {"orders": [0]}, "group": "copies"}
    async with running_source(KafkaSourceConfig.model_validate(source), registry, folder):
        await until(lambda: registry.get("copies").event_count == 2)


async def test_run_over_tls_sends_and_reads_with_a_certificate(registry: ChannelRegistry, tmp_path: Path) -> None:
    """Without a certificate that the broker accepts, nothing goes either way."""
    authority, ca = Authority(), tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
    context.load_cert_chain(*authority.issue(tmp_path, "broker"))
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = map(str, authority.issue(tmp_path, "agent"))
    files = {"ssl.ca.location": str(ca), "ssl.certificate.location": certificate, "ssl.key.location": key}
    async with broker_behind(pass_bytes, {"security.protocol": "SSL", **files}, context) as broker:
        kafka = {"type": "kafka", "bootstrap_servers": [broker.server]}
        with pytest.raises(ComponentError, match="no response within 1 seconds"):
            await sink_of({**kafka, "tls": {"ca": str(ca)}, "timeout_seconds": 1.0}).run(reader_of(registry))
        tls = {"ca": str(ca), "certificate": certificate, "private_key": key}
        await send_and_read(registry, {**kafka, "tls": tls}, tmp_path)


async def test_run_with_a_password_sends_and_reads(registry: ChannelRegistry, tmp_path: Path) -> None:
    """With a wrong one, the sink says that the broker does not accept it."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path, password in ((right, "s3cret"), (wrong, "guess")):
        path.touch(0o600)
        path.write_text(password)
    sasl = {"mechanism": "PLAIN", "username": "me"}
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login = {"sasl.username": "me", "sasl.password": "s3cret"}
    async with broker_behind(ask_for_password, {**properties, **login}) as broker:
        kafka = {"type": "kafka", "bootstrap_servers": [broker.server]}
        refused = {**kafka, "sasl": {**sasl, "password_file": str(wrong)}, "timeout_seconds": 2.0}
        reason = ""
        # A busy machine may not come to the password in time.
        while "AUTHENTICATION" not in reason:
            with pytest.raises(ComponentError) as raised:
                await sink_of(refused).run(reader_of(registry))
            reason = str(raised.value)
        await send_and_read(registry, {**kafka, "sasl": {**sasl, "password_file": str(right)}}, tmp_path)
