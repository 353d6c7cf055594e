"""Logs in a cluster of three nodes that are killed and halted, and whose connections are cut, while owners change."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from examples.jetstream_cluster import JetStreamCluster
from tests.crash.replicated_history import LIMITS, Faults, Owners
from tests.stream_logs import engine_at, new_name, owned_log
from tests.unreliable_network import FaultRates, UnreliableNetwork, unreliable_network

_TAKEOVERS = int(os.environ.get("MILLRACE_TAKEOVERS", "300"))
_KILLS = int(os.environ.get("MILLRACE_KILLS", "100"))
_RATES = FaultRates(cut_upwards=0.0005, cut_downwards=0.001, delay=0.02, delay_seconds_max=0.02)


@asynccontextmanager
async def _owners(cluster: JetStreamCluster, chance: random.Random) -> AsyncIterator[tuple[Owners, Faults]]:
    """Owners whose connections are unreliable; at the end the last of them has everything that was acknowledged."""
    name = new_name()
    async with AsyncExitStack() as stack:
        engines = []
        for node in cluster.nodes:
            address = node.url.removeprefix("nats://")
            network: UnreliableNetwork = stack.enter_context(
                unreliable_network(address, chance.randrange(1 << 32), _RATES)
            )
            # A server that prefers its own node of the engine, and goes to another while it is down.
            direct = [other.url for other in cluster.nodes if other is not node]
            engines.append(await stack.enter_async_context(engine_at(f"nats://{network.address}", *direct)))
        owners = Owners(engines, name, chance)
        await owners.take_over()
        yield owners, Faults(cluster, f"MILLRACE_{name.replace('.', '=')}", chance)
        await owners.take_over()
        await owners.end()


async def test_append_after_the_loss_of_the_leader_goes_on_without_an_error(
    jetstream_cluster: JetStreamCluster,
) -> None:
    """Its caller, whose deadline is 30 s, waits for the election, and gets no error."""
    async with engine_at(*jetstream_cluster.urls) as engine, owned_log(engine, new_name(), limits=LIMITS) as log:
        await log.submit(b"before")
        leader = await asyncio.to_thread(jetstream_cluster.leader_of, log.chain.stream.name)
        await asyncio.to_thread(leader.kill)
        try:
            async with asyncio.timeout(30):
                stored = await log.submit(b"behind")
        finally:
            await asyncio.to_thread(jetstream_cluster.start)
        assert await log.read(stored) == [b"behind"]


async def test_takeovers_while_nodes_are_killed_lose_and_repeat_nothing(
    jetstream_cluster: JetStreamCluster, chance: random.Random
) -> None:
    """Each acknowledged commit is in every later owner's log, once and in order, and nothing that was refused."""
    async with _owners(jetstream_cluster, chance) as (owners, faults):
        for node_count in (1, 3):
            killing = asyncio.create_task(faults.kill(node_count))
            while not killing.done():
                await owners.take_over()
                await asyncio.sleep(chance.random())
            await killing
            for _ in range(3):
                await owners.take_over()
        assert faults.kill_count == 4
    # One at first, and for each of the two attacks at least one while it lasts, and three after it.
    assert owners.account.takeovers >= 9
    assert len(owners.account.acknowledged) > 20


@pytest.mark.torture
@pytest.mark.timeout(7_200)
async def test_hundreds_of_takeovers_and_kills_lose_and_repeat_nothing(
    jetstream_cluster: JetStreamCluster, chance: random.Random
) -> None:
    """The same for an hour or two, also with leaders that stand still for longer than an election takes."""
    async with _owners(jetstream_cluster, chance) as (owners, faults):
        while faults.kill_count < _KILLS or owners.account.takeovers < _TAKEOVERS:
            fault = faults.halt() if chance.random() < 0.1 else faults.kill(chance.choice((1, 1, 1, 2, 3)))
            failing = asyncio.create_task(fault)
            while not failing.done():
                await owners.take_over()
                await asyncio.sleep(chance.random() * 2)
            await failing
    assert len(owners.account.acknowledged) > 10 * _KILLS
