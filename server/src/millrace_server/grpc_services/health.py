"""Health as gRPC tells it.

The server is the empty name, a channel `channels/NAME`, and the parts of the agent `sources/NAME`, `sinks/NAME` and
`sink_groups/NAME`.
"""

import asyncio
from collections.abc import Coroutine

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio

from millrace_server.agent.components import Component, ComponentKind, Components
from millrace_server.channels.hosted import ChannelState
from millrace_server.channels.registry import ChannelRegistry

_SERVER = ""
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Keeps the health service's word in step with the channels and the agent's components."""

    def __init__(self, registry: ChannelRegistry, components: Components) -> None:
        self._registry = registry
        self._components = components
        self.servicer = aio.HealthServicer()
        self._updates: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Says that the server and its channels serve, and follows their changes."""
        await self.servicer.set(_SERVER, _SERVING)
        for hosted in self._registry.hosted():
            await self._tell_channel(hosted.name)
        for component in self._components:
            await self._tell_component(component)
        self._registry.watch(lambda name: self._tell_soon(self._tell_channel(name)))
        self._components.watch(lambda component: self._tell_soon(self._tell_component(component)))

    async def drain(self) -> None:
        """Says that nothing serves any more."""
        await self.servicer.enter_graceful_shutdown()

    def _tell_soon(self, telling: Coroutine[None, None, None]) -> None:
        update = asyncio.ensure_future(telling)
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)

    # What is told is looked up when it is told, so that of several changes the last one counts.

    async def _tell_channel(self, name: str) -> None:
        await self.servicer.set(f"channels/{name}", self._channel_status(name))

    def _channel_status(self, name: str) -> int:
        if name not in self._registry:
            return _SERVICE_UNKNOWN
        return _SERVING if self._registry.get_hosted(name).state is ChannelState.OPEN else _NOT_SERVING

    async def _tell_component(self, component: Component) -> None:
        service = f"{component.kind.key}s/{component.name}"
        await self.servicer.set(service, self._component_status(component.kind, component.name))

    def _component_status(self, kind: ComponentKind, name: str) -> int:
        component = self._components.find(kind, name)
        if component is None:
            return _SERVICE_UNKNOWN
        return _SERVING if component.state.is_well else _NOT_SERVING
