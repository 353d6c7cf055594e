"""Changes of the channels of a running server, which survive its restarts."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.config import ChannelConfig, check_channel_name
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import ChannelExistsError, DiskFullError, TooManyChannelsError
from millrace_server.hosting.data_dir import Catalog
from millrace_server.wal.disk import NO_SPACE

ResultT = TypeVar("ResultT")


class ChannelChanges:
    """Creates, changes and deletes channels in the registry and in the catalog on disk.

    A change is completed even if its caller is cancelled, so that no partial change remains.
    """

    def __init__(self, registry: ChannelRegistry, catalog: Catalog, channels_max: float = math.inf) -> None:
        """`channels_max`: the number of channels, including configured ones, from which on no more can be created."""
        self._registry = registry
        self._catalog = catalog
        self._channels_max = channels_max
        # Serializes changes, since the catalog is written on another thread.
        self._changing = asyncio.Lock()
        self._forgetting: set[asyncio.Task[None]] = set()
        registry.on_deleted_elsewhere = self._forget_soon

    def _forget_soon(self, handle: ChannelHandle) -> None:
        forgetting = asyncio.get_running_loop().create_task(self._forget(handle))
        self._forgetting.add(forgetting)
        forgetting.add_done_callback(self._forgetting.discard)

    async def _forget(self, handle: ChannelHandle) -> None:
        """Forgets a replicated channel that another server has deleted, unless a new one has its name by now."""
        name = handle.name
        async with self._changing:
            if name in self._registry and self._registry.find(name) is handle and handle.configured is None:
                await _write(self._catalog.remove, name)
                await self._registry.retire(name)

    async def create(self, name: str, config: ChannelConfig) -> ChannelHandle:
        """Creates a channel, and returns once it is open.

        Raises:
            BadNameError, ChannelExistsError, TooManyChannelsError, DiskFullError: There is no new channel.
        """
        check_channel_name(name)
        return await _to_completion(self._create(name, config))

    async def _create(self, name: str, config: ChannelConfig) -> ChannelHandle:
        async with self._changing:
            self._registry.refuse_entrance(name)
            if name in self._registry:
                raise ChannelExistsError(f"channel: {name!r} already exists")
            if (count := len(self._registry)) >= self._channels_max:
                raise TooManyChannelsError(
                    f"there are {count} channels, and server.channels_max is {self._channels_max}; delete one first"
                )
            # The catalog first: a channel that a client has used must survive a crash.
            await _write(self._catalog.put, name, config)
            handle = self._registry.create(name, config, is_new=True)
            await handle.opened.wait()
            if handle.channel_if_open is None and handle.state is not ChannelState.STANDING_BY:
                # Creation failed: undo it.
                self._registry.forget(name)
                await _write(self._catalog.remove, name)
                handle.refuse_unless_open()
            return handle

    async def update(self, name: str, change: Callable[[ChannelConfig], ChannelConfig]) -> str:
        """Changes a channel's limits to what `change` returns for the current ones.

        Returns:
            Why nothing was changed; empty on success.
        """
        channel = self._registry.get(name)
        # Serializes updates: one that waits for space must not undo the changes of another.
        async with channel.updating:
            former = channel.config
            message = await channel.update(change(former))
            if not message:
                await _to_completion(self._save(channel, former))
        return message

    async def _save(self, channel: Channel, former: ChannelConfig) -> None:
        """Writes a channel's new limits to the catalog; if that fails, restores the former ones."""
        async with self._changing:
            channel.refuse_if_closed()
            try:
                await _write(self._catalog.replace, channel.name, channel.config)
            except BaseException:
                channel.enforce(former)
                raise

    async def delete(self, name: str, *, force: bool) -> None:
        """Deletes a channel; `force`: even if it holds events or open transactions, which are lost.

        Raises:
            ChannelConfiguredError, ChannelNotEmptyError: It stays.
        """
        await _to_completion(self._delete(name, force=force))

    async def _delete(self, name: str, *, force: bool) -> None:
        async with self._changing:
            self._registry.refuse_undeletable(name, force=force)
            # The mark in the channel's directory first: after a crash the channel must not return without its events.
            is_decided = await self._registry.mark_deleted(name)
            try:
                # The catalog before the registry: a deleted channel must not return after a crash.
                await _write(self._catalog.remove, name)
            except BaseException:
                if is_decided:
                    # It is marked as deleted, so events that it accepts from now on would be lost at the next start.
                    await self._registry.delete(name)
                raise
            await self._registry.delete(name)


async def _write(write: Callable[..., None], *arguments: object) -> None:
    try:
        await asyncio.to_thread(write, *arguments)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise DiskFullError("the disk has no space for the server's catalog of channels; free some space") from None


async def _to_completion(change: Coroutine[Any, Any, ResultT]) -> ResultT:
    return await asyncio.shield(asyncio.ensure_future(change))
