"""The life of a server: from the configuration to the last answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from millrace_server.agent.agent import Agent
from millrace_server.configuration.settings import ServerSettings, Settings
from millrace_server.errors import StartError
from millrace_server.grpc_services.server import GrpcServer
from millrace_server.hosting.catalog import Catalog
from millrace_server.hosting.data_dir import CATALOG_FILE, locked_data_dir
from millrace_server.hosting.lifecycle import flows_of, open_channels, stop_flows
from millrace_server.hosting.stop_requests import StopRequests
from millrace_server.http_service.service import HttpService
from millrace_server.network.addresses import Address
from millrace_server.network.sockets import check_is_free, open_socket
from millrace_server.process.address_file import published_addresses
from millrace_server.process.allocator import tended_allocator
from millrace_server.process.garbage_collector import tended_collector
from millrace_server.process.reload_requests import ReloadRequests
from millrace_server.process.reloading import Reloader
from millrace_server.version import VERSION

_LAST_ANSWERS_SECONDS = 1.0
"""How long calls that are under way, when no transaction is open any more, may take to answer."""

_OPENING_SECONDS = 1.0
"""How long channels may read their logs before callers are let in; those that take longer go on meanwhile."""

_log = structlog.stdlib.get_logger(__name__)


async def serve(
    settings: Settings, address_file: Path | None = None, load_again: Callable[[], Settings] | None = None
) -> None:
    """Serves until SIGTERM or SIGINT, then stops gracefully, or at once where told twice. SIGHUP reloads.

    Args:
        settings: What to serve, and where.
        address_file: Where to tell the addresses, once both can be reached.
        load_again: Reads the configuration anew; None where there is no file to read.

    Raises:
        StartError: The server could not start; nothing of it is left.
    """
    stops, reloads = StopRequests(), ReloadRequests()
    with stops.from_signals(), reloads.from_signals(), locked_data_dir(settings.server.data_dir):
        catalog = Catalog(settings.server.data_dir / CATALOG_FILE)
        registry = open_channels(settings, catalog)
        # Callers who find a channel not open yet come again, and none of them need do so where it takes a moment only.
        await registry.wait_open(_OPENING_SECONDS)
        agent = Agent(registry, settings.server.data_dir)
        reloader = Reloader(settings, load_again, registry, catalog, agent)
        grpc_server = GrpcServer(registry, settings.server, catalog, agent.components)
        http_service = HttpService(registry, agent.components)
        listening = _listening(settings.server, grpc_server, http_service, stops)
        try:
            async with tended_allocator(), listening as addresses:
                agent.start(flows_of(settings))
                with tended_collector(), published_addresses(address_file, addresses):
                    _log.info("serving", **addresses, channels=len(registry.hosted()), version=VERSION)
                    await _reload_until_stopped(reloader, reloads, stops)
                http_service.drain()
                await grpc_server.drain()
                await stop_flows(agent, registry, stops, reloader.shutdown_grace_seconds)
        finally:
            await registry.close(0.0 if stops.is_urgent else reloader.shutdown_grace_seconds)
    _log.info("stopped")


async def _reload_until_stopped(reloader: Reloader, reloads: ReloadRequests, stops: StopRequests) -> None:
    following = asyncio.create_task(reloader.follow(reloads))
    await stops.wait()
    reloads.close()
    following.cancel()
    await asyncio.wait((following,))


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
