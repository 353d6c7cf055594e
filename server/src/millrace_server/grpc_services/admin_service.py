"""AdminService: manages channels, what clients have open in them, and the agent's components."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from functools import partial
from itertools import islice

from millrace.v1 import admin_service_pb2 as pb
from millrace_server.access.permissions import Permission
from millrace_server.agent.components import Component
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle
from millrace_server.channels.config import check_channel_name, shown
from millrace_server.channels.registry import ChannelRegistry, TimeSlices
from millrace_server.errors import BadArgumentError, ComponentNotFoundError
from millrace_server.grpc_services.admin_messages import (
    KINDS,
    changed_config,
    channel_message,
    checked_config,
    claim_message,
    component_message,
    consumer_message,
    limits_of,
    producer_message,
    transaction_message,
    word_of,
)
from millrace_server.grpc_services.call import current_call
from millrace_server.grpc_services.messages import encode_batches, form_of, micros_of, seconds_of
from millrace_server.grpc_services.rpc import Handler, Rpcs
from millrace_server.hosting.channel_changes import ChannelChanges
from millrace_server.replication.engine_settings import EngineSettings

NAME = pb.DESCRIPTOR.services_by_name["AdminService"].full_name
WATCH_SECONDS_DEFAULT = 1.0
WATCH_SECONDS_MIN = 0.1
WATCHED_NAMES_MAX = 1_000
PEEK_EVENTS_DEFAULT = 10
PRODUCERS_LISTED_MAX = 1_000
"""Even with the longest ids and identities they fit into the 4 MB that gRPC's clients receive by default."""

_UNLIMITED = 1 << 64


class AdminService:
    """Serves AdminService from the channel registry, its changes, and the agent's components."""

    def __init__(
        self,
        registry: ChannelRegistry,
        changes: ChannelChanges,
        components: Iterable[Component] = (),
        engine: EngineSettings | None = None,
    ) -> None:
        """`engine`: of replicated channels that are created."""
        self._registry = registry
        self._changes = changes
        self._components = components
        self._engine = engine

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
            "RetryComponent": rpcs.unary(pb.RetryComponentRequest, self._retry_component),
            "ListTransactions": rpcs.unary(pb.ListTransactionsRequest, self._list_transactions),
            "EndTransaction": rpcs.unary(pb.EndTransactionRequest, self._end_transaction),
            "ReleaseClaim": rpcs.unary(pb.ReleaseClaimRequest, self._release_claim),
            "ListProducers": rpcs.unary(pb.ListProducersRequest, self._list_producers),
            "ForgetProducer": rpcs.unary(pb.ForgetProducerRequest, self._forget_producer),
            "ListConsumers": rpcs.unary(pb.ListConsumersRequest, self._list_consumers),
            "MoveChannel": rpcs.unary(pb.MoveChannelRequest, self._move_channel),
        }

    async def _create_channel(self, request: pb.CreateChannelRequest) -> pb.CreateChannelResponse:
        check_channel_name(request.name)
        limits = {"type": word_of("type", request.config.type), **limits_of(request.config)}
        if limits["type"] == "replicated":
            if self._engine is None:
                raise BadArgumentError(
                    "config.type: is CHANNEL_TYPE_REPLICATED; for that, the server's configuration file must have "
                    "server.engine"
                )
            limits["engine"] = self._engine
        config = checked_config(limits)
        handle = await self._changes.create(request.name, config)
        return pb.CreateChannelResponse(channel=channel_message(handle))

    async def _update_channel(self, request: pb.UpdateChannelRequest) -> pb.UpdateChannelResponse:
        message = await self._changes.update(request.name, partial(changed_config, request.config))
        handle = self._registry.find(request.name)
        return pb.UpdateChannelResponse(channel=channel_message(handle), applied=not message, message=message)

    async def _delete_channel(self, request: pb.DeleteChannelRequest) -> pb.DeleteChannelResponse:
        await self._changes.delete(request.name, force=request.force)
        return pb.DeleteChannelResponse()

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

    async def _move_channel(self, request: pb.MoveChannelRequest) -> pb.MoveChannelResponse:
        await self._registry.move(request.name, request.server)
        return pb.MoveChannelResponse()

    async def _list_components(self, _request: pb.ListComponentsRequest) -> pb.ListComponentsResponse:
        return pb.ListComponentsResponse(components=self._described_components())

    def _described_components(self) -> Iterator[pb.Component]:
        """Returns the components of which the caller may describe a channel."""
        return (component_message(component) for component in self._components if _may(Permission.DESCRIBE, component))

    async def _watch_components(self, request: pb.WatchComponentsRequest) -> AsyncGenerator[pb.WatchComponentsResponse]:
        interval_seconds = _interval_seconds(request)
        while True:
            yield pb.WatchComponentsResponse(components=self._described_components())
            await asyncio.sleep(interval_seconds)

    async def _retry_component(self, request: pb.RetryComponentRequest) -> pb.RetryComponentResponse:
        component = self._find_component(request.kind, request.name)
        if not _may(Permission.OPERATE, component):
            current_call().require((Permission.OPERATE,), component.channels[0])
        before = component_message(component)
        component.retry()
        return pb.RetryComponentResponse(component=before)

    def _find_component(self, kind: pb.ComponentKind, name: str) -> Component:
        found = [
            component
            for component in self._components
            if component.name == name
            and (not kind or component.kind is KINDS.get(kind))
            and (_may(Permission.DESCRIBE, component) or _may(Permission.OPERATE, component))
        ]
        if not found:
            raise ComponentNotFoundError(f"name: there is no component called {shown(name)}")
        if len(found) > 1:
            kinds = " and ".join(f"a {component.kind.value}" for component in found)
            raise BadArgumentError(f"kind: is missing; {shown(name)} is the name of {kinds}")
        return found[0]

    # What clients have open, and what is remembered of them.

    async def _listed(self, name: str) -> AsyncGenerator[Channel]:
        """Yields the channel of that name, or all open ones without a name, if the caller may describe them."""
        if not name:
            async for handle in self._described():
                if (channel := handle.channel_if_open) is not None:
                    yield channel
        elif current_call().may(Permission.DESCRIBE, name):
            yield self._registry.get(name)

    def _with_transactions(self, name: str) -> Iterator[Channel]:
        """Yields what has transactions under that name, or all without a name, if the caller may describe them."""
        call = current_call()
        if name:
            channels = [self._registry.with_transactions(name)] if call.may(Permission.DESCRIBE, name) else []
        else:
            channels = self._registry.all_with_transactions()
        yield from (channel for channel in channels if call.may(Permission.DESCRIBE, channel.name))

    async def _list_transactions(self, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        response = pb.ListTransactionsResponse()
        slices = TimeSlices()
        for channel in self._with_transactions(request.channel):
            await slices.pause_if_over()
            for transaction in channel.list_transactions():
                response.transactions.append(transaction_message(transaction))
                await slices.pause_if_over()
        return response

    async def _end_transaction(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        channel = self._registry.transactions.find(request.txn_id).name
        self._registry.with_transactions(channel).end_transaction(request.txn_id)
        return pb.EndTransactionResponse()

    async def _release_claim(self, request: pb.ReleaseClaimRequest) -> pb.ReleaseClaimResponse:
        epoch = request.epoch if request.HasField("epoch") else None
        claim = await self._registry.get(request.channel).claims.revoke(epoch)
        return pb.ReleaseClaimResponse(claim=claim_message(claim))

    async def _list_producers(self, request: pb.ListProducersRequest) -> pb.ListProducersResponse:
        check_channel_name(request.channel)
        response = pb.ListProducersResponse()
        slices = TimeSlices()
        async for channel in self._listed(request.channel):
            for producer in islice(channel.ledger.describe(), PRODUCERS_LISTED_MAX):
                response.producers.append(producer_message(producer))
                await slices.pause_if_over()
        return response

    async def _forget_producer(self, request: pb.ForgetProducerRequest) -> pb.ForgetProducerResponse:
        await self._registry.get(request.channel).forget_producer(request.producer_id)
        return pb.ForgetProducerResponse()

    async def _list_consumers(self, request: pb.ListConsumersRequest) -> pb.ListConsumersResponse:
        response = pb.ListConsumersResponse()
        async for channel in self._listed(request.channel):
            response.consumers.extend(consumer_message(channel.name, one) for one in channel.list_consumers())
        return response


def _may(permission: Permission, component: Component) -> bool:
    """Whether the caller may do this on a channel of a component."""
    call = current_call()
    return any(call.may(permission, channel) for channel in component.channels)


def _interval_seconds(request: pb.WatchChannelsRequest | pb.WatchComponentsRequest) -> float:
    return max(seconds_of("interval", request.interval) or WATCH_SECONDS_DEFAULT, WATCH_SECONDS_MIN)


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
