"""Administration, for asyncio."""

from collections.abc import AsyncGenerator, Sequence

from millrace_client import _calls
from millrace_client.aio._connection import Connection
from millrace_client.channel_info import ChannelConfig, ChannelInfo, ChannelUpdate
from millrace_client.component_info import ComponentInfo


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
