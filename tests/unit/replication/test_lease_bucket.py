"""Leases in a real key-value bucket."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from millrace_server.replication.engine import Engine
from millrace_server.replication.lease import Holder
from millrace_server.replication.lease_bucket import JetStreamLeases
from tests.file_channels import until


@pytest.fixture
async def servers(nats_url: str) -> AsyncIterator[list[JetStreamLeases]]:
    """The leases of two servers, each with a connection of its own."""
    engines = [await Engine.connected([nats_url]) for _ in range(2)]
    opened = [
        await JetStreamLeases.opened(engine, server=str(number), address=f"mill-{number}:7070", replicas=1)
        for number, engine in enumerate(engines)
    ]
    yield opened
    for leases, engine in zip(opened, engines, strict=True):
        leases.close()
        await asyncio.to_thread(engine.close)


async def test_lease_is_handed_over_by_the_watch_of_the_bucket(servers: list[JetStreamLeases]) -> None:
    """The other server learns of the owner, and of its end, without asking."""
    one, other = (leases.of("orders.eu") for leases in servers)
    assert await one.acquire() == 0
    await one.confirm(7)
    waiting = asyncio.create_task(other.acquire())
    await until(lambda: other.holder == Holder("0", "mill-0:7070", 7))
    await one.release()
    assert await waiting == 7
    assert other.is_current
    await other.release()
    assert await one.acquire() == 7
    await one.release()


async def test_lease_that_an_operator_deleted_is_free(servers: list[JetStreamLeases]) -> None:
    """Its owner loses it to the next that asks, and notices."""
    one, other = (leases.of("deleted") for leases in servers)
    lost = asyncio.Event()
    one.on_lost(lost.set)
    await one.acquire()
    leases = servers[1]
    await asyncio.wrap_future(leases._engine.call(leases._bucket.delete("deleted")))
    await other.acquire()
    await lost.wait()
    assert (one.is_current, other.is_current) == (False, True)
    await other.release()
