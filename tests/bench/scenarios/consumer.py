"""The consumer: events from a disk to Python objects."""

import asyncio
from collections.abc import Awaitable, Callable

from millrace_client import Consumer
from millrace_client.aio import AsyncConsumer
from millrace_client.consuming.threads import ConsumerDelivery
from tests.bench.measuring import Contender, Scenario
from tests.bench.payloads import BATCH_EVENTS, FILE_CHANNEL, append_columns
from tests.bench.scenarios.consume import PREFETCH
from tests.bench.world import World

_OPERATIONS = 400


def file_consumer_scenario(world: World) -> Scenario:
    """Each delivery is acknowledged on arrival; the echo gets the same bytes in batches of 1,000."""
    world = world.on(FILE_CHANNEL)

    def contender(name: str, consume: Callable[[World, int], Awaitable[None]]) -> Contender:
        return Contender(
            name=name,
            server_pid=world.server.process.pid,
            run=lambda operations: consume(world, operations * BATCH_EVENTS),
            prepare=lambda operations: world.fill(operations, BATCH_EVENTS),
            tidy=lambda _operations: world.empty(0),
        )

    return Scenario(
        name="file_consumer",
        title="File: Consumer, Python objects out",
        events_per_operation=BATCH_EVENTS,
        operations=_OPERATIONS,
        ours=[
            contender("Consumer, bodies", _bodies),
            contender("Consumer, events with headers", _events),
            contender("AsyncConsumer, bodies", _bodies_in_a_task),
        ],
        echo=world.bare_stream("echo", append_columns(BATCH_EVENTS, world.channel), PREFETCH),
    )


async def _bodies(world: World, event_count: int) -> None:
    await asyncio.to_thread(_consume, world, event_count, lambda delivery: len(delivery.bodies()))


async def _events(world: World, event_count: int) -> None:
    await asyncio.to_thread(
        _consume, world, event_count, lambda delivery: sum(1 for event in delivery if event.headers)
    )


def _consume(world: World, event_count: int, look: Callable[[ConsumerDelivery], int]) -> None:
    with Consumer(world.server.grpc, world.channel) as consumer:
        for delivery in consumer:
            event_count -= look(delivery)
            delivery.ack()
            if event_count <= 0:
                return


async def _bodies_in_a_task(world: World, event_count: int) -> None:
    async with AsyncConsumer(world.server.grpc, world.channel) as consumer:
        async for delivery in consumer:
            event_count -= len(delivery.bodies())
            await delivery.ack()
            if event_count <= 0:
                return
