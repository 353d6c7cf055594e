"""All channels of a server."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from millrace_server.channels.channel import Channel, memory_storage
from millrace_server.channels.channel_core import ChannelStorage
from millrace_server.channels.channel_file import DirectoryError
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.config import ChannelConfig, DiskChannelConfig, check_channel_name, shown
from millrace_server.channels.disk_space import DiskSpace
from millrace_server.channels.entrance import Entrance
from millrace_server.channels.file_store import OPENERS_MAX, ClosedStore, FileStores
from millrace_server.channels.log_store import LogStore
from millrace_server.channels.ownership_hooks import OwnershipHooks
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import (
    BadArgumentError,
    ChannelConfiguredError,
    ChannelExistsError,
    ChannelLogFailedError,
    ChannelNotEmptyError,
    ChannelNotFoundError,
    MillraceError,
    all_reasons,
)
from millrace_server.histograms import Histograms
from millrace_server.wal.disk import Disk, OsDisk

if TYPE_CHECKING:
    from millrace_server.channels.shared_channels import SharedChannels

_log = structlog.stdlib.get_logger(__name__)

# How long a listing occupies the event loop at a time, and then waits.
_SLICE_SECONDS = 0.003
_PAUSE_SECONDS = 0.001

_ENVELOPE_BYTES = 1024
"""Bytes of a response besides its events: tags, lengths and counts."""

_MEASURING_SECONDS = 0.1
"""How long a listing waits for the channels' disks to be measured."""

_MEASURED_AT_ONCE = 20
_MEASURING_PAUSE_SECONDS = 0.001


def _measure(spaces: Iterable[DiskSpace]) -> None:
    for number, space in enumerate(spaces, 1):
        if number % _MEASURED_AT_ONCE == 0:
            # Each system call takes the interpreter from the event loop and the logs' threads again.
            time.sleep(_MEASURING_PAUSE_SECONDS)
        # A directory that is gone: the next write tells more.
        with suppress(OSError):
            if space.is_outdated:
                space.measure()


class TimeSlices:
    """Divides long work on the event loop into time slices, so that calls and their threads run in between."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._pause_at = self._clock() + _SLICE_SECONDS

    async def pause_if_over(self) -> None:
        """Pauses at the end of a time slice. A pause of zero seconds would not release the interpreter to threads."""
        if self._clock() >= self._pause_at:
            await asyncio.sleep(_PAUSE_SECONDS)
            self._pause_at = self._clock() + _SLICE_SECONDS


class ChannelRegistry:
    """Finds channels by name; those that configure no directory are below `channels_dir`.

    Attributes:
        histograms: What all channels and calls have taken.
        on_deleted_elsewhere: Called with a replicated channel that another server has deleted.
        refused: The calls of clients that were refused, by reason; those that could be counted have 0.
    """

    def __init__(
        self,
        *,
        message_bytes_max: int,
        open_transactions_max: int,
        channels_dir: Path = Path("channels"),
        disk: Disk | None = None,
    ) -> None:
        self._handles: dict[str, ChannelHandle] = {}
        self._channels: dict[str, Channel] = {}  # The open ones.
        self._entrances: dict[str, Entrance] = {}
        self._openings: dict[str, asyncio.Task[None]] = {}
        self._opening = asyncio.Semaphore(OPENERS_MAX)
        self._closings: set[asyncio.Task[None]] = set()
        self._response_bytes_max = message_bytes_max - _ENVELOPE_BYTES
        self.histograms = Histograms()
        self.refused = Counter(dict.fromkeys(all_reasons(), 0))
        self._stores = FileStores(channels_dir, disk or OsDisk(), self.histograms)
        self._watchers: list[Callable[[str], None]] = []
        self._measuring: asyncio.Future[None] | None = None
        self._is_draining = False
        self.on_deleted_elsewhere: Callable[[ChannelHandle], None] = lambda _handle: None
        self._address: str | None = None
        self._shared: SharedChannels | None = None
        self.transactions = TxnDirectory(open_transactions_max, self.refuse_unless_known)

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def __len__(self) -> int:
        return len(self._handles)

    def create(self, name: str, config: ChannelConfig, *, is_new: bool = False) -> ChannelHandle:
        """Creates a channel: at once in memory, otherwise in the background; see `ChannelHandle.opened`.

        `is_new`: even if it is replicated, and was deleted by another server.
        """
        check_channel_name(name)
        self.refuse_entrance(name)
        if name in self._handles:
            raise ChannelExistsError(f"channel: {name!r} already exists", channel=name)
        handle = self._handles[name] = ChannelHandle(name, config, self._notify_watchers)
        if (disk_config := config.on_disk) is not None:
            self._openings[name] = asyncio.create_task(self._open(handle, disk_config))
            self._notify_watchers(name)
        elif config.replicated is not None:
            self._share(handle, is_new=is_new)
            self._notify_watchers(name)
        else:
            self._open_with(handle, config, memory_storage(name, config, self.histograms))
        return handle

    def _share(self, handle: ChannelHandle, *, is_new: bool) -> None:
        if self._shared is None:
            # Imported with the first replicated channel, since the engine's library may not be installed.
            from millrace_server.channels.shared_channels import SharedChannels

            self._shared = SharedChannels(self.histograms)
            if self._address is not None:
                self._shared.serve_at(self._address)

        def serve(storage: ChannelStorage) -> Channel:
            return self._open_with(handle, handle.config, storage)

        def cease() -> None:
            self._channels.pop(handle.name, None)

        hooks = OwnershipHooks(serve, cease, lambda: self.on_deleted_elsewhere(handle))
        self._shared.add(handle, hooks, is_new=is_new)

    def serve_at(self, address: str) -> None:
        """Shows where clients reach this server; empty if they do not. Without it no replicated channel is opened."""
        self._address = address
        if self._shared is not None:
            self._shared.serve_at(address)

    async def _open(self, handle: ChannelHandle, config: DiskChannelConfig) -> None:
        async with self._opening:
            await self._open_in_turn(handle, config)

    async def _open_in_turn(self, handle: ChannelHandle, config: DiskChannelConfig) -> None:
        handle.log_progress_later()
        try:
            handle.store = await self._stores.open(handle.name, config, handle.progress, handle.report_change)
        except Exception as error:  # noqa: BLE001 - whatever it is concerns this channel; the others continue
            handle.mark_failed(error)
        else:
            self._open_with(handle, config, handle.store.storage)
        finally:
            del self._openings[handle.name]

    def _open_with(self, handle: ChannelHandle, config: ChannelConfig, storage: ChannelStorage) -> Channel:
        channel = Channel(handle.name, config, storage, self.transactions, self._response_bytes_max)
        if self._is_draining and config.replicated is None:
            channel.drain()
        if self._handles.get(handle.name) is handle:
            self._channels[handle.name] = channel
        handle.mark_open(channel)
        return channel

    def handles(self) -> list[ChannelHandle]:
        return [self._handles[name] for name in sorted(self._handles)]

    async def visit(self) -> AsyncGenerator[ChannelHandle]:
        """Yields all channels for a listing, and lets other tasks run, since there may be thousands."""
        await self.measure_disks()
        slices = TimeSlices()
        for handle in self.handles():
            await slices.pause_if_over()
            yield handle

    def finish_deletions(self, configured: Container[str]) -> None:
        """Removes the rest of channels whose deletion a crash has interrupted, except configured ones."""
        self._stores.finish_deletions(configured)

    def find(self, name: str) -> ChannelHandle:
        """Returns the channel of that name, open or not."""
        if handle := self._handles.get(name):
            return handle
        self.refuse_entrance(name)
        check_channel_name(name)
        raise ChannelNotFoundError(
            f"channel: {shown(name)} does not exist; create it, or list those that exist", channel=name
        )

    def get(self, name: str) -> Channel:
        """Returns the open channel of that name."""
        # Each append calls this: only a name without an open channel takes the slow path.
        return self._channels.get(name) or self.find(name).channel

    # Sources that callers append to as to a channel.

    def set_entrances(self, names: Iterable[str]) -> None:
        """Makes these the entrances, all of whose names are free; ends the transactions in those that are none now."""
        names = set(names)
        for name in self._entrances.keys() - names:
            self._entrances.pop(name).channel.delete()
        for name in names - self._entrances.keys():
            assert name not in self._handles, "the caller has checked it"
            entrance = self._entrances[name] = Entrance(name, self.transactions, self._response_bytes_max)
            if self._is_draining:
                entrance.channel.drain()

    def entrance(self, name: str) -> Entrance | None:
        return self._entrances.get(name)

    def refuse_entrance(self, name: str) -> None:
        """Raises NotAChannelError if the name is that of a source."""
        if (entrance := self._entrances.get(name)) is not None:
            raise entrance.not_a_channel()

    def accepting(self, name: str) -> Channel:
        """Returns what takes appends and transactions under a name: the open channel, or a source's entrance."""
        channel = self._channels.get(name)
        if channel is None and (entrance := self._entrances.get(name)) is not None:
            return entrance.accepting()
        return channel or self.find(name).channel

    def with_transactions(self, name: str) -> Channel:
        """Returns what may have transactions under a name: the open channel, or a source's entrance."""
        entrance = self._entrances.get(name)
        return self.get(name) if entrance is None else entrance.channel

    def all_with_transactions(self) -> list[Channel]:
        """Returns the open channels and the entrances."""
        return [*self.channels(), *(self._entrances[name].channel for name in sorted(self._entrances))]

    def refuse_unless_known(self, channel: str) -> None:
        """Raises an error while the transactions of a channel are not known, of any if it has no name.

        NotOwnerError where another server knows those of the named channel, ReplayingError while this one reads them.
        """
        if handle := self._handles.get(channel):
            handle.refuse_unless_open()
            return
        for name in [*self._openings, *(self._shared or ())]:
            if self._handles[name].state is ChannelState.REPLAYING:
                self._handles[name].refuse_unless_open()

    async def wait_open(self, timeout_seconds: float | None = None) -> None:
        """Waits until every channel is open or has failed to open, or the timeout has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                for handle in self.handles():
                    await handle.opened.wait()

    def refuse_undeletable(self, name: str, *, force: bool) -> None:
        """Raises ChannelNotEmptyError where a channel holds events or open transactions, unless forced.

        A channel that failed to open may hold events. One that is still opening raises ReplayingError, forced or not,
        and one that the configuration names ChannelConfiguredError: it would be back at the next start.
        """
        handle = self.find(name)
        if handle.configured is not None:
            raise ChannelConfiguredError(
                f"channel {name!r} is defined in the server's configuration file; remove it there and reload the file",
                channel=name,
            )
        if force and handle.state not in {ChannelState.REPLAYING, ChannelState.STANDING_BY}:
            return
        channel = handle.channel
        event_count = channel.event_count
        if event_count or channel.open_transactions:
            raise ChannelNotEmptyError(
                f"channel {name!r} holds {event_count} events and {channel.open_transactions} open transactions; "
                "empty it first, or force its deletion and lose them",
                channel=name,
            )

    async def mark_deleted(self, name: str) -> bool:
        """Marks a channel's files as deleted; if the server ends now, the channel is empty or gone.

        Returns whether it has files; then `delete` must follow. After an error the channel continues.
        """
        if self._shared is not None and name in self._shared:
            await self._shared.delete(name)
            return True
        files = self._files_of(name)
        if files is None:
            return False
        try:
            await files.mark_deleted()
        except DirectoryError as error:
            _log.error("a channel cannot be deleted", channel=name, error=str(error))
            raise ChannelLogFailedError(
                f"channel {name!r} cannot be deleted; see the server's log", channel=name
            ) from None
        return True

    async def delete(self, name: str) -> None:
        files = self._files_of(name)
        await self._end(self.find(name))
        if files is not None:
            await files.remove()

    async def _end(self, handle: ChannelHandle) -> None:
        if self._shared is not None:
            await self._shared.remove(handle.name)
        self.forget(handle.name)
        if (channel := handle.channel_if_open) is not None:
            channel.delete()

    def has_successor(self, name: str) -> bool:
        """Whether the channel is replicated, and another server would take it over from this one."""
        return self._shared is not None and self._shared.has_successor(name)

    async def retire(self, name: str) -> None:
        """Closes and forgets an unused channel; its files stay, for a later channel of this name."""
        handle = self.find(name)
        await self._end(handle)
        if handle.store is not None:
            closing = asyncio.create_task(handle.store.close())
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)
            await asyncio.shield(closing)

    def forget(self, name: str) -> None:
        if self._shared is not None:
            self._shared.forget(name)
        del self._handles[name]
        self._channels.pop(name, None)
        self._notify_watchers(name)

    def _files_of(self, name: str) -> "LogStore | ClosedStore | None":
        handle = self.find(name)
        disk_config = handle.config.on_disk
        return handle.store or (None if disk_config is None else self._stores.closed(name, disk_config))

    async def close(self, timeout_seconds: float | None = None) -> None:
        """Closes the files of all channels, which must be unused.

        Within the timeout, in all, events in memory are written to the channels' logs; the rest is lost.
        """
        clock = asyncio.get_running_loop().time
        give_up = None if timeout_seconds is None else clock() + timeout_seconds
        for under_way in [*self._openings.values(), *self._closings]:
            await asyncio.wait({under_way})

        if self._shared is not None:
            await self._shared.close()

        async def close(handle: ChannelHandle) -> None:
            if handle.store is not None:
                try:
                    await handle.store.close(None if give_up is None else max(give_up - clock(), 0.0))
                except Exception:  # noqa: BLE001 - whatever it is, the others are to keep what they hold
                    _log.exception("a channel could not be closed", channel=handle.name)

        await asyncio.gather(*map(close, self.handles()))

    def watch(self, on_change: Callable[[str], None]) -> None:
        """Calls `on_change` with a channel's name after it was created, changed its state or was deleted."""
        self._watchers.append(on_change)

    def _notify_watchers(self, name: str) -> None:
        for on_change in self._watchers:
            on_change(name)

    def channels(self) -> list[Channel]:
        return [channel for handle in self.handles() if (channel := handle.channel_if_open)]

    async def move(self, name: str, server: str) -> None:
        """Hands a replicated channel over to the server at an address, and returns once that owns it.

        Raises:
            BadArgumentError: The channel is not replicated, or that server does not share it.
            NotOwnerError: Another server than this one owns it.
        """
        handle = self.find(name)
        if self._shared is None or name not in self._shared:
            raise BadArgumentError(f"name: is {name!r}, a channel of type {handle.config.type}; it must be replicated")
        await self._shared.move(name, server)

    async def measure_disks(self) -> None:
        """Measures the free space of all directories; disks that do not respond soon keep their last measurements."""
        if self._measuring is None or self._measuring.done():
            spaces = [handle.store.disk_space for handle in self._handles.values() if handle.store]
            if not any(space.is_outdated for space in spaces):
                return
            self._measuring = asyncio.ensure_future(asyncio.to_thread(_measure, spaces))
        await asyncio.wait({self._measuring}, timeout=_MEASURING_SECONDS)

    def count_refusal(self, error: MillraceError, txn_ids: Sequence[str]) -> None:
        """Counts a refused call, also at the open channel that it names, or whose transactions it names."""
        self.refused[error.reason] += 1
        name = error.metadata.get("channel") or next(filter(None, map(self.transactions.owner_of, txn_ids)), "")
        if (channel := self._channels.get(name)) is not None:
            channel.counters.refused[error.reason] += 1

    def drain(self) -> None:
        """Refuses new work from now on, and leaves replicated channels to other servers."""
        self._is_draining = True
        for handle in self.handles():
            if handle.config.replicated is None and (channel := handle.channel_if_open) is not None:
                channel.drain()
        for entrance in self._entrances.values():
            entrance.channel.drain()
        if self._shared is not None:
            self._shared.drain()

    async def handed_over(self, grace_seconds: float) -> None:
        """Waits, after `drain`, until other servers have the replicated channels and clients can know."""
        if self._shared is not None:
            await self._shared.handed_over(grace_seconds)
