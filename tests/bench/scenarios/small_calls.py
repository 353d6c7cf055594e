"""Calls with one event each: the cost of a call, and of knowing who makes it."""

import tempfile
from pathlib import Path

from millrace_server.access.tokens import make_token
from tests.bench.calls import Method, call_many, connect
from tests.bench.measuring import Contender, Scenario, Target, of_echo
from tests.bench.payloads import MEMORY_CHANNEL, append_columns, append_rows
from tests.bench.world import CHANNELS, World
from tests.millraced import Millraced

CALLERS = 32

_CHANNEL_TOML = f'[channels.{MEMORY_CHANNEL}]\ntype = "memory"\ncapacity = 10000000\n'
_AUTH_TOML = """
auth.tokens_file = "{tokens_file}"
roles.all.allow = ["append:*"]
identities.one.roles = ["all"]
"""


def small_calls_scenario(world: World) -> Scenario:
    """32 callers append one event per call."""
    request = append_columns(1, world.channel)

    def ours(name: str, request: bytes) -> Contender:
        async def run(operations: int) -> None:
            await call_many(world.method("Append", request), operations, CALLERS)

        return Contender(name=name, server_pid=world.server.process.pid, run=run, tidy=world.empty)

    return Scenario(
        name="small_calls",
        title=f"Append, batches of 1, {CALLERS} callers",
        events_per_operation=1,
        operations=2_000,
        ours=[ours("Append, columns", request), ours("Append, rows", append_rows(1, world.channel))],
        echo=world.bare_calls("echo", request, CALLERS),
        one_way=world.bare_calls("sink", request, CALLERS),
        target=of_echo(0.6),
    )


def lone_token_scenario(world: World) -> Scenario:
    """One caller appends one event per call, with a token that the server checks, and without `[auth]`."""
    request = append_columns(1, MEMORY_CHANNEL)
    tokens_file = Path(tempfile.mkdtemp(dir=world.scratch)) / "tokens"
    metadata = (("authorization", f"Bearer {make_token(tokens_file, 'one')}"),)

    def contender(name: str, server: Millraced, metadata: tuple[tuple[str, str], ...]) -> Contender:
        async def run(operations: int) -> None:
            async with connect(server.grpc) as connection:
                await call_many(Method(connection, CHANNELS.format("Append"), request, metadata), operations, 1)

        return Contender(name=name, server_pid=server.process.pid, run=run)

    without = contender("without one", world.start_server(_CHANNEL_TOML), ())
    guarded = world.start_server(_AUTH_TOML.format(tokens_file=tokens_file) + _CHANNEL_TOML)
    return Scenario(
        name="lone_token",
        title="Append, batches of 1, one caller with a token",
        events_per_operation=1,
        operations=4_000,
        ours=[contender("with a token", guarded, metadata), without],
        echo=world.bare_calls("echo", request, 1),
        target=Target(0.98, without.name, lambda rates: rates[without.name]),
    )
