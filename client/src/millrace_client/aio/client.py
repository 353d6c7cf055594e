"""The client for asyncio."""

from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

import grpc

from millrace_client import _calls
from millrace_client._settings import ConnectionSettings
from millrace_client.aio._connection import Connection
from millrace_client.aio.channel import Channel
from millrace_client.channel_info import ChannelConfig, ChannelInfo, ChannelUpdate
from millrace_client.client import TIMEOUT_SECONDS
from millrace_client.component_info import ComponentInfo


def connect(
    endpoint: str,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    wait_for_ready: bool = False,
    credentials: grpc.ChannelCredentials | None = None,
    options: tuple[tuple[str, str | int], ...] = (),
) -> "Client":
    """Makes a client; see `millrace_client.connect`. The event loop of its first call is its own from then on."""
    return Client(
        ConnectionSettings(
            endpoint=endpoint,
            timeout_seconds=timeout_seconds,
            wait_for_ready=wait_for_ready,
            credentials=credentials,
            options=tuple(options),
        )
    )


class Admin:
    """What operators do with channels; see `millrace_client.Admin`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create_channel(self, name: str, config: ChannelConfig | None = None) -> ChannelInfo:
        """Makes a channel; see `millrace_client.Admin.create_channel`."""
        return await self._connection.run(_calls.create_channel(name, config or ChannelConfig()))

    async def update_channel(self, name: str, config: ChannelConfig) -> ChannelUpdate:
        """Changes limits of a channel in use; see `millrace_client.Admin.update_channel`."""
        return await self._connection.run(_calls.update_channel(name, config))

    async def delete_channel(self, name: str, *, force: bool = False) -> None:
        """Deletes a channel; see `millrace_client.Admin.delete_channel`."""
        await self._connection.run(_calls.delete_channel(name, force=force))

    async def list_channels(self) -> list[ChannelInfo]:
        """All channels, by name."""
        return await self._connection.run(_calls.list_channels())

    async def get_channel(self, name: str) -> ChannelInfo:
        """One channel."""
        return await self._connection.run(_calls.get_channel(name))

    def watch_channels(
        self, names: Sequence[str] = (), interval_seconds: float = 1.0
    ) -> AsyncGenerator[list[ChannelInfo]]:
        """Channels as they stand, again and again; see `millrace_client.Admin.watch_channels`."""
        return self._connection.stream(_calls.watch_channels(names, interval_seconds))

    async def purge_channel(self, name: str) -> int:
        """Removes all events that no open transaction has taken; returns how many."""
        return await self._connection.run(_calls.purge_channel(name))

    async def list_components(self) -> list[ComponentInfo]:
        """All components of the server's agent; see `millrace_client.Admin.list_components`."""
        return await self._connection.run(_calls.list_components())

    def watch_components(self, interval_seconds: float = 1.0) -> AsyncGenerator[list[ComponentInfo]]:
        """Components as they stand, again and again; see `millrace_client.Admin.watch_components`."""
        return self._connection.stream(_calls.watch_components(interval_seconds))


class Client:
    """A connection to one server, for the tasks of one event loop; see `millrace_client.Client`.

    Made by `connect`; best used in an `async with` statement, which closes it.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._connection = Connection(settings)
        self.admin = Admin(self._connection)
        """Making, changing, watching and emptying channels."""

    @property
    def endpoint(self) -> str:
        """Where the server is, as it was given."""
        return self._connection.settings.endpoint

    @property
    def timeout_seconds(self) -> float:
        """How long an answer may take."""
        return self._connection.settings.timeout_seconds

    def channel(self, name: str) -> Channel:
        """A handle on a channel. Makes no call, and does not make the channel."""
        return Channel(self._connection, name)

    async def close(self) -> None:
        """Ends deliveries in order, cuts off whatever else is under way, and disconnects. May be repeated."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.Client of {self.endpoint}>"
