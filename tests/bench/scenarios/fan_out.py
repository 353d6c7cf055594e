"""A source `grpc` that stores what is appended to it in two file channels."""

from dataclasses import replace

from tests.bench.calls import call_many, connect, stream_many
from tests.bench.measuring import Contender, Scenario, Target
from tests.bench.payloads import BATCH_EVENTS, append_columns
from tests.bench.scenarios.append import CALLERS
from tests.bench.scenarios.append_stream import IN_FLIGHT
from tests.bench.world import World

_OPERATIONS = 200
_SOURCE = "both"
_CHANNELS = ("left", "right")
_ALONE = "alone"
_CONFIG_TOML = """
[server]
shutdown_grace_seconds = 0.0
[channels.alone]
type = "file"
[channels.left]
type = "file"
[channels.right]
type = "file"
[sources.both]
type = "grpc"
channels = ["left", "right"]
"""


def file_fan_out_scenario(world: World) -> Scenario:
    """Four callers append batches of 1,000 to a source with two file channels, and to a file channel."""
    return _scenario(world, "Append", f"{CALLERS} callers")


def file_fan_out_stream_scenario(world: World) -> Scenario:
    """The same on one stream."""
    return _scenario(world, "AppendStream", f"{IN_FLIGHT} in flight")


def _scenario(world: World, method: str, how: str) -> Scenario:
    server = world.start_server(_CONFIG_TOML)
    own = replace(world, server=server, millrace=connect(server.grpc))
    request = append_columns(BATCH_EVENTS, _ALONE)
    source, alone = f"{method} to a source", f"{method} to a channel"
    is_stream = method == "AppendStream"
    return Scenario(
        name="file_fan_out_stream" if is_stream else "file_fan_out",
        title=f"File: {method} into two channels through a source, {how}",
        events_per_operation=BATCH_EVENTS,
        operations=_OPERATIONS,
        ours=[_contender(own, source, method, _SOURCE, _CHANNELS), _contender(own, alone, method, _ALONE, (_ALONE,))],
        echo=world.bare_stream("echo", request, IN_FLIGHT) if is_stream else world.bare_calls("echo", request, CALLERS),
        # Each batch is written twice: a disk that is fully used by one channel would make it a half.
        loops=world.bare_loops(request),
        target=Target(0.45, alone, lambda rates: rates[alone]),
    )


def _contender(world: World, name: str, method: str, target: str, channels: tuple[str, ...]) -> Contender:
    request = append_columns(BATCH_EVENTS, target)

    async def run(operations: int) -> None:
        called = world.method(method, request)
        if method == "AppendStream":
            await stream_many(called, operations, IN_FLIGHT)
        else:
            await call_many(called, operations, CALLERS)

    async def tidy(operations: int) -> None:
        for channel in channels:
            await world.on(channel).empty(operations * BATCH_EVENTS)

    return Contender(name=name, server_pid=world.server.process.pid, run=run, tidy=tidy)
