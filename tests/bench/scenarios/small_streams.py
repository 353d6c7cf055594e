"""AppendStream with one event in each message: the cost of a message, durable."""

import asyncio
from dataclasses import replace

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from tests.bench.bare_server import METHOD
from tests.bench.calls import Method, stream_many
from tests.bench.measuring import Contender, Scenario, of_echo
from tests.bench.payloads import FILE_CHANNEL
from tests.bench.world import World

STREAMS = 8
IN_FLIGHT = 32
_BODY = bytes(100)


def file_small_streams_scenario(world: World) -> Scenario:
    """Eight streams append one event per message: their commits share syncs."""
    world = world.on(FILE_CHANNEL)
    columns = event_pb2.EventColumns(count=1, body_sizes=[len(_BODY)], bodies=_BODY)
    request = pb.AppendStreamRequest(channel=world.channel, columns=columns).SerializeToString()

    def contender(name: str, server_pid: int, method: Method) -> Contender:
        async def run(operations: int) -> None:
            await asyncio.gather(*[stream_many(method, operations // STREAMS, IN_FLIGHT) for _ in range(STREAMS)])

        return Contender(name=name, server_pid=server_pid, run=run)

    ours = contender("AppendStream", world.server.process.pid, world.method("AppendStream", request))
    bare = {
        name: contender(
            f"bare {name.replace('_', ' ')}", server.pid, Method(connection, METHOD.format(f"{name}_stream"), request)
        )
        for name, server, connection in (
            ("echo", world.bare_server, world.bare),
            ("sink", world.bare_server, world.bare),
            ("log", world.log_server, world.logs),
            ("parsing_log", world.log_server, world.logs),
        )
    }
    return Scenario(
        name="file_small_streams",
        title=f"File: AppendStream, batches of 1, {STREAMS} streams with {IN_FLIGHT} in flight",
        events_per_operation=1,
        operations=16_000,
        ours=[replace(ours, tidy=world.empty)],
        echo=bare["echo"],
        one_way=bare["sink"],
        logs=[bare["log"], bare["parsing_log"]],
        target=of_echo(0.8),
    )
