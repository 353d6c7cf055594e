"""The gRPC server."""

import resource
from types import ModuleType

from grpc import aio, method_handlers_generic_handler
from grpc_channelz.v1 import channelz, channelz_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from millrace_server.agent.components import Components
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.configuration.settings import ServerSettings
from millrace_server.grpc_services import admin_service, channel_service
from millrace_server.grpc_services.admin_service import AdminService
from millrace_server.grpc_services.channel_service import ChannelService
from millrace_server.grpc_services.health import Health
from millrace_server.grpc_services.inflight import InflightBytes
from millrace_server.grpc_services.rpc import Rpcs
from millrace_server.hosting.catalog import Catalog
from millrace_server.network.addresses import Address

STREAMS_MAX = 4096
"""Calls that one connection may have under way; gRPC's clients hold further ones back until one ends."""

CONNECTIONS_MAX = 10_000
"""Connections at once, or fewer where the process may not open as many files; further ones are closed at once."""

_FILES_FOR_OTHERS = 64
_PENDING_CALLS_MAX = 65_536
_METADATA_BYTES_MAX = 16 * 1024
_SECOND = 1_000
_HOUR = 3_600 * _SECOND


class GrpcServer:
    """Serves a registry's channels over gRPC, and tells of an agent's components."""

    def __init__(
        self, registry: ChannelRegistry, settings: ServerSettings, catalog: Catalog, components: Components
    ) -> None:
        self._settings = settings
        self._health = Health(registry, components)
        self._server = aio.server(options=_options(settings))
        rpcs = Rpcs(InflightBytes(settings.inflight_bytes_max, settings.inflight_bytes_per_connection_max))
        for name, handlers in (
            (channel_service.NAME, ChannelService(registry).handlers(rpcs)),
            (admin_service.NAME, AdminService(registry, catalog, components).handlers(rpcs)),
        ):
            self._server.add_generic_rpc_handlers((method_handlers_generic_handler(name, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, self._server)
        self._add_tools()

    def _add_tools(self) -> None:
        names = [channel_service.NAME, admin_service.NAME, _service_name(health_pb2, "Health")]
        if self._settings.channelz:
            channelz.add_channelz_servicer(self._server)
            names.append(_service_name(channelz_pb2, "Channelz"))
        if self._settings.reflection:
            reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], self._server)

    async def start(self) -> str:
        """Listens and serves; returns the address, with the port that was found."""
        address = Address.parse(self._settings.listen)
        port = self._server.add_insecure_port(str(address))
        await self._health.start()
        await self._server.start()
        return str(Address(address.host, port))

    async def drain(self) -> None:
        """Tells those who probe to go elsewhere, while everything is still answered."""
        await self._health.drain()

    async def stop(self, grace_seconds: float) -> None:
        """Takes no new calls, lets those under way end within the grace, and closes."""
        await self._server.stop(grace_seconds)


def _service_name(module: ModuleType, name: str) -> str:
    return str(module.DESCRIPTOR.services_by_name[name].full_name)


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        ("grpc.max_send_message_length", settings.message_bytes_max),
        ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES_MAX),
        # With gRPC's own defaults a burst of some thousand calls fails in part.
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", _PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_CALLS_MAX),
        # A second server on the same port would take half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", _connections_max()),
        ("grpc.server_handshake_timeout_ms", 10 * _SECOND),
        ("grpc.http2.min_ping_interval_without_data_ms", 10 * _SECOND),
        # A consumer whose machine is gone says nothing: only a ping that nobody answers gives its events back.
        ("grpc.keepalive_time_ms", 60 * _SECOND),
        ("grpc.keepalive_timeout_ms", 20 * _SECOND),
        ("grpc.max_connection_idle_ms", _HOUR),
        # No slot is held for ever, not by a call whose request never comes either. The grace is longer than any wait.
        ("grpc.max_connection_age_ms", 24 * _HOUR),
        ("grpc.max_connection_age_grace_ms", 2 * _HOUR),
    ]


def _connections_max() -> int:
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, max(files_max - _FILES_FOR_OTHERS, files_max // 2))
