"""Decodes responses into the client's types."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from millrace.columns import CommitTimes
from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace_client.activity_info import ConsumerInfo, OpenTransaction, ProducerInfo
from millrace_client.channel_info import (
    ChannelCounters,
    ChannelGauges,
    ChannelInfo,
    ChannelLimits,
    ChannelState,
    ChannelType,
    ChannelUpdate,
    ClaimStatus,
    Compression,
    FsyncPolicy,
)
from millrace_client.component_info import ComponentCounters, ComponentInfo, ComponentKind, ComponentState
from millrace_client.events import Batch, FoundSequence, Receipt

InfoT = TypeVar("InfoT")
WordT = TypeVar("WordT", bound=StrEnum)

_NANOSECONDS = 1e-9


def _words(wire: Any, prefix: str, words: type[WordT]) -> dict[Any, WordT]:
    """Returns words by their numbers on the wire, where their names have a prefix."""
    return {wire.Value(prefix + word.name): word for word in words if word.name != "UNKNOWN"}


CHANNEL_TYPES = _words(admin_pb.ChannelType, "CHANNEL_TYPE_", ChannelType)
FSYNC_POLICIES = _words(admin_pb.FsyncPolicy, "FSYNC_POLICY_", FsyncPolicy)
COMPRESSIONS = _words(admin_pb.Compression, "COMPRESSION_", Compression)
CHANNEL_STATES = _words(admin_pb.ChannelState, "CHANNEL_STATE_", ChannelState)
COMPONENT_KINDS = _words(admin_pb.ComponentKind, "COMPONENT_KIND_", ComponentKind)
COMPONENT_STATES = _words(admin_pb.ComponentState, "COMPONENT_STATE_", ComponentState)


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a Take."""

    batches: list[Batch]
    take_count: int


@dataclass(frozen=True, slots=True)
class ClaimGrant:
    """The result of a Claim."""

    first_sequence: int
    next_sequence: int
    epoch: int
    channel_id: str
    lease_seconds: float


def seconds_of(duration: Duration) -> float:
    return duration.seconds + duration.nanos * _NANOSECONDS


def time_if_said(message: Any, field: str) -> datetime | None:
    """Returns a time of a message, UTC; None if it is absent."""
    return getattr(message, field).ToDatetime(UTC) if message.HasField(field) else None


def nothing(_response: object) -> None:
    """Decodes an empty response."""


def receipt(response: pb.CommitResponse | pb.AppendResponse) -> Receipt:
    commit_time = time_if_said(response, "commit_time")
    return Receipt(response.first_sequence, response.last_sequence, response.deduplicated, commit_time)


def found_sequence(response: pb.FindSequenceResponse) -> FoundSequence:
    return FoundSequence(response.sequence, time_if_said(response, "commit_time"))


def batch(wire_batch: event_pb2.EventBatch, *, skipped_events: int = 0) -> Batch:
    times = CommitTimes.of(wire_batch)
    return Batch(wire_batch.first_sequence, wire_batch.columns, skipped_events=skipped_events, times=times)


def batches(wire_batches: Iterable[event_pb2.EventBatch]) -> list[Batch]:
    return list(map(batch, wire_batches))


def taken(response: pb.TakeResponse) -> Taken:
    return Taken(batches(response.batches), response.take_count)


def claim_grant(response: pb.ClaimResponse) -> ClaimGrant:
    return _info(ClaimGrant, response)


def read_batch(response: pb.ReadResponse) -> Batch:
    return batch(response.batch)


def peeked_batch(response: admin_pb.PeekEventsResponse) -> Batch:
    return batch(response.batch, skipped_events=response.skipped_events)


def channel_info(channel: admin_pb.Channel) -> ChannelInfo:
    return _info(
        ChannelInfo,
        channel,
        config=_limits(channel.config),
        gauges=_info(ChannelGauges, channel.gauges),
        counters=_info(ChannelCounters, channel.counters),
        claim=_info(ClaimStatus, channel.claim) if channel.HasField("claim") else None,
        # In 1970 for a channel that is not open.
        start_time=channel.start_time.ToDatetime(UTC),
        state=CHANNEL_STATES.get(channel.state, ChannelState.UNKNOWN),
    )


def channel_infos(response: admin_pb.ListChannelsResponse | admin_pb.WatchChannelsResponse) -> list[ChannelInfo]:
    return [channel_info(channel) for channel in response.channels]


def channel_update(response: admin_pb.UpdateChannelResponse) -> ChannelUpdate:
    return _info(ChannelUpdate, response, channel=channel_info(response.channel))


def component_info(component: admin_pb.Component) -> ComponentInfo:
    return _info(
        ComponentInfo,
        component,
        kind=COMPONENT_KINDS.get(component.kind, ComponentKind.UNKNOWN),
        state=COMPONENT_STATES.get(component.state, ComponentState.UNKNOWN),
        counters=_info(ComponentCounters, component.counters),
        channels=tuple(component.channels),
    )


def component_infos(
    response: admin_pb.ListComponentsResponse | admin_pb.WatchComponentsResponse,
) -> list[ComponentInfo]:
    return [component_info(component) for component in response.components]


def retried_component(response: admin_pb.RetryComponentResponse) -> ComponentInfo:
    return component_info(response.component)


def released_claim(response: admin_pb.ReleaseClaimResponse) -> ClaimStatus:
    return _info(ClaimStatus, response.claim)


def open_transactions(response: admin_pb.ListTransactionsResponse) -> list[OpenTransaction]:
    return [_info(OpenTransaction, txn) for txn in response.transactions]


def consumer_infos(response: admin_pb.ListConsumersResponse) -> list[ConsumerInfo]:
    return [_info(ConsumerInfo, consumer) for consumer in response.consumers]


def producer_infos(response: admin_pb.ListProducersResponse) -> list[ProducerInfo]:
    return [_info(ProducerInfo, producer) for producer in response.producers]


def _limits(config: admin_pb.ChannelConfig) -> ChannelLimits:
    limits = _info(
        ChannelLimits,
        config,
        type=CHANNEL_TYPES[config.type],
        fsync=FSYNC_POLICIES.get(config.fsync),
        compression=COMPRESSIONS.get(config.compression),
    )
    return limits if limits.retention_seconds else replace(limits, retention_seconds=None)


def _info(kind: type[InfoT], message: Any, /, **decoded: Any) -> InfoT:
    """Returns a dataclass with the fields of a message, except those that are decoded already."""
    names = (field.name for field in fields(kind) if field.name not in decoded)  # type: ignore[arg-type] # a dataclass
    return kind(**{name: _value(message, name) for name in names}, **decoded)


def _value(message: Any, name: str) -> Any:
    """Returns a field of a message, under the client's name for it; None if it is absent."""
    name = name.removesuffix("_seconds")
    if message.DESCRIPTOR.fields_by_name[name].has_presence and not message.HasField(name):
        return None
    match getattr(message, name):
        case Timestamp() as time:
            return time.ToDatetime(UTC)
        case Duration() as duration:
            return seconds_of(duration)
        case Mapping() as by_reason:
            return dict(by_reason)
        case value:
            return value
