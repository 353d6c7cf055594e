import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from millrace_server.agent.components import ComponentKind, Components
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import ChannelLogFailedError
from millrace_server.grpc_services.server import Health
from tests.channel_events import append, limits_of
from tests.file_channels import Gate, file_limits
from tests.simulated_disk import SimulatedDisk

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Served:
    """A registry with a simulated disk, and its health service."""

    def __init__(self, base: Path) -> None:
        self.disk = SimulatedDisk([base / "orders"])
        self.registry = ChannelRegistry(
            message_bytes_max=1 << 20, open_transactions_max=10, channels_dir=base, disk=self.disk
        )
        self.components = Components()
        self.health = Health(self.registry, self.components)

    async def says(self, service: str) -> int:
        # Changes of the status are passed on by a task.
        for _ in range(10):
            await asyncio.sleep(0)
        request = health_pb2.HealthCheckRequest(service=service)
        response = await self.health.servicer.Check(request, None)  # type: ignore[arg-type] # it looks at no context
        return int(response.status)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    served = Served(tmp_path / "channels")
    yield served
    await served.registry.close()


async def test_health_of_a_channel_follows_its_state(served: Served) -> None:
    """A channel that is replayed or whose log has failed is NOT_SERVING; the server serves nevertheless."""
    await served.health.start()
    gate = Gate(served.disk, "list")
    gate.close()
    hosted = served.registry.create("orders", file_limits())
    await gate.reached()
    assert await served.says("channels/orders") == NOT_SERVING
    gate.open()
    await hosted.opened.wait()
    assert await served.says("channels/orders") == SERVING
    served.disk.fail("sync", 1, errno.EIO)
    with pytest.raises(ChannelLogFailedError):
        await append(hosted.channel, b"a")
    assert await served.says("channels/orders") == NOT_SERVING
    assert await served.says("") == SERVING


async def test_health_of_channels_that_existed_before_is_reported(served: Served) -> None:
    """A deleted channel is unknown."""
    served.registry.create("bills", limits_of())
    await served.health.start()
    assert await served.says("channels/bills") == SERVING
    await served.registry.delete("bills")
    assert await served.says("channels/bills") == SERVICE_UNKNOWN


async def test_health_of_a_server_that_drains_serves_no_more(served: Served) -> None:
    """Clients should then use another server."""
    served.registry.create("bills", limits_of())
    await served.health.start()
    await served.health.drain()
    assert await served.says("") == NOT_SERVING
    assert await served.says("channels/bills") == NOT_SERVING


async def test_health_of_a_component_follows_its_state(served: Served) -> None:
    """It is SERVING while it starts and runs, and unknown once it is removed; the server serves nevertheless."""
    early = served.components.add(ComponentKind.SOURCE, "access", "taildir")
    await served.health.start()
    assert await served.says("sources/access") == SERVING
    early.mark_backing_off("no such file")
    assert await served.says("sources/access") == NOT_SERVING
    early.mark_running()
    assert await served.says("sources/access") == SERVING
    early.mark_failed("no such user")
    assert await served.says("sources/access") == NOT_SERVING
    assert await served.says("") == SERVING
    early.mark_stopped()
    served.components.remove(early)
    assert await served.says("sources/access") == SERVICE_UNKNOWN


@pytest.mark.parametrize(
    ("kind", "service"),
    [(ComponentKind.SOURCE, "sources/a"), (ComponentKind.SINK, "sinks/a"), (ComponentKind.SINK_GROUP, "sink_groups/a")],
)
async def test_health_of_components_of_one_name_tells_them_apart(
    served: Served, kind: ComponentKind, service: str
) -> None:
    """A source and a sink may have the same name."""
    await served.health.start()
    for other in ComponentKind:
        served.components.add(other, "a", "test")
    component = served.components.find(kind, "a")
    assert component is not None
    component.mark_backing_off("it refused")
    reported = {one: await served.says(one) for one in ("sources/a", "sinks/a", "sink_groups/a")}
    assert reported.pop(service) == NOT_SERVING
    assert set(reported.values()) == {SERVING}
