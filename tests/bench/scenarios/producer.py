"""The producer: Python objects in, events on a disk out."""

import asyncio
from collections.abc import Callable, Sequence

from millrace_client import Event, Producer
from tests.bench.measuring import Contender, Scenario, of_echo
from tests.bench.payloads import BATCH_EVENTS, FILE_CHANNEL, append_columns, rows
from tests.bench.scenarios.append_stream import IN_FLIGHT
from tests.bench.world import World

_OPERATIONS = 300


def file_producer_scenario(world: World) -> Scenario:
    """One thread sends events, many at once or one by one; the echo gets the same bytes in batches of 1,000."""
    world = world.on(FILE_CHANNEL)
    return Scenario(
        name="file_producer",
        title="File: Producer, Python objects in",
        events_per_operation=BATCH_EVENTS,
        operations=_OPERATIONS,
        # The target is for sending many at once, directly into columns, which comes first here.
        ours=producer_contenders(world, [Event(row.body, dict(row.headers)) for row in rows(BATCH_EVENTS)]),
        echo=world.bare_stream("echo", append_columns(BATCH_EVENTS, world.channel), IN_FLIGHT),
        target=of_echo(0.4),
    )


def producer_contenders(world: World, made: Sequence[Event]) -> list[Contender]:
    """Ways to send 1,000 events in each operation: many at once, one by one, and creating each as it is sent."""

    def send_made(producer: Producer, operations: int) -> None:
        send = producer.send
        for _ in range(operations):
            for event in made:
                send(event)

    def send_many_made(producer: Producer, operations: int) -> None:
        for _ in range(operations):
            producer.send_many(made)

    def send_building(producer: Producer, operations: int) -> None:
        send, body, host = producer.send, made[0].body, made[0].headers["host"]
        for number in range(operations * BATCH_EVENTS):
            send(Event(body, {"host": host, "timestamp": str(1_700_000_000_000 + number)}))

    return [
        _contender("Producer, send_many", world, send_many_made),
        _contender("Producer", world, send_made),
        _contender("Producer, and making the events", world, send_building),
    ]


def _contender(name: str, world: World, send: Callable[[Producer, int], None]) -> Contender:
    producers: list[Producer] = []

    async def prepare(_operations: int) -> None:
        producer = Producer(world.server.grpc, world.channel)
        producers.append(producer)
        producer.send(b"connects")
        await asyncio.to_thread(producer.flush)
        await world.empty(1)

    def send_all(operations: int) -> None:
        send(producers[-1], operations)
        producers[-1].flush()

    async def run(operations: int) -> None:
        await asyncio.to_thread(send_all, operations)

    async def tidy(operations: int) -> None:
        await asyncio.to_thread(producers.pop().close)
        await world.empty(operations * BATCH_EVENTS)

    return Contender(name=name, server_pid=world.server.process.pid, run=run, prepare=prepare, tidy=tidy)
