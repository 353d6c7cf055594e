"""Consume in columns: the fast way out."""

from millrace.v1 import channel_service_pb2 as pb
from tests.bench.bare_server import source_request
from tests.bench.calls import consume_many
from tests.bench.measuring import Contender, Scenario, of_echo
from tests.bench.payloads import BATCH_EVENTS, append_columns
from tests.bench.world import World

PREFETCH = 8


def consuming(world: World) -> pb.ConsumeRequest.Start:
    """The request that opens a stream of batches of 1,000."""
    return pb.ConsumeRequest.Start(channel=world.channel, max_events=BATCH_EVENTS, prefetch=PREFETCH, columns=True)


def consume_scenario(world: World) -> Scenario:
    """One stream delivers batches of 1,000, each acknowledged on arrival."""
    response = append_columns(BATCH_EVENTS, world.channel)
    start = consuming(world)

    async def run(operations: int) -> None:
        assert await consume_many(world.millrace, start, operations) > len(response) // 2

    return Scenario(
        name="consume",
        title=f"Consume, columns, {PREFETCH} in flight",
        events_per_operation=BATCH_EVENTS,
        operations=500,
        ours=[
            Contender(
                name="Consume",
                server_pid=world.server.process.pid,
                run=run,
                prepare=lambda operations: world.fill(operations, BATCH_EVENTS),
                tidy=lambda _operations: world.empty(0),
            )
        ],
        echo=world.bare_stream("echo", response, PREFETCH),
        one_way=world.bare_stream("source", source_request(len(response), start.ByteSize()), PREFETCH),
        target=of_echo(0.6),
    )
