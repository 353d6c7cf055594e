"""Sources that listen for connections: their common settings, and how they listen."""

import asyncio
import socket
import ssl
from abc import ABC
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import structlog
from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.sources.source import SourceConfig
from millrace_server.agent.supervision import ComponentError
from millrace_server.errors import StartError
from millrace_server.network import Address, open_socket
from millrace_server.network.accepting import Acceptor, ConnectionSlot, ConnectionSlots, detect_dead_peers
from millrace_server.network.tls import SourceTlsSettings, TlsFiles

_TOO_MANY = "there were more than connections_max or connections_per_address_max allow"

_log = structlog.stdlib.get_logger(__name__)


class ListeningSourceConfig(SourceConfig, ABC):
    """Settings of sources that listen for connections or datagrams."""

    allow_plaintext: bool = False
    """Whether to listen, without encryption and authentication, on addresses that other machines can reach."""

    tls: SourceTlsSettings | None = None
    """A table like `[server.tls]`, to accept connections over TLS; without it, they are in plain text."""

    connections_per_address_max: int | None = Field(None, ge=1, le=100_000)
    """The maximum number of connections from one client address; by default `connections_max`."""


def check_plaintext_allowed(
    shown: str, address: Address, settings: Mapping[str, Any], *, may_be_tls: bool = True
) -> None:
    """Raises ValueError if other machines can reach an address in plain text and `allow_plaintext` is false.

    `settings` are the valid settings of a `ListeningSourceConfig`; invalid ones are reported elsewhere.
    """
    is_plaintext = not may_be_tls or settings.get("tls", "invalid") is None
    if not address.is_loopback and is_plaintext and settings.get("allow_plaintext") is False:
        advice = "add a table tls, use" if may_be_tls else "use"
        raise ValueError(
            f"is {shown_value(shown)}, which other machines can reach, and nothing is encrypted; {advice} a loopback "
            "address, or set allow_plaintext = true"
        )


class AddressSourceConfig(ListeningSourceConfig, ABC):
    """Settings of sources that listen on one address."""

    listen: str
    """The address, as `host:port`; port 0 selects any free port."""

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, text: str, info: ValidationInfo) -> str:
        address = Address.of_setting(text)
        check_plaintext_allowed(text, address, info.data)
        return text


def check_holds_two(bytes_max: int, setting: str, settings: Mapping[str, Any]) -> int:
    """Returns a limit of memory. Raises ValueError if it is less than twice the size in another setting."""
    least = 2 * settings.get(setting, 0)
    if bytes_max < least:
        raise ValueError(f"is {bytes_max}; it must be at least twice {setting}, {least}")
    return bytes_max


@asynccontextmanager
async def source_tls(config: ListeningSourceConfig, source: str) -> AsyncIterator[ssl.SSLContext | None]:
    """Yields a source's TLS context, whose files are reread when they change; None for plain text.

    Raises ComponentError if the files are no longer valid.
    """
    if config.tls is None:
        yield None
        return
    setting = f"sources.{source}.tls"
    try:
        files = TlsFiles(config.tls, setting)
    except ValueError as error:
        raise ComponentError(f"{setting}: {error}") from None
    following = asyncio.create_task(files.follow())
    try:
        yield files.http_context()
    finally:
        following.cancel()


async def open_listen_socket(
    address: Address, source: str, kind: socket.SocketKind = socket.SOCK_STREAM
) -> socket.socket:
    """Returns a bound socket for a source. Raises ComponentError if the address cannot be bound at the moment."""
    try:
        return await open_socket(address, f"sources.{source}.listen", kind)
    except StartError as error:
        raise ComponentError(str(error)) from None


def bound_address(bound: socket.socket) -> Address:
    """Returns the address that a socket is bound to."""
    return Address(*bound.getsockname()[:2])


class ListenAddress:
    """The address on which a source listens.

    Attributes:
        address: The address; if the system chose the port, the port is kept when the source runs again.
    """

    def __init__(self, source: str, config: AddressSourceConfig) -> None:
        self._source = source
        self._config = config
        self.address = Address.parse(config.listen)

    async def open(self) -> socket.socket:
        """Returns a bound socket. Raises ComponentError if the address cannot be bound at the moment."""
        bound = await open_listen_socket(self.address, self._source)
        self.address = bound_address(bound)
        return bound

    @asynccontextmanager
    async def accepting(
        self,
        slots: ConnectionSlots,
        make_protocol: Callable[[ConnectionSlot], asyncio.Protocol],
        on_closed: Callable[[str, object], None],
        admits: Callable[[str], Awaitable[bool]] | None = None,
    ) -> AsyncIterator[None]:
        """Accepts connections, over TLS if configured, until the block ends; established connections continue.

        Args:
            slots: The slots of the connections.
            make_protocol: Creates the protocol that serves the connection of a slot, and releases the slot at its end.
            on_closed: Called with the client and the reason if a connection is closed before it is served.
            admits: Whether a client may connect, by its address.
        """
        async with source_tls(self._config, self._source) as tls:
            with await self.open() as bound:
                detect_dead_peers(bound)
                too_many = partial(on_closed, "", _TOO_MANY)
                acceptor = Acceptor(bound, slots, make_protocol, tls, too_many, admits=admits, on_failed=on_closed)
                _log.info("listening", source=self._source, address=f"{'tls' if tls else 'tcp'}://{self.address}")
                try:
                    yield
                finally:
                    acceptor.close()


def stream_protocol(
    slot: ConnectionSlot, read_bytes: int, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
) -> asyncio.Protocol:
    """Returns a protocol that calls `serve` once the connection of a slot is established.

    At most twice `read_bytes` are buffered before they are read.
    """

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        slot.abort = writer.transport.abort
        serve(reader, writer)

    return asyncio.StreamReaderProtocol(asyncio.StreamReader(read_bytes), begin)
