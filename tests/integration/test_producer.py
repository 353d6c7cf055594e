"""Producers of several real servers, one of which is stopped and restarted."""

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace_client as millrace
from millrace_client import Event, Producer, ProducerConfig, Routing, aio
from tests.free_ports import free_port
from tests.millraced import Millraced

_CONFIG_TOML = """
server.shutdown_grace_seconds = 0.0
[channels.orders]
type = "file"
"""


class Servers:
    """Two servers at fixed addresses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.running = [self._start(index) for index in range(2)]

    def _start(self, index: int) -> Millraced:
        data_dir = self._folder / f"data-{index}"
        config = self._folder / "millrace.toml"
        config.write_text(_CONFIG_TOML)
        listen = ("--listen", self.addresses[index], "--http-listen", "127.0.0.1:0")
        return Millraced(("--config", str(config), "--data-dir", str(data_dir), *listen), data_dir)

    def start(self, index: int) -> None:
        self.running[index] = self._start(index)

    def stop(self) -> None:
        for server in self.running:
            server.kill()

    def bodies(self, index: int) -> list[bytes]:
        with millrace.connect(self.addresses[index], timeout_seconds=60) as client:
            channel = client.channel("orders")
            with channel.claim("checker", takeover=True):
                return [body for batch in channel.read("checker") for body in batch.bodies()]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    yield servers
    servers.stop()


def test_failover_while_a_server_is_away_loses_nothing(servers: Servers) -> None:
    """The second server takes over for a while; each event is on one of them, once, and keys are in order on both."""
    config = ProducerConfig(
        routing=Routing.FAILOVER, linger_seconds=0.002, backoff_seconds=0.02, backoff_seconds_max=0.2
    )
    with Producer(servers.addresses, "orders", config=config) as producer:
        futures = []
        for index in range(3000):
            if index == 1000:
                servers.running[0].send(signal.SIGTERM)
            if index == 2000:
                servers.running[0].wait()
            if index % 10 == 0:
                time.sleep(0.002)
            futures.append(producer.send(b"%d %d" % (index % 5, index), key=str(index % 5)))
            if index == 2000:
                # The second server stores it, since the first one is away.
                assert futures[-1].result(60).stored
                servers.start(0)
        results = [future.result(60) for future in futures]
        while producer.send(b"-1 -1").result(60).attempts[-1].server != servers.addresses[0]:
            time.sleep(0.05)
    assert all(result.stored for result in results)
    bodies = [[body for body in servers.bodies(index) if body != b"-1 -1"] for index in range(2)]
    assert sorted(bodies[0] + bodies[1]) == sorted(b"%d %d" % (index % 5, index) for index in range(3000))
    assert bodies[1]
    for stored in bodies:
        by_key = defaultdict(list)
        for body in stored:
            key, _, place = body.partition(b" ")
            by_key[key].append(int(place))
        assert all(places == sorted(places) for places in by_key.values())


async def test_async_producer_stores_what_it_is_given(shared_server: Millraced, tmp_path: Path) -> None:
    """Headers and bodies are read back unchanged by a client on the same loop."""
    name = tmp_path.name[:60].lower()
    async with aio.connect(shared_server.grpc) as client:
        await client.admin.create_channel(name, millrace.ChannelConfig(capacity=10_000))
        async with aio.AsyncProducer(shared_server.grpc, name) as producer:
            sent = [Event(b"%d" % index, {"n": str(index)}) for index in range(1000)]
            futures = [await producer.send(event, key="k") for event in sent]
            assert [(await future).sequence for future in futures] == list(range(1, 1001))
        stored: list[Event] = []
        async with client.channel(name).transaction() as txn:
            for batch in await txn.take(max_events=100):
                stored += [Event(event.body, event.headers) for event in batch]
        assert stored == sent[:100]
        await client.admin.delete_channel(name, force=True)


def test_producer_of_a_server_that_comes_late_waits_for_it(servers: Servers) -> None:
    """A program may start before its server."""
    servers.running[0].kill()
    with Producer(servers.addresses[0], "orders") as producer:
        future = producer.send(b"early")
        time.sleep(0.5)
        servers.start(0)
        assert future.result(60).stored
