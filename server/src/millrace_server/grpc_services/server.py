"""The gRPC server and its health service."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from types import ModuleType
from typing import Any

from grpc import aio, method_handlers_generic_handler
from grpc_channelz.v1 import channelz, channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from millrace_server.access.control import AccessControl
from millrace_server.agent.components import Component, Components
from millrace_server.channels.channel_handle import ChannelState
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.configuration.settings import ServerSettings
from millrace_server.grpc_services import admin_service, channel_service
from millrace_server.grpc_services.admin_service import AdminService
from millrace_server.grpc_services.channel_service import ChannelService
from millrace_server.grpc_services.guard import Guard
from millrace_server.grpc_services.guarded_handlers import GuardedHandlers, GuardedHealth, GuardedServer
from millrace_server.grpc_services.rpc import Handler, InflightBytes, Rpcs
from millrace_server.grpc_services.rules import TOOLS
from millrace_server.hosting.channel_changes import ChannelChanges
from millrace_server.network import Address
from millrace_server.network.accepting import ConnectionLimits
from millrace_server.network.connection_watch import ConnectionWatch, UnauthenticatedLimits
from millrace_server.network.tls import TlsFiles

STREAMS_MAX = 4096
"""Concurrent calls of one connection; gRPC clients delay further calls until one ends."""

HANDSHAKE_SECONDS = 10.0
"""How long a new connection may take to begin HTTP/2; then it is closed."""

_PENDING_CALLS_MAX = 65_536
_METADATA_BYTES_MAX = 16 * 1024
_SECOND = 1_000
_HOUR = 3_600 * _SECOND


_SERVER = ""
_STATUSES = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
    None: health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
}
"""The health service's status, by whether something serves; None: it does not exist any more."""

_SERVING_STATES = {ChannelState.OPEN, ChannelState.DISK_FULL}
"""On a full disk, takes are served."""


class Health:
    """Reports the state of the channels and of the agent's components to the health service.

    The empty name stands for the server, `channels/NAME` for a channel, and `sources/NAME`, `sinks/NAME` and
    `sink_groups/NAME` for the components of the agent.
    """

    def __init__(self, registry: ChannelRegistry, components: Components) -> None:
        self._registry = registry
        self._components = components
        self.servicer = aio_health.HealthServicer()
        self._updates: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Reports the server and its channels as serving, and follows later changes of state."""
        await self.servicer.set(_SERVER, _STATUSES[True])
        for hosted in self._registry.handles():
            await self._report_channel(hosted.name)
        for component in self._components:
            await self._report_component(component)
        self._registry.watch(lambda name: self._report_soon(self._report_channel(name)))
        self._components.watch(lambda component: self._report_soon(self._report_component(component)))

    async def drain(self) -> None:
        await self.servicer.enter_graceful_shutdown()

    def _report_soon(self, report: Coroutine[None, None, None]) -> None:
        update = asyncio.ensure_future(report)
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)

    # The state is read when it is reported, so that the latest of several changes wins.

    async def _report_channel(self, name: str) -> None:
        is_serving = self._registry.find(name).state in _SERVING_STATES if name in self._registry else None
        await self.servicer.set(f"channels/{name}", _STATUSES[is_serving])

    async def _report_component(self, component: Component) -> None:
        present = self._components.find(component.kind, component.name)
        is_serving = None if present is None else present.state.is_healthy
        await self.servicer.set(f"{component.kind.key}s/{component.name}", _STATUSES[is_serving])


class GrpcServer:
    """Serves a registry's channels and an agent's components over gRPC.

    Attributes:
        guard: What admits its calls; None without authentication.
        admin_handlers: The handlers of AdminService, which the console calls too.
    """

    def __init__(  # noqa: PLR0913 - the parts of the server that it serves
        self,
        registry: ChannelRegistry,
        settings: ServerSettings,
        changes: ChannelChanges,
        components: Components,
        *,
        tls: TlsFiles | None = None,
        access: AccessControl | None = None,
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._following: list[asyncio.Task[None]] = []
        has_certificates = tls is not None and tls.requires_client_certificate
        limits = UnauthenticatedLimits(settings.inflight_bytes_per_connection_max, settings.inflight_bytes_max)
        # With client certificates, the handshake has authenticated every connection.
        is_limited = access is not None and not has_certificates
        self._watch = ConnectionWatch(_connection_limits(settings).address_max, limits if is_limited else None)
        guard = self._guard = None if access is None else Guard(access, registry, has_certificates=has_certificates)
        if guard is not None and is_limited:
            guard.on_caller = self._watch.admit
        self._health = Health(registry, components)
        self._server = aio.server(options=_options(settings))
        inflight = InflightBytes(limits.total_bytes_max, limits.connection_bytes_max)
        rpcs = Rpcs(inflight, registry.count_refusal, guard, registry.histograms)
        administration = AdminService(registry, changes, components, settings.engine)
        self.guard = guard
        self.admin_handlers = administration.handlers(rpcs)
        self._add_service(channel_service.NAME, ChannelService(registry).handlers(rpcs))
        self._add_service(admin_service.NAME, self.admin_handlers)
        health: Any = self._server if guard is None else GuardedHealth(self._server, guard, components)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, health)
        if guard is not None or Address.parse(settings.listen).is_loopback:
            self._add_tools(self._server if guard is None else GuardedServer(self._server, guard, TOOLS))

    def _add_service(self, name: str, handlers: dict[str, Handler]) -> None:
        handled = method_handlers_generic_handler if self.guard is None else partial(GuardedHandlers, self.guard)
        self._server.add_generic_rpc_handlers((handled(name, handlers),))

    def _add_tools(self, server: Any) -> None:
        names = [channel_service.NAME, admin_service.NAME, _service_name(health_pb2, "Health")]
        if self._settings.channelz:
            channelz_pb2_grpc.add_ChannelzServicer_to_server(channelz.aio.ChannelzServicer(), server)
            names.append(_service_name(channelz_pb2, "Channelz"))
        if self._settings.reflection:
            servicer = reflection.aio.ReflectionServicer([*names, reflection.SERVICE_NAME])
            add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
            add_reflection(servicer, server)

    async def start(self) -> str:
        """Starts to serve; returns the address with the port that was bound."""
        address = Address.parse(self._settings.listen)
        if self._tls is None:
            port = self._server.add_insecure_port(str(address))
        else:
            port = self._server.add_secure_port(str(address), self._tls.grpc_credentials())
        await self._health.start()
        await self._server.start()
        self._following.append(asyncio.create_task(self._watch.follow(port)))
        if self._guard is not None:
            self._following.append(asyncio.create_task(self._guard.txn_owners.follow()))
        return str(Address(address.host, port))

    async def drain(self) -> None:
        """Fails health checks from now on, while all calls are still served."""
        await self._health.drain()

    async def stop(self, grace_seconds: float) -> None:
        """Refuses new calls, lets calls in progress end within the grace period, and closes all connections."""
        await self._server.stop(grace_seconds)
        for task in self._following:
            task.cancel()


def _service_name(module: ModuleType, name: str) -> str:
    return str(module.DESCRIPTOR.services_by_name[name].full_name)


def _connection_limits(settings: ServerSettings) -> ConnectionLimits:
    return ConnectionLimits.of_grpc(settings.connections_max, settings.connections_per_address_max)


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        ("grpc.max_send_message_length", settings.message_bytes_max),
        ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES_MAX),
        # With gRPC's defaults, some calls of a burst of a few thousand fail.
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", _PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_CALLS_MAX),
        # With SO_REUSEPORT a second server on the same port would receive half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", _connection_limits(settings).total_max),
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_SECONDS * _SECOND)),
        ("grpc.http2.min_ping_interval_without_data_ms", 10 * _SECOND),
        # A consumer on a failed machine closes nothing: only an unacknowledged ping returns its events to the queue.
        ("grpc.keepalive_time_ms", 60 * _SECOND),
        ("grpc.keepalive_timeout_ms", 20 * _SECOND),
        ("grpc.max_connection_idle_ms", _HOUR),
        # Frees the slot of a call whose request never arrives. The grace period is longer than any wait.
        ("grpc.max_connection_age_ms", 24 * _HOUR),
        ("grpc.max_connection_age_grace_ms", 2 * _HOUR),
    ]
