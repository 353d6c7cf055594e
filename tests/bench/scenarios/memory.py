"""The memory used by events."""

from dataclasses import dataclass

from millrace.columns import columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from tests.bench.calls import stream_many
from tests.bench.payloads import BATCH_EVENTS
from tests.bench.world import World
from tests.process_figures import resident_bytes

BODY_BYTES = 100
EVENTS = 1_000_000
SHARE_MAX = 1.3
"""The maximum growth of the server's memory for each byte of a body."""

_IN_FLIGHT = 8
_WARMING_BATCHES = 50


@dataclass(frozen=True)
class MemoryFigures:
    """The queued events and their cost."""

    body_bytes: int
    resident_bytes: int

    @property
    def share(self) -> float:
        """Bytes of memory for each byte of a body."""
        return self.resident_bytes / self.body_bytes


async def measure_memory(world: World) -> MemoryFigures:
    """Queues 1,000,000 events of 100 bytes in batches of 1,000."""
    [columns] = columns_from_events(({}, bytes(range(BODY_BYTES))) for _ in range(BATCH_EVENTS))
    request = pb.AppendStreamRequest(channel=world.channel, columns=columns).SerializeToString()

    async def fill(batches: int) -> None:
        await stream_many(world.method("AppendStream", request), batches, _IN_FLIGHT)

    pid = world.server.process.pid
    # The cost of the first calls is not part of the events' cost.
    await fill(_WARMING_BATCHES)
    await world.empty(_WARMING_BATCHES * BATCH_EVENTS)
    before = resident_bytes(pid)
    await fill(EVENTS // BATCH_EVENTS)
    figures = MemoryFigures(EVENTS * BODY_BYTES, resident_bytes(pid) - before)
    await world.empty(EVENTS)
    return figures
