"""AdminService: making, changing, watching and emptying channels, and watching the agent's components."""

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from millrace.setting_problems import describe_problems, shown_value
from millrace.v1 import admin_service_pb2 as pb
from millrace_server.agent.components import Component
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import AnyChannelConfig, ChannelConfig, LogChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.channels.hosted import HostedChannel
from millrace_server.channels.names import check_channel_name
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import BadArgumentError, ChannelExistsError, DiskFullError
from millrace_server.grpc_services import answers
from millrace_server.grpc_services.channel_message import CHANNEL_TYPES, COMPRESSIONS, FSYNC_POLICIES, channel_message
from millrace_server.grpc_services.component_message import component_message
from millrace_server.grpc_services.durations import seconds
from millrace_server.grpc_services.requests import form_of
from millrace_server.grpc_services.rpc import Handler, Rpcs
from millrace_server.hosting.catalog import Catalog

NAME = pb.DESCRIPTOR.services_by_name["AdminService"].full_name
"""The service's full name."""

WATCH_SECONDS_DEFAULT = 1.0
WATCH_SECONDS_MIN = 0.1
WATCHED_NAMES_MAX = 1_000
PEEK_EVENTS_DEFAULT = 10

ResultT = TypeVar("ResultT")

_UNLIMITED = 1 << 64
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_CONFIG: TypeAdapter[AnyChannelConfig] = TypeAdapter(AnyChannelConfig)
_DURATIONS = {field: f"{field}_seconds" for field in ("keep_alive", "lease", "checkpoint_interval", "fsync_interval")}
_WIRE_NAMES = {limit: field for field, limit in _DURATIONS.items()}
_WORDS: dict[str, tuple[Any, Mapping[Any, str]]] = {
    "fsync": (pb.FsyncPolicy, FSYNC_POLICIES),
    "compression": (pb.Compression, COMPRESSIONS),
}


class AdminService:
    """Serves AdminService from a registry of channels, the catalog that outlives it, and an agent's components."""

    def __init__(self, registry: ChannelRegistry, catalog: Catalog, components: Iterable[Component] = ()) -> None:
        self._registry = registry
        self._catalog = catalog
        self._components = components
        # The catalog is written on another thread; meanwhile no other change may come in between.
        self._changing = asyncio.Lock()

    def handlers(self, rpcs: Rpcs) -> dict[str, Handler]:
        """The service's methods by name."""
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
        if request.config.type not in CHANNEL_TYPES:
            allowed = " or ".join(map(pb.ChannelType.Name, CHANNEL_TYPES))
            raise BadArgumentError(f"config.type: is {_type_name(request.config)}; it must be {allowed}")
        config = _checked({"type": CHANNEL_TYPES[request.config.type], **_limits(request.config)})
        hosted = await _whole(self._create(request.name, config))
        return pb.CreateChannelResponse(channel=channel_message(hosted))

    async def _create(self, name: str, config: ChannelConfig) -> HostedChannel:
        async with self._changing:
            if name in self._registry:
                raise ChannelExistsError(f"channel: {name!r} exists already")
            # First what survives, then what is seen: a channel that somebody has used is never forgotten.
            await self._write(self._catalog.put, name, config)
            hosted = self._registry.create(name, config)
            await hosted.opened.wait()
            if hosted.channel_if_open is None:
                # What could not be made is not there.
                self._registry.forget(name)
                await self._write(self._catalog.remove, name)
                hosted.refuse_unless_open()
            return hosted

    async def _update_channel(self, request: pb.UpdateChannelRequest) -> pb.UpdateChannelResponse:
        hosted = self._registry.get_hosted(request.name)
        channel = hosted.channel
        if request.config.type and CHANNEL_TYPES.get(request.config.type) != channel.config.type:
            raise BadArgumentError(
                f"config.type: is {_type_name(request.config)}; a channel's type, here {channel.config.type}, "
                "cannot be changed"
            )
        # What another update has changed meanwhile must not be put back by this one, which may wait for room.
        async with channel.updating:
            former = channel.config
            config = _checked({**former.model_dump(), **_limits(request.config)})
            _refuse_unchangeable(former, config)
            message = await channel.update(config)
            if not message:
                await _whole(self._save(channel, former))
        return pb.UpdateChannelResponse(channel=channel_message(hosted), applied=not message, message=message)

    async def _save(self, channel: Channel, former: ChannelConfig) -> None:
        """Has a channel's new limits survive; where they cannot, the former ones stay in force."""
        async with self._changing:
            channel.contents.refuse_if_closed()
            try:
                await self._write(self._catalog.replace, channel.name, channel.config)
            except BaseException:
                channel.enforce(former)
                raise

    async def _delete_channel(self, request: pb.DeleteChannelRequest) -> pb.DeleteChannelResponse:
        await _whole(self._delete(request.name, force=request.force))
        return pb.DeleteChannelResponse()

    async def _delete(self, name: str, *, force: bool) -> None:
        async with self._changing:
            self._registry.refuse_undeletable(name, force=force)
            # A channel's own directory comes first: should it come back, then without the events that are gone.
            is_decided = await self._registry.mark_deleted(name)
            try:
                # First what survives, then what is seen: a channel that was deleted never comes back.
                await self._write(self._catalog.remove, name)
            except BaseException:
                if is_decided:
                    # What it were to take from now on would be gone after the next start.
                    await self._registry.delete(name)
                raise
            await self._registry.delete(name)

    async def _write(self, write: Callable[..., None], *arguments: object) -> None:
        """Writes the catalog without holding up the loop."""
        try:
            await asyncio.to_thread(write, *arguments)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise DiskFullError("the disk has no room for the server's catalog of channels; free some") from None
            raise

    async def _list_channels(self, _request: pb.ListChannelsRequest) -> pb.ListChannelsResponse:
        return pb.ListChannelsResponse(channels=map(channel_message, self._registry.hosted()))

    async def _get_channel(self, request: pb.GetChannelRequest) -> pb.GetChannelResponse:
        return pb.GetChannelResponse(channel=channel_message(self._registry.get_hosted(request.name)))

    async def _watch_channels(self, request: pb.WatchChannelsRequest) -> AsyncGenerator[pb.WatchChannelsResponse]:
        interval_seconds = _interval_seconds(request)
        names = set(request.names)
        if len(names) > WATCHED_NAMES_MAX:
            raise BadArgumentError(f"names: has {len(names)}; at most {WATCHED_NAMES_MAX} are allowed, or none for all")
        while True:
            watched = [hosted for hosted in self._registry.hosted() if not names or hosted.name in names]
            yield pb.WatchChannelsResponse(channels=map(channel_message, watched))
            await asyncio.sleep(interval_seconds)

    async def _peek_events(self, request: pb.PeekEventsRequest) -> AsyncGenerator[bytes]:
        channel = self._registry.get(request.channel)
        form = form_of(columns=request.columns)
        left = request.max_events or (_UNLIMITED if request.follow else PEEK_EVENTS_DEFAULT)
        async with aclosing(_seen(channel, request)) as seen:
            async for skipped_count, batch in seen:
                shown = batch.part(0, min(left, batch.count))
                for index, part in enumerate(channel.parts(shown, form)):
                    head = pb.PeekEventsResponse(skipped_events=0 if index else skipped_count)
                    yield answers.encode(head, pb.PeekEventsResponse.BATCH_FIELD_NUMBER, [part], form)
                left -= shown.count
                if not left:
                    return

    async def _purge_channel(self, request: pb.PurgeChannelRequest) -> pb.PurgeChannelResponse:
        return pb.PurgeChannelResponse(purged_count=await self._registry.get(request.name).purge())

    async def _list_components(self, _request: pb.ListComponentsRequest) -> pb.ListComponentsResponse:
        return pb.ListComponentsResponse(components=map(component_message, self._components))

    async def _watch_components(self, request: pb.WatchComponentsRequest) -> AsyncGenerator[pb.WatchComponentsResponse]:
        interval_seconds = _interval_seconds(request)
        while True:
            yield pb.WatchComponentsResponse(components=map(component_message, self._components))
            await asyncio.sleep(interval_seconds)


def _interval_seconds(request: pb.WatchChannelsRequest | pb.WatchComponentsRequest) -> float:
    return max(seconds("interval", request.interval) or WATCH_SECONDS_DEFAULT, WATCH_SECONDS_MIN)


async def _whole(change: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Carries a change out to its end, also where the caller leaves meanwhile: half of it must not stand."""
    return await asyncio.shield(asyncio.ensure_future(change))


async def _seen(channel: Channel, request: pb.PeekEventsRequest) -> AsyncGenerator[tuple[int, StoredBatch]]:
    """Batches for an onlooker, each with the count of events that it missed before."""
    contents = channel.contents
    if not request.follow:
        async for batch in _queued(contents, request.from_sequence):
            yield 0, batch
        return
    follower = contents.follow()
    try:
        # What is queued now and what will be committed: together all, without a gap and nothing twice.
        async for batch in _queued(contents, request.from_sequence or contents.next_sequence):
            yield 0, batch
        while (news := await follower.next_batch()) is not None:
            skipped_count, batch = news
            if batch.end_sequence > request.from_sequence:
                yield skipped_count, batch.between(request.from_sequence, batch.end_sequence)
        contents.refuse_if_closed()
    finally:
        contents.unfollow(follower)


async def _queued(contents: Contents, position: int) -> AsyncGenerator[StoredBatch]:
    """The queued batches from a sequence on, up to what is committed now."""
    end = contents.next_sequence
    while batches := contents.queue.read(position, end):
        async for batch in contents.load(batches):
            yield batch
        position = batches[-1].end_sequence


def _limits(config: pb.ChannelConfig) -> dict[str, object]:
    """The limits that a request gives, under the names that ChannelConfig has for them."""
    limits: dict[str, object] = {}
    for field, value in config.ListFields():
        if field.name == "active_key":
            raise BadArgumentError(
                f"config.active_key: is {shown_value(value)}; it must be absent, for keys belong to the server's "
                "configuration file"
            )
        if field.name in _DURATIONS:
            limits[_DURATIONS[field.name]] = seconds(f"config.{field.name}", value)
        elif field.name in _WORDS:
            limits[field.name] = _word(field.name, value)
        elif field.name != "type":
            limits[field.name] = value
    return limits


def _word(field: str, number: int) -> str:
    """What the configuration file says for a number of the wire."""
    enum, words = _WORDS[field]
    if number not in words:
        allowed = " or ".join(map(enum.Name, words))
        raise BadArgumentError(f"config.{field}: is {number}; it must be {allowed}")
    return words[number]


def _checked(limits: dict[str, object]) -> AnyChannelConfig:
    try:
        return _CONFIG.validate_python(limits)
    except ValidationError as error:
        problems = map(_in_wire_names, describe_problems(error, AnyChannelConfig))
        raise BadArgumentError("; ".join(problems)) from None


def _refuse_unchangeable(former: ChannelConfig, config: ChannelConfig) -> None:
    if not isinstance(former, LogChannelConfig) or not isinstance(config, LogChannelConfig):
        return
    if former.backup_checkpoint != config.backup_checkpoint:
        raise BadArgumentError(
            f"config.backup_checkpoint: is {shown_value(config.backup_checkpoint)}; what a channel was made with, here "
            f"{shown_value(former.backup_checkpoint)}, cannot be changed"
        )


def _in_wire_names(problem: str) -> str:
    limit, colon, rest = problem.partition(":")
    return f"config.{_WIRE_NAMES.get(limit, limit)}{colon}{rest}"


def _type_name(config: pb.ChannelConfig) -> str:
    known = config.type in pb.ChannelType.values()
    return pb.ChannelType.Name(config.type) if known else str(config.type)
