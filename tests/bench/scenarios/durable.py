"""The same on a file channel, where each commit is synced before it is acknowledged."""

from dataclasses import replace

from tests.bench.calls import call_many
from tests.bench.measuring import Contender, Scenario, of_both_in_turn, of_slower
from tests.bench.payloads import BATCH_EVENTS, FILE_CHANNEL, append_columns
from tests.bench.scenarios.append import append_scenario
from tests.bench.scenarios.append_stream import append_stream_scenario
from tests.bench.scenarios.consume import consume_scenario
from tests.bench.scenarios.small_calls import small_calls_scenario
from tests.bench.scenarios.take import take_scenario
from tests.bench.world import World

_OPERATIONS = 200


def file_append_scenario(world: World) -> Scenario:
    """Four callers append batches of 1,000."""
    world = world.on(FILE_CHANNEL)
    loops = world.bare_loops(append_columns(BATCH_EVENTS, world.channel))
    return replace(_durable(append_scenario(world)), loops=loops, operations=_OPERATIONS, target=of_slower(0.6))


def file_append_stream_scenario(world: World) -> Scenario:
    """One stream appends batches of 1,000."""
    world = world.on(FILE_CHANNEL)
    loops = world.bare_loops(append_columns(BATCH_EVENTS, world.channel))
    return replace(_durable(append_stream_scenario(world)), loops=loops, operations=_OPERATIONS, target=of_slower(0.6))


def file_append_100_scenario(world: World) -> Scenario:
    """Eight callers append batches of 100."""
    small = _appends(world.on(FILE_CHANNEL), batch_events=100, callers=8)
    return replace(
        small,
        name="file_append_100",
        title="File: Append, batches of 100, 8 callers",
        operations=800,
        target=of_slower(0.6),
    )


def file_small_calls_scenario(world: World) -> Scenario:
    """32 callers append one event per call: their commits share syncs."""
    return _durable(small_calls_scenario(world.on(FILE_CHANNEL)))


def file_lone_call_scenario(world: World) -> Scenario:
    """One caller appends one event per call: the duration of a commit without concurrency."""
    lone = _appends(world.on(FILE_CHANNEL), batch_events=1, callers=1)
    # At most 1.5 times the duration, expressed as a rate.
    target = of_both_in_turn(1 / 1.5)
    return replace(
        lone, name="file_lone_call", title="File: Append, batches of 1, one caller", operations=400, target=target
    )


def file_take_scenario(world: World) -> Scenario:
    """Four callers take batches of 1,000, with a commit for each."""
    scenario = take_scenario(world.on(FILE_CHANNEL))
    return replace(_durable(scenario), ours=scenario.ours[::-1], operations=_OPERATIONS)


def file_consume_scenario(world: World) -> Scenario:
    """One stream delivers batches of 1,000."""
    return replace(_durable(consume_scenario(world.on(FILE_CHANNEL))), operations=_OPERATIONS)


def _durable(scenario: Scenario) -> Scenario:
    return replace(scenario, name=f"file_{scenario.name}", title=f"File: {scenario.title}", one_way=None)


def _appends(world: World, batch_events: int, callers: int) -> Scenario:
    request = append_columns(batch_events, world.channel)

    async def run(operations: int) -> None:
        await call_many(world.method("Append", request), operations, callers)

    async def tidy(operations: int) -> None:
        await world.empty(operations * batch_events)

    return Scenario(
        name="",
        title="",
        events_per_operation=batch_events,
        operations=0,
        ours=[Contender(name="Append", server_pid=world.server.process.pid, run=run, tidy=tidy)],
        echo=world.bare_calls("echo", request, callers),
        logs=world.log_calls(request, callers),
        loops=world.bare_loops(request),
    )
