"""AdminService: creates, changes, watches, peeks at and purges channels, and watches the agent's components."""

import asyncio
import errno
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

from millrace.v1 import admin_service_pb2 as pb
from millrace_server.access.permissions import Permission
from millrace_server.agent.components import Component
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle
from millrace_server.channels.config import ChannelConfig, check_channel_name
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import BadArgumentError, ChannelExistsError, DiskFullError, TooManyChannelsError
from millrace_server.grpc_services.admin_messages import (
    NUMBERS,
    channel_message,
    check_changeable,
    checked_config,
    component_message,
    limits_of,
    number_name,
    word_of,
)
from millrace_server.grpc_services.call import current_call
from millrace_server.grpc_services.messages import encode_batches, form_of, micros_of, seconds_of
from millrace_server.grpc_services.rpc import Handler, Rpcs
from millrace_server.hosting.data_dir import Catalog

NAME = pb.DESCRIPTOR.services_by_name["AdminService"].full_name
WATCH_SECONDS_DEFAULT = 1.0
WATCH_SECONDS_MIN = 0.1
WATCHED_NAMES_MAX = 1_000
PEEK_EVENTS_DEFAULT = 10

ResultT = TypeVar("ResultT")

_UNLIMITED = 1 << 64
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class AdminService:
    """Serves AdminService from the channel registry, the catalog on disk, and the agent's components."""

    def __init__(
        self,
        registry: ChannelRegistry,
        catalog: Catalog,
        components: Iterable[Component] = (),
        channels_max: float = math.inf,
    ) -> None:
        """`channels_max`: with so many channels, configured ones too, clients can create no more."""
        self._registry = registry
        self._channels_max = channels_max
        self._catalog = catalog
        self._components = components
        # Serializes changes, since the catalog is written on another thread.
        self._changing = asyncio.Lock()

    def handlers(self, rpcs: Rpcs) -> dict[str, Handler]:
        return {
            "CreateChannel": rpcs.unary(pb.CreateChannelRequest, self._create_channel),
            "UpdateChannel": rpcs.unary(pb.UpdateChannelRequest, self._update_channel),
            "DeleteChannel": rpcs.unary(pb.DeleteChannelRequest, self._delete_channel),
            "ListChannels": rpcs.unary(pb.ListChannelsRequest, self._list_channels),
            "GetChannel": rpcs.unary(pb.GetChannelRequest, self._get_channel),
            "WatchChannels": rpcs.server_stream(pb.WatchChannelsRequest, self._watch_channels),
            "PeekEvents": rpcs.server_stream(pb.PeekEventsRequest, self._peek_events),
            "PurgeChannel": rpcs.unary(pb.PurgeChannelRequest, self._purge_channel),
            "ListComponents": rpcs.unary(pb.ListComponentsRequest, self._list_components),
            "WatchComponents": rpcs.server_stream(pb.WatchComponentsRequest, self._watch_components),
        }

    async def _create_channel(self, request: pb.CreateChannelRequest) -> pb.CreateChannelResponse:
        check_channel_name(request.name)
        config = checked_config({"type": word_of("type", request.config.type), **limits_of(request.config)})
        handle = await _to_completion(self._create(request.name, config))
        return pb.CreateChannelResponse(channel=channel_message(handle))

    async def _create(self, name: str, config: ChannelConfig) -> ChannelHandle:
        async with self._changing:
            if name in self._registry:
                raise ChannelExistsError(f"channel: {name!r} exists already")
            if (count := len(self._registry)) >= self._channels_max:
                raise TooManyChannelsError(
                    f"there are {count} channels, and server.channels_max is {self._channels_max}; delete one first"
                )
            # The catalog first: a channel that a client has used must survive a crash.
            await self._write(self._catalog.put, name, config)
            handle = self._registry.create(name, config)
            await handle.opened.wait()
            if handle.channel_if_open is None:
                # Creation failed: undo it.
                self._registry.forget(name)
                await self._write(self._catalog.remove, name)
                handle.refuse_unless_open()
            return handle

    async def _update_channel(self, request: pb.UpdateChannelRequest) -> pb.UpdateChannelResponse:
        handle = self._registry.find(request.name)
        channel = handle.channel
        if request.config.type and request.config.type != NUMBERS["type"][channel.config.type]:
            asked = number_name("type", request.config.type)
            raise BadArgumentError(
                f"config.type: is {asked}; a channel's type, here {channel.config.type}, cannot be changed"
            )
        # Serializes updates: one that waits for room must not undo the changes of another.
        async with channel.updating:
            former = channel.config
            config = checked_config({**former.model_dump(), **limits_of(request.config)})
            check_changeable(former, config)
            message = await channel.update(config)
            if not message:
                await _to_completion(self._save(channel, former))
        return pb.UpdateChannelResponse(channel=channel_message(handle), applied=not message, message=message)

    async def _save(self, channel: Channel, former: ChannelConfig) -> None:
        """Writes a channel's new limits to the catalog; if that fails, restores the former ones."""
        async with self._changing:
            channel.refuse_if_closed()
            try:
                await self._write(self._catalog.replace, channel.name, channel.config)
            except BaseException:
                channel.enforce(former)
                raise

    async def _delete_channel(self, request: pb.DeleteChannelRequest) -> pb.DeleteChannelResponse:
        await _to_completion(self._delete(request.name, force=request.force))
        return pb.DeleteChannelResponse()

    async def _delete(self, name: str, *, force: bool) -> None:
        async with self._changing:
            self._registry.refuse_undeletable(name, force=force)
            # The mark in the channel's directory first: after a crash the channel must not return without its events.
            is_decided = await self._registry.mark_deleted(name)
            try:
                # The catalog before the registry: a deleted channel must not return after a crash.
                await self._write(self._catalog.remove, name)
            except BaseException:
                if is_decided:
                    # It is marked as deleted, so events that it accepted from now on would be lost at the next start.
                    await self._registry.delete(name)
                raise
            await self._registry.delete(name)

    async def _write(self, write: Callable[..., None], *arguments: object) -> None:
        try:
            await asyncio.to_thread(write, *arguments)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise DiskFullError("the disk has no room for the server's catalog of channels; free some space") from None

    async def _list_channels(self, _request: pb.ListChannelsRequest) -> pb.ListChannelsResponse:
        return pb.ListChannelsResponse(channels=[channel_message(handle) async for handle in self._described()])

    async def _described(self) -> AsyncGenerator[ChannelHandle]:
        """Yields the channels that the caller may describe."""
        call = current_call()
        async for handle in self._registry.visit():
            if call.may(Permission.DESCRIBE, handle.name):
                yield handle

    async def _get_channel(self, request: pb.GetChannelRequest) -> pb.GetChannelResponse:
        await self._registry.measure_disks()
        return pb.GetChannelResponse(channel=channel_message(self._registry.find(request.name)))

    async def _watch_channels(self, request: pb.WatchChannelsRequest) -> AsyncGenerator[pb.WatchChannelsResponse]:
        interval_seconds = _interval_seconds(request)
        names = set(request.names)
        if len(names) > WATCHED_NAMES_MAX:
            raise BadArgumentError(f"names: has {len(names)}; at most {WATCHED_NAMES_MAX} are allowed, or none for all")
        while True:
            watched = [
                channel_message(handle) async for handle in self._described() if not names or handle.name in names
            ]
            yield pb.WatchChannelsResponse(channels=watched)
            await asyncio.sleep(interval_seconds)

    async def _peek_events(self, request: pb.PeekEventsRequest) -> AsyncGenerator[bytes]:
        channel = self._registry.get(request.channel)
        form = form_of(columns=request.columns)
        left = request.max_events or (_UNLIMITED if request.follow else PEEK_EVENTS_DEFAULT)
        async with aclosing(_peeked(channel, request)) as batches:
            async for skipped_count, batch in batches:
                shown = batch.part(0, min(left, batch.count))
                for index, part in enumerate(channel.parts(shown, form)):
                    head = pb.PeekEventsResponse(skipped_events=0 if index else skipped_count)
                    yield encode_batches(head, pb.PeekEventsResponse.BATCH_FIELD_NUMBER, [part], form)
                left -= shown.count
                if not left:
                    return

    async def _purge_channel(self, request: pb.PurgeChannelRequest) -> pb.PurgeChannelResponse:
        return pb.PurgeChannelResponse(purged_count=await self._registry.get(request.name).purge())

    async def _list_components(self, _request: pb.ListComponentsRequest) -> pb.ListComponentsResponse:
        return pb.ListComponentsResponse(components=self._described_components())

    def _described_components(self) -> Iterator[pb.Component]:
        """Yields the components of which the caller may describe a channel."""
        call = current_call()
        for component in self._components:
            if any(call.may(Permission.DESCRIBE, channel) for channel in component.channels):
                yield component_message(component)

    async def _watch_components(self, request: pb.WatchComponentsRequest) -> AsyncGenerator[pb.WatchComponentsResponse]:
        interval_seconds = _interval_seconds(request)
        while True:
            yield pb.WatchComponentsResponse(components=self._described_components())
            await asyncio.sleep(interval_seconds)


def _interval_seconds(request: pb.WatchChannelsRequest | pb.WatchComponentsRequest) -> float:
    return max(seconds_of("interval", request.interval) or WATCH_SECONDS_DEFAULT, WATCH_SECONDS_MIN)


async def _to_completion(change: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Finishes a change even if the caller disconnects: a half-done change must not remain."""
    return await asyncio.shield(asyncio.ensure_future(change))


async def _peeked(channel: Channel, request: pb.PeekEventsRequest) -> AsyncGenerator[tuple[int, StoredBatch]]:
    """Yields batches for PeekEvents, each with the number of events that were skipped before it."""
    from_sequence = request.from_sequence
    if request.HasField("from_time"):
        if from_sequence:
            raise BadArgumentError("from_time: is given together with from_sequence; set only one of them")
        from_sequence, _ = channel.first_since(micros_of("from_time", request.from_time))
    if not request.follow:
        async for batch in channel.queued(from_sequence):
            yield 0, batch
        return
    subscriber = channel.subscribe()
    try:
        # The queued batches and the committed ones join without a gap and without overlap.
        async for batch in channel.queued(from_sequence or channel.next_sequence):
            yield 0, batch
        while (news := await subscriber.next_batch()) is not None:
            skipped_count, batch = news
            if batch.end_sequence > from_sequence:
                yield skipped_count, batch.between(from_sequence, batch.end_sequence)
        channel.refuse_if_closed()
    finally:
        channel.unsubscribe(subscriber)
