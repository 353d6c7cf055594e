"""The life of a server: from the configuration to the last answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from millrace_server.address_file import published_addresses
from millrace_server.addresses import Address
from millrace_server.agent.agent import Agent, Flows
from millrace_server.allocator import tended_allocator
from millrace_server.catalog import Catalog
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.data_dir import CATALOG_FILE, CHANNELS_DIRECTORY, locked_data_dir
from millrace_server.grpc_services.server import GrpcServer
from millrace_server.http_service import HttpService
from millrace_server.listening import check_is_free, open_socket
from millrace_server.settings import ServerSettings, Settings
from millrace_server.start_error import StartError
from millrace_server.stop_requests import StopRequests
from millrace_server.version import VERSION

_LAST_ANSWERS_SECONDS = 1.0
"""How long calls that are under way, when no transaction is open any more, may take to answer."""

_OPENING_SECONDS = 1.0
"""How long channels may read their logs before callers are let in; those that take longer go on meanwhile."""

_log = structlog.stdlib.get_logger(__name__)


async def serve(settings: Settings, address_file: Path | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then stops gracefully, or at once where told twice.

    Args:
        settings: What to serve, and where.
        address_file: Where to tell the addresses, once both can be reached.

    Raises:
        StartError: The server could not start; nothing of it is left.
    """
    requests = StopRequests()
    with requests.from_signals(), locked_data_dir(settings.server.data_dir):
        catalog = Catalog(settings.server.data_dir / CATALOG_FILE)
        registry = _open_channels(settings, catalog)
        # Callers who find a channel not open yet come again, and none of them need do so where it takes a moment only.
        await registry.wait_open(_OPENING_SECONDS)
        grpc_server = GrpcServer(registry, settings.server, catalog)
        http_service = HttpService(registry)
        agent = Agent(registry, settings.server.data_dir)
        listening = _listening(settings.server, grpc_server, http_service, requests)
        try:
            async with tended_allocator(), listening as addresses:
                agent.start(Flows(settings.sources, settings.sinks))
                with published_addresses(address_file, addresses):
                    _log.info("serving", **addresses, channels=len(registry.hosted()), version=VERSION)
                    await requests.wait()
                http_service.drain()
                await grpc_server.drain()
                await agent.stop_sources()
                await _drain(registry, requests, settings.server.shutdown_grace_seconds)
                await agent.stop_sinks(settings.server.shutdown_grace_seconds)
        finally:
            await registry.close()
    _log.info("stopped")


def _open_channels(settings: Settings, catalog: Catalog) -> ChannelRegistry:
    """All channels: those of the configuration, and those that CreateChannel made."""
    registry = ChannelRegistry(
        message_bytes_max=settings.server.message_bytes_max,
        open_transactions_max=settings.server.open_transactions_max,
        channels_dir=settings.server.data_dir / CHANNELS_DIRECTORY,
    )
    catalogued = catalog.load()
    registry.finish_deletions({*settings.channels, *catalogued})
    for name, config in settings.channels.items():
        registry.create(name, config)
    for name, config in catalogued.items():
        if name in settings.channels:
            _log.warning("the configuration's channel is used, not the one that CreateChannel made", channel=name)
        else:
            registry.create(name, config)
    return registry


@asynccontextmanager
async def _listening(
    settings: ServerSettings, grpc_server: GrpcServer, http_service: HttpService, requests: StopRequests
) -> AsyncIterator[dict[str, str]]:
    """Both services, reachable; in the end stopped, gRPC first so that the drain can be watched over HTTP."""
    with await open_socket(Address.parse(settings.http_listen), "server.http_listen") as http_socket:
        http_address = Address(*http_socket.getsockname()[:2])
        grpc_address = await _start_grpc(settings, grpc_server)
        try:
            await http_service.start(http_socket)
            yield {"grpc": grpc_address, "http": str(http_address)}
        finally:
            await grpc_server.stop(0.0 if requests.is_urgent else _LAST_ANSWERS_SECONDS)
            await http_service.stop()


async def _start_grpc(settings: ServerSettings, grpc_server: GrpcServer) -> str:
    # gRPC does not say why it cannot listen, so that is found out first.
    await check_is_free(Address.parse(settings.listen), "server.listen")
    try:
        return await grpc_server.start()
    except (OSError, RuntimeError) as error:
        raise StartError(f"cannot listen on {settings.listen} (server.listen): {error}") from error


async def _drain(registry: ChannelRegistry, requests: StopRequests, grace_seconds: float) -> None:
    """Lets open transactions end, for as long as may be, while nothing new begins."""
    registry.drain()
    open_transactions = registry.transactions.limit
    _log.info("stopping", open_transactions=open_transactions.open_count, grace_seconds=grace_seconds)
    idle = asyncio.create_task(registry.wait_idle(grace_seconds))
    urgent = asyncio.create_task(requests.wait_until_urgent())
    await asyncio.wait((idle, urgent), return_when=asyncio.FIRST_COMPLETED)
    idle.cancel()
    urgent.cancel()
    if open_transactions.open_count:
        _log.warning("open transactions are rolled back", open_transactions=open_transactions.open_count)
