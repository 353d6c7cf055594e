"""Administration, synchronously."""

from collections.abc import Iterator, Sequence

from millrace_client import _calls
from millrace_client._connection import Connection
from millrace_client.channel_info import ChannelConfig, ChannelInfo, ChannelUpdate
from millrace_client.component_info import ComponentInfo


class Admin:
    """What operators do with channels. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create_channel(self, name: str, config: ChannelConfig | None = None) -> ChannelInfo:
        """Makes a channel, which survives restarts of the server.

        Args:
            name: `[a-z0-9][a-z0-9._-]{0,63}`.
            config: Its type and limits. None: a memory channel with the server's defaults.

        Raises:
            ChannelExistsError: The name is taken.
            BadNameError: The name is not allowed.
        """
        return self._connection.run(_calls.create_channel(name, config or ChannelConfig()))

    def update_channel(self, name: str, config: ChannelConfig) -> ChannelUpdate:
        """Changes limits of a channel in use: all that are said, or none.

        Growing is at once. Shrinking waits for free room up to the channel's keep-alive; where none comes nothing is
        changed, which is no error: see `ChannelUpdate.applied`.
        """
        return self._connection.run(_calls.update_channel(name, config))

    def delete_channel(self, name: str, *, force: bool = False) -> None:
        """Deletes a channel.

        Args:
            name: Which.
            force: Also with events and open transactions in it; they are lost.

        Raises:
            ChannelNotEmptyError: It holds something, and this was not forced.
        """
        self._connection.run(_calls.delete_channel(name, force=force))

    def list_channels(self) -> list[ChannelInfo]:
        """All channels, by name."""
        return self._connection.run(_calls.list_channels())

    def get_channel(self, name: str) -> ChannelInfo:
        """One channel."""
        return self._connection.run(_calls.get_channel(name))

    def watch_channels(self, names: Sequence[str] = (), interval_seconds: float = 1.0) -> Iterator[list[ChannelInfo]]:
        """Channels as they stand, at once and then at an interval, until the iterator is closed or dropped.

        Args:
            names: Which; one that does not exist is left out. Empty: all.
            interval_seconds: How often, 0.1 to 3,600.
        """
        return self._connection.stream(_calls.watch_channels(names, interval_seconds))

    def purge_channel(self, name: str) -> int:
        """Removes all events that no open transaction has taken.

        Returns:
            How many were removed.
        """
        return self._connection.run(_calls.purge_channel(name))

    def list_components(self) -> list[ComponentInfo]:
        """All sources, sinks and sink groups of the server's agent, by kind and name."""
        return self._connection.run(_calls.list_components())

    def watch_components(self, interval_seconds: float = 1.0) -> Iterator[list[ComponentInfo]]:
        """Components as they stand, at once and then at an interval, until the iterator is closed or dropped.

        Args:
            interval_seconds: How often, 0.1 to 3,600.
        """
        return self._connection.stream(_calls.watch_components(interval_seconds))
