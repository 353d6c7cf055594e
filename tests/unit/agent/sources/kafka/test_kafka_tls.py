"""Kafka over TLS: a broker behind a proxy that speaks it and wants certificates."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millrace_server.agent.sinks.kafka.config import KafkaSinkConfig
from millrace_server.agent.sinks.sink import SinkContext
from millrace_server.agent.sources.kafka.config import KafkaSourceConfig
from millrace_server.agent.supervision import ComponentError
from millrace_server.network import Address
from tests.agent_components import registry_with, until
from tests.certificates import Authority
from tests.channel_events import append, queued
from tests.forward_targets import reader_of
from tests.kafka_brokers import Broker
from tests.running_sources import running_source

_READ_BYTES = 1 << 16


@asynccontextmanager
async def broker_over_tls(folder: Path) -> AsyncGenerator[tuple[Broker, dict[str, str]]]:
    """A broker, and the table `tls` of a client that it admits."""
    authority = Authority()
    (folder / "ca.pem").write_bytes(authority.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(*authority.issue(folder, "broker"))
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = authority.issue(folder, "agent")
    tls = {"ca": str(folder / "ca.pem"), "certificate": str(certificate), "private_key": str(key)}
    names = {"ca": "ssl.ca.location", "certificate": "ssl.certificate.location", "private_key": "ssl.key.location"}
    properties = {"security.protocol": "SSL", **{names[name]: path for name, path in tls.items()}}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = Address.parse(broker.address)
        ahead, behind = await asyncio.open_connection(address.host, address.port)
        await asyncio.gather(pump(reader, behind), pump(ahead, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        with Broker(f"127.0.0.1:{port}", properties) as broker:
            yield broker, tls


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
    except OSError:
        pass  # One side has gone.
    finally:
        writer.close()


async def test_run_over_tls_sends_and_reads_with_a_certificate(tmp_path: Path) -> None:
    """What a sink sends over TLS, a source reads over TLS; without a certificate nothing goes either way."""
    registry = registry_with("orders", "copies", capacity=100, transaction_capacity=10)
    await append(registry.get("orders"), b"1", b"2")
    async with broker_over_tls(tmp_path) as (broker, tls):
        await asyncio.to_thread(broker.create, orders=1)
        kafka = {"type": "kafka", "bootstrap_servers": [broker.server], "tls": tls}
        sink = {**kafka, "channel": "orders", "topic": "orders"}
        refused = {**sink, "tls": {"ca": tls["ca"]}, "timeout_seconds": 2.0}
        made = KafkaSinkConfig.model_validate(refused).make(SinkContext("out", tmp_path))
        with pytest.raises(ComponentError, match="no answer within 2 seconds"):
            await made.run(reader_of(registry))
        made, reader = KafkaSinkConfig.model_validate(sink).make(SinkContext("out", tmp_path)), reader_of(registry)
        sending = asyncio.create_task(made.run(reader))
        await until(lambda: not queued(registry.get("orders")) or sending.done())
        reader.close()
        await sending
        source = {**kafka, "channels": ["copies"], "partitions": {"orders": [0]}, "group": "copies"}
        async with running_source(KafkaSourceConfig.model_validate(source), registry, tmp_path):
            await until(lambda: registry.get("copies").event_count == 2)
