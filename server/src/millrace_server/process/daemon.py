"""The life of a server, from the configuration to the exit of the process."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import structlog
import uvloop

from millrace_server.access.audit import LOGGER as AUDIT_LOGGER
from millrace_server.access.control import AccessControl
from millrace_server.agent.agent import Agent
from millrace_server.configuration.settings import ServerSettings, Settings
from millrace_server.console.calls import Calls
from millrace_server.console.readings import ShownServer
from millrace_server.console.routes import Console
from millrace_server.errors import StartError
from millrace_server.files import write_atomically
from millrace_server.grpc_services.server import GrpcServer
from millrace_server.hosting.channel_changes import ChannelChanges
from millrace_server.hosting.data_dir import CATALOG_FILE, Catalog, locked_data_dir
from millrace_server.hosting.lifecycle import flows_of, open_channels, stop_flows
from millrace_server.hosting.signals import ReloadRequests, StopRequests
from millrace_server.hosting.tracing import traced
from millrace_server.http_service.service import HttpService
from millrace_server.logs import also_to_file
from millrace_server.network import Address, check_is_free, open_socket
from millrace_server.network.tls import TlsFiles
from millrace_server.process.memory import tuned_allocator, tuned_garbage_collector
from millrace_server.process.reloading import Reloader

_LAST_RESPONSES_SECONDS = 1.0
"""Grace period of calls in progress once no transaction is open."""

_OPENING_SECONDS = 1.0
"""The server starts to listen after this time even if channels still replay their logs."""

_log = structlog.stdlib.get_logger(__name__)


async def serve(
    settings: Settings, address_file: Path | None = None, load_again: Callable[[], Settings] | None = None
) -> None:
    """Serves until SIGTERM or SIGINT, then stops gracefully, or at once on a second signal. SIGHUP reloads.

    Writes both addresses to `address_file` once the server accepts connections. Raises StartError if the server could
    not start; everything that it opened is closed.
    """
    tls = _tls_files(settings.server)
    access = _access_control(settings)
    stops, reloads = StopRequests(), ReloadRequests()
    auditing = also_to_file(AUDIT_LOGGER, None if settings.auth is None else settings.auth.audit_file)
    tracing = traced(settings.server.tracing)
    with stops.from_signals(), reloads.from_signals(), auditing, tracing, locked_data_dir(settings.server.data_dir):
        catalog = Catalog(settings.server.data_dir / CATALOG_FILE, settings.server.engine)
        registry = open_channels(settings, catalog)
        if (address := _known_address(settings.server)) is not None:
            registry.serve_at(address)
        changes = ChannelChanges(registry, catalog, settings.server.channels_max)
        # Callers retry while a channel replays its log; a short wait spares them that for most channels.
        await registry.wait_open(_OPENING_SECONDS)
        if access is not None:
            await access.prepare()
        agent = Agent(registry, settings.server.data_dir)
        reloader = Reloader(settings, load_again, registry, catalog, agent, access=access)
        grpc_server = GrpcServer(registry, settings.server, changes, agent.components, tls=tls, access=access)
        console = None
        if settings.server.console:
            calls = Calls(grpc_server.admin_handlers, grpc_server.guard)
            shown = ShownServer(registry, agent.components, lambda: reloader.settings, has_tls=tls is not None)
            console = Console(shown, calls, access)
        http_service = HttpService(registry, agent.components, tls, access, settings.server, console=console)
        listening = _listening(settings.server, grpc_server, http_service, stops)
        try:
            async with tuned_allocator(), _followed(tls, access), listening as addresses:
                if address is None:
                    registry.serve_at(addresses["grpc"])
                agent.start(flows_of(settings))
                with tuned_garbage_collector(), published_addresses(address_file, addresses):
                    _log.info(
                        "serving", **addresses, channels=len(registry.handles()), version=version("millrace-server")
                    )
                    await _reload_until_stopped(reloader, reloads, stops)
                http_service.drain()
                await grpc_server.drain()
                await stop_flows(agent, registry, stops, reloader.shutdown_grace_seconds)
        finally:
            await registry.close(0.0 if stops.is_urgent else reloader.shutdown_grace_seconds)
    _log.info("stopped")


def _known_address(settings: ServerSettings) -> str | None:
    """Returns where clients reach the server; None if that is known only once it listens."""
    return settings.advertise or (settings.listen if Address.parse(settings.listen).port else None)


async def _reload_until_stopped(reloader: Reloader, reloads: ReloadRequests, stops: StopRequests) -> None:
    following = asyncio.create_task(reloader.follow(reloads))
    await stops.wait()
    reloads.close()
    following.cancel()
    await asyncio.wait((following,))


def _tls_files(settings: ServerSettings) -> TlsFiles | None:
    try:
        return None if settings.tls is None else TlsFiles(settings.tls)
    except ValueError as error:
        # The files were valid when the configuration was read.
        raise StartError(f"server.tls: {error}") from None


def _access_control(settings: Settings) -> AccessControl | None:
    try:
        return None if settings.auth is None else AccessControl(settings.auth, settings.roles, settings.identities)
    except ValueError as error:
        # It was valid when the configuration was read.
        raise StartError(f"auth: {error}") from None


@asynccontextmanager
async def _followed(*followed: TlsFiles | AccessControl | None) -> AsyncIterator[None]:
    """Reads changed files again while the block runs."""
    following = [asyncio.create_task(files.follow()) for files in followed if files]
    try:
        yield
    finally:
        for task in following:
            task.cancel()


@asynccontextmanager
async def _listening(
    settings: ServerSettings, grpc_server: GrpcServer, http_service: HttpService, requests: StopRequests
) -> AsyncIterator[dict[str, str]]:
    """Runs both services; stops gRPC before HTTP, so that the drain can be watched over HTTP."""
    with await open_socket(Address.parse(settings.http_listen), "server.http_listen") as http_socket:
        http_address = Address(*http_socket.getsockname()[:2])
        grpc_address = await _start_grpc(settings, grpc_server)
        try:
            await http_service.start(http_socket)
            yield {"grpc": grpc_address, "http": str(http_address)}
        finally:
            await grpc_server.stop(0.0 if requests.is_urgent else _LAST_RESPONSES_SECONDS)
            await http_service.stop()


async def _start_grpc(settings: ServerSettings, grpc_server: GrpcServer) -> str:
    # gRPC does not say why it cannot listen, so the port is tried first.
    await check_is_free(Address.parse(settings.listen), "server.listen")
    try:
        return await grpc_server.start()
    except (OSError, RuntimeError) as error:
        raise StartError(f"cannot listen on {settings.listen} (server.listen): {error}") from error


_MODE = 0o644


@contextmanager
def published_addresses(path: Path | None, addresses: dict[str, str]) -> Iterator[None]:
    """Writes the address of each protocol to a file as JSON, atomically; raises StartError if that is not possible.

    The file is removed at the end, unless another server has overwritten it.
    """
    if path is None:
        yield
        return
    content = (json.dumps(addresses) + "\n").encode()
    try:
        write_atomically(path, content, mode=_MODE)
    except OSError as error:
        raise StartError(f"cannot write {path} (--address-file): {error.strerror}") from None
    try:
        yield
    finally:
        # If it is removed already, or the disk has failed, the server stops all the same.
        with suppress(OSError):
            if path.read_bytes() == content:
                path.unlink()


EXIT_SECONDS = 3.0
"""How long threads may run after the last channel has been closed."""


def run(settings: Settings, address_file: Path | None, load_again: Callable[[], Settings] | None) -> None:
    """Runs `serve` on its own event loop; afterwards the process exits, even if a thread never ends."""

    async def serve_and_exit() -> None:
        await serve(settings, address_file, load_again)
        _ensure_exit()

    # Small calls take a third less processor time than on asyncio's own loop.
    uvloop.run(serve_and_exit())


def _ensure_exit() -> None:
    """Ends the process within a few seconds. Everything is on the disk by now.

    Python waits for all threads at its exit, and a thread that writes to a failed file system waits forever.
    """
    timer = threading.Timer(EXIT_SECONDS, _exit_now)
    timer.daemon = True
    timer.start()


def _exit_now() -> None:
    others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    # On a busy machine the exit itself may take as long.
    if stuck := [thread.name for thread in others if not thread.daemon and thread.is_alive()]:
        _log.warning("some threads have not ended; the process exits without them", threads=stuck)
    os._exit(0)
