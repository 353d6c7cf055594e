"""Producers, consumers and sinks at a replicated channel whose owner is killed: they follow, and store or ack once."""

import asyncio
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

import millrace_client as millrace
from millrace_client import ConsumerConfig, Producer, ProducerConfig, aio
from millrace_spark import claim_ranges
from tests.access_site import append_and_consume_with_each_client
from tests.certificates import CHANNEL, Site
from tests.conftest import StartMillraced
from tests.free_ports import free_port
from tests.integration.replicated_servers import SHORT_LEASE_SECONDS, WAIT_SECONDS, ReplicatedServers, channel_toml
from tests.millrace_program import run_millrace
from tests.millraced import Millraced
from tests.stream_logs import new_name
from tests.waiting import wait_until

_EVENTS = 2_000
_CONSUMER_CONFIG = ConsumerConfig(delivery_events_max=20, reconnect_seconds=0.05)


@pytest.fixture
def servers(start_millraced: StartMillraced, nats_url: str) -> ReplicatedServers:
    """Two servers that share a channel."""
    return ReplicatedServers(start_millraced, nats_url, 2, SHORT_LEASE_SECONDS)


def _numbers(first: int = 0, count: int = _EVENTS) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def _queued(servers: ReplicatedServers) -> list[bytes]:
    """All events of the channel, in their order."""
    with millrace.connect(servers.owner().grpc) as client:
        batches = client.channel(servers.channel).peek(max_events=1_000_000)
        return [body for batch in batches for body in batch.bodies()]


def _fill(servers: ReplicatedServers, bodies: list[bytes]) -> None:
    with millrace.connect(servers.owner().grpc) as client:
        for start in range(0, len(bodies), 100):
            client.channel(servers.channel).append(bodies[start : start + 100])


async def test_producers_when_the_owner_is_killed_store_each_event_once(servers: ReplicatedServers) -> None:
    """Both variants, each with the addresses of all servers, of which one owns the channel at a time."""
    owner = servers.owner()
    config = ProducerConfig(batch_events_max=50, backoff_seconds=0.02, backoff_seconds_max=0.2)
    addresses = list(servers.running)
    with Producer(addresses, servers.channel, config=config) as producer:
        async with aio.AsyncProducer(addresses, servers.channel, config=config) as async_producer:
            stored, also_stored = [], []
            for index, (body, other) in enumerate(zip(_numbers(), _numbers(_EVENTS), strict=True)):
                stored.append(producer.send(body))
                also_stored.append(await async_producer.send(other))
                if index == _EVENTS // 2:
                    # So that some are on their way.
                    await also_stored[0]
                    owner.kill()
            async with asyncio.timeout(WAIT_SECONDS):
                assert all([(await future).stored for future in also_stored])
        assert all(future.result(WAIT_SECONDS).stored for future in stored)
    del servers.running[owner.grpc]
    assert sorted(map(int, _queued(servers))) == list(range(2 * _EVENTS))


def test_producer_that_knows_only_the_owner_follows_when_that_stops(
    start_millraced: StartMillraced, nats_url: str
) -> None:
    """The server says which one is the next owner before it ends, though it does not serve any more."""
    servers = ReplicatedServers(start_millraced, nats_url, 2, lease_seconds=60.0)
    owner, [other] = servers.roles()
    with Producer(owner.grpc, servers.channel) as producer:
        assert producer.send(b"0").result(WAIT_SECONDS).stored
        with millrace.connect(owner.grpc) as client:
            client.admin.create_channel("kept", millrace.ChannelConfig(type=millrace.ChannelType.MEMORY))
            # The server does not end before this transaction.
            transaction = client.channel("kept").transaction().begin()
            owner.send(signal.SIGTERM)
            owner.wait_for("stopping")
            assert producer.send(b"1").result(WAIT_SECONDS).stored
            transaction.rollback()
        assert owner.wait() == 0
        assert producer.send(b"2").result(WAIT_SECONDS).stored
    servers.running = {other.grpc: other}
    assert _queued(servers) == [b"0", b"1", b"2"]


async def test_consumers_when_the_owner_is_killed_get_and_remove_all_events(servers: ReplicatedServers) -> None:
    """Both variants go on at the next owner, which delivers again what was not acknowledged at the former one."""
    _fill(servers, _numbers())
    (owner, [other]), addresses = servers.roles(), list(servers.running)
    seen: Counter[bytes] = Counter()
    with millrace.Consumer(addresses, servers.channel, _CONSUMER_CONFIG) as threaded:
        thread = threading.Thread(target=_consume, args=(threaded, seen))
        thread.start()
        async with aio.AsyncConsumer(addresses, servers.channel, _CONSUMER_CONFIG) as consumer:
            task = asyncio.create_task(_consume_async(consumer, seen))
            await asyncio.to_thread(wait_until, lambda: len(seen) > _EVENTS // 4)
            del servers.running[owner.grpc]
            owner.kill()
            await asyncio.to_thread(_fill, servers, _numbers(_EVENTS))
            await asyncio.to_thread(wait_until, lambda: _is_empty(other.grpc, servers.channel))
            await consumer.close()
            await task
        threaded.close()
        await asyncio.to_thread(thread.join, WAIT_SECONDS)
    assert sorted(map(int, seen)) == list(range(2 * _EVENTS))
    takeovers = [entry for server in (owner, other) for entry in server.log if entry["event"] == "channel taken over"]
    assert max(seen.values()) <= len(takeovers), "each owner delivers an event once"


async def _consume_async(consumer: aio.AsyncConsumer, seen: Counter[bytes]) -> None:
    async for delivery in consumer:
        seen.update(delivery.bodies())
        await delivery.ack()


def _consume(consumer: millrace.Consumer, seen: Counter[bytes]) -> None:
    for delivery in consumer:
        seen.update(delivery.bodies())
        delivery.ack()


def _is_empty(address: str, channel: str) -> bool:
    """Whether a channel is open, and has no events, delivered ones included."""
    with millrace.connect(address) as client:
        info = client.admin.get_channel(channel)
    is_open = info.state is millrace.ChannelState.OPEN
    return is_open and not info.gauges.queued_events + info.gauges.taken_events


def test_clients_over_tls_follow_an_owner_to_the_name_that_it_advertises(
    start_millraced: StartMillraced, nats_url: str, tmp_path: Path
) -> None:
    """Its certificate has that name, and the client's certificate goes there too."""
    site, channel = Site(tmp_path / "tls"), new_name()
    toml = site.toml().replace(CHANNEL, channel_toml(channel, nats_url))
    advertised = [f"localhost:{free_port()}" for _ in range(2)]
    servers = [start_millraced(toml, arguments=("--advertise", one, "--listen", one)) for one in advertised]
    wait_until(lambda: any(_owner_known_to(server, site) in advertised for server in servers))
    [standby] = [server for server in servers if _owner_known_to(server, site)]
    append_and_consume_with_each_client(standby.grpc, channel, tls=site.client)


def _owner_known_to(server: Millraced, site: Site) -> str:
    with millrace.connect(server.grpc, tls=site.client) as client:
        return client.admin.list_channels()[0].owner


async def test_programs_whose_first_server_is_dead_find_the_owner_by_the_others(servers: ReplicatedServers) -> None:
    """The machine that all of them name first is lost before they start; each of them names all servers."""
    lost, channel = servers.owner(), servers.channel
    lost.kill()
    del servers.running[lost.grpc]
    several = ",".join([lost.grpc, *servers.running])
    with millrace.connect(several, timeout_seconds=WAIT_SECONDS) as client:
        assert client.channel(channel).append([b"client"]).first_sequence == 1
    async with aio.connect(several) as async_client:
        await async_client.channel(channel).append([b"aio"])
    with Producer(several, channel) as producer:
        assert producer.send(b"producer").result(WAIT_SECONDS).stored
    async with aio.AsyncProducer(several, channel) as async_producer:
        assert (await (await async_producer.send(b"aio producer"))).stored
    put = run_millrace(several, "put", channel, "-", typed=b"command")
    assert put.returncode == 0, put.stderr
    shown = run_millrace(several, "peek", channel)
    with claim_ranges(several.replace(",", "/"), channel) as claimed:
        assert [(each.endpoint, each.event_count) for each in claimed.ranges] == [(lost.grpc, 5)]
    with millrace.Consumer(several, channel, ConsumerConfig(delivery_events_max=3)) as consumer:
        consumed = consumer.receive(WAIT_SECONDS)
        assert consumed is not None
        consumed.ack()
    async with aio.AsyncConsumer(several, channel) as async_consumer:
        rest = await async_consumer.receive(WAIT_SECONDS)
        assert rest is not None
        await rest.ack()
    received = [*consumed.bodies(), *rest.bodies()]
    assert received == [b"client", b"aio", b"producer", b"aio producer", b"command"]
    assert all(body in shown.stdout for body in received)


def test_sink_when_the_owner_is_killed_forwards_each_event_once_and_in_order(
    servers: ReplicatedServers, start_millraced: StartMillraced
) -> None:
    """It names all servers that share the channel, and goes on at the one that takes over."""
    owner = servers.owner()
    endpoints = ", ".join(f'"{address}"' for address in servers.running)
    edge = start_millraced(
        f'[channels.orders]\ntype = "file"\n[sinks.on]\ntype = "millrace"\nchannel = "orders"\n'
        f'endpoints = [{endpoints}]\ntarget_channel = "{servers.channel}"\nfailover_seconds = 0.5\n'
        f"batch_bytes_max = 512\n"
    )
    with millrace.connect(edge.grpc) as client:
        orders = client.channel("orders")
        for start in range(0, _EVENTS, 100):
            orders.append(_numbers(start, 100))
            if start == _EVENTS // 2:
                wait_until(lambda: client.admin.get_channel("orders").gauges.queued_events < _EVENTS // 2)
                owner.kill()
                del servers.running[owner.grpc]
        wait_until(lambda: _is_empty(edge.grpc, "orders"))
    assert _queued(servers) == _numbers()
