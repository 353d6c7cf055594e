"""Health as gRPC tells it: the server under the empty name, each channel under `channels/NAME`."""

import asyncio

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio

from millrace_server.channels.hosted import ChannelState
from millrace_server.channels.registry import ChannelRegistry

_SERVER = ""
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Keeps the health service's word in step with the registry."""

    def __init__(self, registry: ChannelRegistry) -> None:
        self._registry = registry
        self.servicer = aio.HealthServicer()
        self._updates: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Says that the server and its channels serve, and follows their changes."""
        await self.servicer.set(_SERVER, _SERVING)
        for hosted in self._registry.hosted():
            await self._tell(hosted.name)
        self._registry.watch(self._on_change)

    async def drain(self) -> None:
        """Says that nothing serves any more."""
        await self.servicer.enter_graceful_shutdown()

    def _on_change(self, name: str) -> None:
        update = asyncio.ensure_future(self._tell(name))
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)

    async def _tell(self, name: str) -> None:
        await self.servicer.set(f"channels/{name}", self._status(name))

    def _status(self, name: str) -> int:
        if name not in self._registry:
            return _SERVICE_UNKNOWN
        return _SERVING if self._registry.get_hosted(name).state is ChannelState.OPEN else _NOT_SERVING
