"""Forwarding: events from one server to the next, and over two hops.

Events arrive at the first server while they are forwarded: the rate covers the whole way, from the first request to
the moment when the last event is stored at the end. Each server syncs each commit, so an event is synced twice on one
hop, three times on two, and its takes once more at each server that it leaves.
"""

import asyncio
from dataclasses import replace
from functools import partial

from tests.bench.calls import Method, connect, stream_many
from tests.bench.measuring import Contender, Scenario, Target
from tests.bench.payloads import BATCH_EVENTS, FILE_CHANNEL, append_columns
from tests.bench.scenarios.append import append_scenario
from tests.bench.world import CHANNELS, World
from tests.millraced import Millraced

IN_FLIGHT = 8
_OPERATIONS = 300
_LOOK_SECONDS = 0.005

_ONE_HOP = "one hop"
_TWO_HOPS = "two hops"

_EDGE_TOML = f"""
[channels.{FILE_CHANNEL}]
type = "file"
[sinks.forward]
type = "millrace"
channel = "{FILE_CHANNEL}"
target_channel = "{FILE_CHANNEL}"
endpoints = ["{{endpoint}}"]
"""


def file_forward_scenario(world: World) -> Scenario:
    """One hop, compared with storing without forwarding."""
    world = world.on(FILE_CHANNEL)
    append = append_scenario(world).ours[0]
    return Scenario(
        name="file_forward",
        title=f"File: forwarding, one hop, {IN_FLIGHT} in flight",
        events_per_operation=BATCH_EVENTS,
        operations=_OPERATIONS,
        ours=[_contender(_ONE_HOP, world, _edge(world, world.server))],
        echo=world.bare_stream("echo", append_columns(BATCH_EVENTS, world.channel), IN_FLIGHT),
        loops=[append],
        target=Target(0.5, "Append", lambda rates: rates[append.name]),
    )


def file_forward_chain_scenario(world: World) -> Scenario:
    """Two hops, compared with one."""
    one = file_forward_scenario(world)
    world = world.on(FILE_CHANNEL)
    first = _edge(world, _edge(world, world.server))
    return replace(
        one,
        name="file_forward_chain",
        title=f"File: forwarding, two hops, {IN_FLIGHT} in flight",
        ours=[_contender(_TWO_HOPS, world, first)],
        loops=one.ours,
        target=Target(0.5, _ONE_HOP, lambda rates: rates[_ONE_HOP]),
    )


def _edge(world: World, target: Millraced) -> Millraced:
    """A server that forwards to another."""
    return world.start_server(_EDGE_TOML.format(endpoint=target.grpc))


def _contender(name: str, world: World, first: Millraced) -> Contender:
    request = append_columns(BATCH_EVENTS, FILE_CHANNEL)

    async def run(operations: int) -> None:
        async with connect(first.grpc) as connection:
            await stream_many(Method(connection, CHANNELS.format("AppendStream"), request), operations, IN_FLIGHT)
        while await world.queued_events() < operations * BATCH_EVENTS:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(_LOOK_SECONDS)

    return Contender(
        name=name,
        server_pid=first.process.pid,
        run=run,
        tidy=partial(_empty, world),
    )


async def _empty(world: World, operations: int) -> None:
    await world.empty(operations * BATCH_EVENTS)
