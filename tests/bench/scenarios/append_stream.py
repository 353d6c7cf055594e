"""AppendStream in columns: the fast way in."""

from tests.bench.calls import stream_many
from tests.bench.measuring import Contender, Scenario
from tests.bench.payloads import BATCH_EVENTS, append_columns
from tests.bench.world import World

IN_FLIGHT = 8


def append_stream_scenario(world: World) -> Scenario:
    """One stream appends batches of 1,000 in columns, with eight pending at a time."""
    request = append_columns(BATCH_EVENTS, world.channel)

    async def run(operations: int) -> None:
        await stream_many(world.method("AppendStream", request), operations, IN_FLIGHT)

    async def tidy(operations: int) -> None:
        await world.empty(operations * BATCH_EVENTS)

    return Scenario(
        name="append_stream",
        title=f"AppendStream, columns, {IN_FLIGHT} in flight",
        events_per_operation=BATCH_EVENTS,
        operations=500,
        ours=[Contender(name="AppendStream", server_pid=world.server.process.pid, run=run, tidy=tidy)],
        echo=world.bare_stream("echo", request, IN_FLIGHT),
        one_way=world.bare_stream("sink", request, IN_FLIGHT),
    )
