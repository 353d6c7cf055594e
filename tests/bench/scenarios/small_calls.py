"""Calls with one event each: the cost of a call."""

from dataclasses import replace

from tests.bench.calls import call_many
from tests.bench.measuring import Contender, Scenario, of_echo
from tests.bench.payloads import append_columns, append_rows
from tests.bench.world import World

CALLERS = 32


def small_calls_scenario(world: World) -> Scenario:
    """32 callers append one event per call."""
    return _calls(world, CALLERS)


def lone_call_scenario(world: World) -> Scenario:
    """One caller appends one event per call: the duration of a call without concurrency."""
    title = "Append, batches of 1, one caller"
    return replace(_calls(world, 1), name="lone_call", title=title, operations=400, target=None)


def _calls(world: World, callers: int) -> Scenario:
    request = append_columns(1, world.channel)

    def ours(name: str, request: bytes) -> Contender:
        async def run(operations: int) -> None:
            await call_many(world.method("Append", request), operations, callers)

        return Contender(name=name, server_pid=world.server.process.pid, run=run, tidy=world.empty)

    return Scenario(
        name="small_calls",
        title=f"Append, batches of 1, {callers} callers",
        events_per_operation=1,
        operations=2_000,
        ours=[ours("Append, columns", request), ours("Append, rows", append_rows(1, world.channel))],
        echo=world.bare_calls("echo", request, callers),
        one_way=world.bare_calls("sink", request, callers),
        target=of_echo(0.6),
    )
