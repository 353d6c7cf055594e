"""The replicated channels of a server, which it shares with other servers."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from millrace_server.channels.channel_handle import ChannelHandle
from millrace_server.channels.engines import Engines
from millrace_server.channels.ownership import Ownership
from millrace_server.channels.ownership_hooks import OwnershipHooks
from millrace_server.histograms import Histograms

_TELLING_SECONDS = 1.0
"""So long a server that stops tells clients who has taken over: twice as long as they pause between their calls."""


class SharedChannels:
    """What this server does with each replicated channel, and the engines that they need."""

    def __init__(self, histograms: Histograms) -> None:
        self._engines = Engines(histograms)
        self._ownerships: dict[str, Ownership] = {}
        self._awaited: list[Ownership] = []  # Those that others will take over.

    def __contains__(self, name: str) -> bool:
        return name in self._ownerships

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._ownerships))

    def serve_at(self, address: str) -> None:
        """Shows where clients reach this server, which owns no channels before; empty if they do not."""
        self._engines.serve_at(address)

    def add(self, handle: ChannelHandle, hooks: OwnershipHooks, *, is_new: bool) -> None:
        """Stands by for a channel from now on; `is_new`: even if another server has deleted it."""
        self._ownerships[handle.name] = Ownership(handle, self._engines, hooks, is_new=is_new)

    def has_successor(self, name: str) -> bool:
        """Whether this server serves a channel that others would take over."""
        return name in self._ownerships and self._ownerships[name].is_awaited

    async def move(self, name: str, server: str) -> None:
        """Hands a channel over to another server; see `Ownership.move`."""
        await self._ownerships[name].move(server)

    async def delete(self, name: str) -> None:
        """Deletes a channel for all servers; see `Ownership.delete`. Then `remove` must follow."""
        await self._ownerships[name].delete()

    def drain(self) -> None:
        """Begins to leave all channels to other servers."""
        self._awaited = [ownership for ownership in self._ownerships.values() if ownership.is_awaited]
        for ownership in self._ownerships.values():
            ownership.leave()

    async def handed_over(self, grace_seconds: float) -> None:
        """Waits after `drain` until all channels are left, and clients that call were told who serves them now.

        A client that knows only this server would not find the next owner otherwise. Waits for servers that are slow to
        take over until the grace period has passed.
        """
        give_up = asyncio.get_running_loop().time() + grace_seconds
        await asyncio.gather(*[ownership.ended() for ownership in self._ownerships.values()])
        with suppress(TimeoutError):
            async with asyncio.timeout_at(give_up):
                await asyncio.gather(*[ownership.taken() for ownership in self._awaited])
        if self._awaited:
            await asyncio.sleep(_TELLING_SECONDS)

    async def remove(self, name: str) -> None:
        """Leaves a channel to other servers, and returns once it is handed over."""
        if (ownership := self._ownerships.pop(name, None)) is not None:
            ownership.leave()
            await ownership.ended()

    def forget(self, name: str) -> None:
        """Stands by for a channel no more, which could not be opened; does nothing for one that was removed."""
        if (ownership := self._ownerships.pop(name, None)) is not None:
            ownership.leave()

    async def close(self) -> None:
        """Leaves all channels, and the engines."""
        await asyncio.gather(*map(self.remove, self))
        await self._engines.close()
