"""A console over loopback, and a browser that speaks to its API."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from millrace.columns import columns_from_events
from millrace_server.access.control import AccessControl
from millrace_server.access.settings import AuthSettings, IdentitySettings, RoleSettings
from millrace_server.access.tokens import make_token
from millrace_server.agent.components import Components
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import MemoryChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.configuration.settings import Settings
from millrace_server.console.calls import Calls
from millrace_server.console.readings import ShownServer
from millrace_server.console.routes import Console
from millrace_server.grpc_services.admin_service import AdminService
from millrace_server.grpc_services.guard import Guard
from millrace_server.grpc_services.rpc import InflightBytes, Rpcs
from millrace_server.hosting.channel_changes import ChannelChanges
from millrace_server.hosting.data_dir import Catalog
from millrace_server.http_service.service import HttpService
from millrace_server.network import Address, open_socket
from tests.http_response import Response

_BYTES_MAX = 1 << 20

ROLES = {
    "viewer": ["describe:*"],
    "reader": ["describe:*", "peek:web.*"],
    "operator": ["describe:*", "peek:*", "operate:*", "admin:*", "take:*", "append:*"],
    "shipper": ["append:*", "describe:web.*"],
    "replayer": ["describe:*", "take:web.*", "append:web.*"],
}


class ConsoleSite:
    """A console with an identity for each role, and their tokens."""

    def __init__(self, directory: Path) -> None:
        self.tokens_file = directory / "tokens"
        self.tokens = {name: make_token(self.tokens_file, name) for name in ROLES}
        roles = {name: RoleSettings(allow=allow) for name, allow in ROLES.items()}
        identities = {name: IdentitySettings(roles=[name]) for name in ROLES}
        self.access = AccessControl(AuthSettings(tokens_file=self.tokens_file), roles, identities)
        self.console: ServedConsole


class ServedConsole:
    """A console, the server that it shows, and a browser."""

    def __init__(self, shown: ShownServer, service: HttpService, address: tuple[str, int]) -> None:
        self.service = service
        self.registry = shown.registry
        self.components: Any = shown.components
        self.history = shown.history
        self.address = address
        self.cookie_name = f"millrace_session_{address[1]}"
        self.cookie = ""
        """What the browser sends as `Cookie`."""

    async def get(self, path: str, **headers: str) -> Response:
        return await self.ask("GET", path, b"", headers)

    async def read(self, path: str) -> Any:
        """Returns the JSON of a page that must be there."""
        response = await self.get(path)
        assert response.status == 200, response
        return response.json()

    async def post(self, path: str, document: object, **headers: str) -> Response:
        """Sends JSON as the console's page does."""
        marked = {"X-Millrace-Console": "1", "Content-Type": "application/json"} | headers
        return await self.ask("POST", path, json.dumps(document).encode(), marked)

    async def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        sent = {"Host": f"localhost:{self.address[1]}", "Connection": "close", "Content-Length": str(len(body))}
        if self.cookie:
            sent["Cookie"] = self.cookie
        lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {value}" for key, value in (sent | dict(headers)).items())]
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        response = await reader.read()
        writer.close()
        return Response.parsed(response)

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[AsyncIterator[Any]]:
        """Follows a page that goes on; yields its messages once it has begun."""
        reader, writer = await asyncio.open_connection(*self.address)
        cookie = f"Cookie: {self.cookie}\r\n" if self.cookie else ""
        writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost:{self.address[1]}\r\n{cookie}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head, head

        async def messages() -> AsyncIterator[Any]:
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

        try:
            yield messages()
        finally:
            writer.close()

    async def log_in(self, token: str) -> Response:
        """Logs in, and keeps the cookie."""
        response = await self.post("/session", {"token": token})
        if response.status == 200:
            self.cookie = response.headers["set-cookie"].partition(";")[0]
        return response

    def create(self, name: str, **settings: Any) -> Channel:
        config = MemoryChannelConfig(type="memory", **{"capacity": 100, "byte_capacity": _BYTES_MAX} | settings)
        return self.registry.create(name, config).channel


async def append(channel: Channel, *events: tuple[Mapping[str, str], bytes]) -> None:
    """Appends events in one commit."""
    await channel.appends.append([StoredColumns.of(one) for one in columns_from_events(events)], None)


@asynccontextmanager
async def served_console(
    directory: Path, settings: Settings | None = None, access: AccessControl | None = None, *, has_tls: bool = False
) -> AsyncIterator[ServedConsole]:
    """Serves a console of a server without channels."""
    registry = ChannelRegistry(message_bytes_max=_BYTES_MAX, open_transactions_max=100, channels_dir=directory)
    components = Components()
    guard = None if access is None else Guard(access, registry, has_certificates=False)
    rpcs = Rpcs(InflightBytes(_BYTES_MAX, _BYTES_MAX), registry.count_refusal, guard)
    changes = ChannelChanges(registry, Catalog(directory / "catalog.json"))
    handlers = AdminService(registry, changes, components).handlers(rpcs)
    configured = settings or Settings()
    shown = ShownServer(registry, components, lambda: configured, has_tls)
    console = Console(shown, Calls(handlers, guard), access)
    service = HttpService(registry, components, access=access, console=console)
    bound = await open_socket(Address("127.0.0.1", 0), "test")
    address = bound.getsockname()
    await service.start(bound)
    try:
        yield ServedConsole(shown, service, address)
    finally:
        await service.stop()
        await registry.close()
