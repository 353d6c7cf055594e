"""Append in rows, for comparison: the cost of converting rows to columns."""

from tests.bench.calls import call_many
from tests.bench.measuring import Contender, Scenario
from tests.bench.payloads import BATCH_EVENTS, append_rows
from tests.bench.world import World

CALLERS = 4


def append_in_rows_scenario(world: World) -> Scenario:
    """Four callers append batches of 1,000 in rows."""
    request = append_rows(BATCH_EVENTS, world.channel)

    async def run(operations: int) -> None:
        await call_many(world.method("Append", request), operations, CALLERS)

    async def tidy(operations: int) -> None:
        await world.empty(operations * BATCH_EVENTS)

    return Scenario(
        name="append_rows",
        title=f"Append, rows, {CALLERS} callers",
        events_per_operation=BATCH_EVENTS,
        operations=120,
        ours=[Contender(name="Append", server_pid=world.server.process.pid, run=run, tidy=tidy)],
        echo=world.bare_calls("echo", request, CALLERS),
        one_way=world.bare_calls("sink", request, CALLERS),
    )
