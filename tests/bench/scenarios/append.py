"""Append in columns: the way in."""

from dataclasses import replace

from tests.bench.calls import call_many
from tests.bench.measuring import ECHO, Contender, Scenario, Target, of_echo
from tests.bench.payloads import BATCH_EVENTS, append_columns
from tests.bench.world import World

CALLERS = 4


def append_scenario(world: World) -> Scenario:
    """Four callers append batches of 1,000 in columns."""
    request = append_columns(BATCH_EVENTS, world.channel)

    async def run(operations: int) -> None:
        await call_many(world.method("Append", request), operations, CALLERS)

    async def tidy(operations: int) -> None:
        await world.empty(operations * BATCH_EVENTS)

    return Scenario(
        name="append",
        title=f"Append, columns, {CALLERS} callers",
        events_per_operation=BATCH_EVENTS,
        operations=400,
        ours=[Contender(name="Append", server_pid=world.server.process.pid, run=run, tidy=tidy)],
        echo=world.bare_calls("echo", request, CALLERS),
        one_way=world.bare_calls("sink", request, CALLERS),
        target=of_echo(0.6),
    )


def append_tls_scenario(world: World) -> Scenario:
    """The same over TLS and in plain text: TLS takes no larger share of Millrace's rate than of a bare echo's."""
    plain, secured = append_scenario(world), append_scenario(world.over_tls())
    [append], [append_tls] = plain.ours, secured.ours
    append_tls, echo_tls = (replace(one, name=f"{one.name} over TLS") for one in (append_tls, secured.echo))
    return replace(
        plain,
        name="append_tls",
        title=f"Append over TLS and in plain text, columns, {CALLERS} callers",
        ours=[append_tls, append],
        one_way=None,
        loops=[echo_tls],
        target=Target(
            0.9, "Append, as TLS slows echo", lambda rates: rates[append.name] * rates[echo_tls.name] / rates[ECHO]
        ),
    )
