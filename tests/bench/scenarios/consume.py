"""Consume in columns: the fast way out."""

from typing import Any

from millrace.v1 import channel_service_pb2 as pb
from tests.bench.bare_server import source_request
from tests.bench.measuring import Contender, Scenario
from tests.bench.payloads import BATCH_EVENTS, CHANNEL, append_columns
from tests.bench.world import CHANNELS, World

PREFETCH = 8


def consume_scenario(world: World) -> Scenario:
    """One stream delivers batches of 1,000, each acknowledged as it comes."""
    answer = append_columns(BATCH_EVENTS)
    start = pb.ConsumeRequest.Start(channel=CHANNEL, max_events=BATCH_EVENTS, prefetch=PREFETCH, columns=True)
    opening = pb.ConsumeRequest(start=start).SerializeToString()

    async def run(operations: int) -> None:
        call: Any = world.millrace.stream_stream(CHANNELS.format("Consume"))
        stream = call()
        await stream.write(opening)
        for delivery_id in range(1, operations + 1):
            assert len(await stream.read()) > len(answer) // 2
            await stream.write(
                pb.ConsumeRequest(ack=pb.ConsumeRequest.Ack(delivery_ids=[delivery_id])).SerializeToString()
            )
        await stream.done_writing()
        assert not isinstance(await stream.read(), bytes)

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
        echo=world.bare_stream("echo", answer, PREFETCH),
        one_way=world.bare_stream("source", source_request(len(answer), len(opening)), PREFETCH),
        target=0.6,
    )
