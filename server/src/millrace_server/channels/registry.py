"""All channels of a server."""

import asyncio
from collections.abc import Callable

from millrace_server.channels.channel import Channel
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.directory import TxnDirectory
from millrace_server.channels.names import check_channel_name, shown
from millrace_server.errors import ChannelExistsError, ChannelNotEmptyError, ChannelNotFoundError

# What an answer has around its events: tags, lengths and counts.
_ENVELOPE_BYTES = 1024


class ChannelRegistry:
    """Finds channels by name.

    Args:
        message_bytes_max: The largest message that an answer may be.
        open_transactions_max: Transactions that may be open in all channels together.
    """

    def __init__(self, *, message_bytes_max: int, open_transactions_max: int) -> None:
        self._channels: dict[str, Channel] = {}
        self._answer_bytes_max = message_bytes_max - _ENVELOPE_BYTES
        self._watchers: list[Callable[[str], None]] = []
        self._is_draining = False
        self.transactions = TxnDirectory(open_transactions_max)

    def __contains__(self, name: str) -> bool:
        return name in self._channels

    def create(self, name: str, config: ChannelConfig) -> Channel:
        """Makes a channel.

        Raises:
            ChannelExistsError: There is one of that name.
        """
        check_channel_name(name)
        if name in self._channels:
            raise ChannelExistsError(f"channel: {name!r} exists already", channel=name)
        channel = self._channels[name] = Channel(name, config, self.transactions, self._answer_bytes_max)
        if self._is_draining:
            channel.drain()
        self._tell_watchers(name)
        return channel

    def get(self, name: str) -> Channel:
        """The channel of that name.

        Raises:
            ChannelNotFoundError: There is none.
        """
        if channel := self._channels.get(name):
            return channel
        check_channel_name(name)
        raise ChannelNotFoundError(
            f"channel: there is none called {shown(name)}; create it, or see which there are", channel=name
        )

    def refuse_undeletable(self, name: str, *, force: bool) -> None:
        """Raises ChannelNotEmptyError where a channel holds events or open transactions, unless forced."""
        channel = self.get(name)
        event_count = channel.contents.room.event_count
        if not force and (event_count or channel.open_transactions):
            raise ChannelNotEmptyError(
                f"channel {name!r} holds {event_count} events and {channel.open_transactions} open transactions; "
                "empty it first, or force its deletion and lose them",
                channel=name,
            )

    def delete(self, name: str) -> None:
        """Deletes a channel, with whatever it holds."""
        channel = self.get(name)
        del self._channels[name]
        channel.delete()
        self._tell_watchers(name)

    def watch(self, on_change: Callable[[str], None]) -> None:
        """Calls `on_change` with a channel's name each time after one was made or deleted."""
        self._watchers.append(on_change)

    def _tell_watchers(self, name: str) -> None:
        for on_change in self._watchers:
            on_change(name)

    def channels(self) -> list[Channel]:
        """All channels, by name."""
        return [self._channels[name] for name in sorted(self._channels)]

    def drain(self) -> None:
        """Begins nothing new from now on; open transactions may end."""
        self._is_draining = True
        for channel in self._channels.values():
            channel.drain()

    async def wait_idle(self, timeout_seconds: float) -> bool:
        """Waits until no transaction is open; False where that took too long."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.transactions.limit.is_idle.wait()
        except TimeoutError:
            return False
        return True
