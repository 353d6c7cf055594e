"""Decodes answers into the client's types."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
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

CHANNEL_TYPES = {
    admin_pb.CHANNEL_TYPE_MEMORY: ChannelType.MEMORY,
    admin_pb.CHANNEL_TYPE_FILE: ChannelType.FILE,
    admin_pb.CHANNEL_TYPE_SPILLABLE: ChannelType.SPILLABLE,
    admin_pb.CHANNEL_TYPE_REPLICATED: ChannelType.REPLICATED,
}
"""Channel types by their number on the wire."""
FSYNC_POLICIES = {
    admin_pb.FSYNC_POLICY_COMMIT: FsyncPolicy.COMMIT,
    admin_pb.FSYNC_POLICY_INTERVAL: FsyncPolicy.INTERVAL,
}
COMPRESSIONS = {
    admin_pb.COMPRESSION_NONE: Compression.NONE,
    admin_pb.COMPRESSION_ZSTD: Compression.ZSTD,
}
CHANNEL_STATES = {
    admin_pb.CHANNEL_STATE_OPEN: ChannelState.OPEN,
    admin_pb.CHANNEL_STATE_REPLAYING: ChannelState.REPLAYING,
    admin_pb.CHANNEL_STATE_LOG_FAILED: ChannelState.LOG_FAILED,
    admin_pb.CHANNEL_STATE_STALLED: ChannelState.STALLED,
    admin_pb.CHANNEL_STATE_CORRUPT: ChannelState.CORRUPT,
    admin_pb.CHANNEL_STATE_STANDING_BY: ChannelState.STANDING_BY,
    admin_pb.CHANNEL_STATE_DISK_FULL: ChannelState.DISK_FULL,
}
COMPONENT_KINDS = {
    admin_pb.COMPONENT_KIND_SOURCE: ComponentKind.SOURCE,
    admin_pb.COMPONENT_KIND_SINK: ComponentKind.SINK,
    admin_pb.COMPONENT_KIND_SINK_GROUP: ComponentKind.SINK_GROUP,
}
COMPONENT_STATES = {
    admin_pb.COMPONENT_STATE_STARTING: ComponentState.STARTING,
    admin_pb.COMPONENT_STATE_RUNNING: ComponentState.RUNNING,
    admin_pb.COMPONENT_STATE_BACKING_OFF: ComponentState.BACKING_OFF,
    admin_pb.COMPONENT_STATE_FAILED: ComponentState.FAILED,
    admin_pb.COMPONENT_STATE_STOPPED: ComponentState.STOPPED,
    admin_pb.COMPONENT_STATE_STANDING_BY: ComponentState.STANDING_BY,
}

_NANOSECONDS = 1e-9
_CountsT = TypeVar("_CountsT", ChannelGauges, ChannelCounters, ComponentCounters)


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
    """Returns a duration in seconds."""
    return duration.seconds + duration.nanos * _NANOSECONDS


def time_if_said(message: Any, field: str) -> datetime | None:
    """Returns a time of a message, UTC; None if it is absent."""
    return getattr(message, field).ToDatetime(UTC) if message.HasField(field) else None


def nothing(_answer: object) -> None:
    """Decodes an empty answer."""


def receipt(answer: pb.CommitResponse | pb.AppendResponse) -> Receipt:
    """Decodes the receipt of an append or a commit."""
    commit_time = time_if_said(answer, "commit_time")
    return Receipt(answer.first_sequence, answer.last_sequence, answer.deduplicated, commit_time)


def found_sequence(answer: pb.FindSequenceResponse) -> FoundSequence:
    """Decodes the result of a FindSequence."""
    return FoundSequence(answer.sequence, time_if_said(answer, "commit_time"))


def batch(wire_batch: event_pb2.EventBatch, *, skipped_events: int = 0) -> Batch:
    """Decodes a batch in columns."""
    times = CommitTimes.of(wire_batch)
    return Batch(wire_batch.first_sequence, wire_batch.columns, skipped_events=skipped_events, times=times)


def batches(wire_batches: Iterable[event_pb2.EventBatch]) -> list[Batch]:
    """Decodes batches in columns."""
    return list(map(batch, wire_batches))


def taken(answer: pb.TakeResponse) -> Taken:
    """Decodes the result of a Take."""
    return Taken(batches(answer.batches), answer.take_count)


def claim_grant(answer: pb.ClaimResponse) -> ClaimGrant:
    """Decodes the result of a Claim."""
    return ClaimGrant(
        first_sequence=answer.first_sequence,
        next_sequence=answer.next_sequence,
        epoch=answer.epoch,
        channel_id=answer.channel_id,
        lease_seconds=seconds_of(answer.lease),
    )


def read_batch(answer: pb.ReadResponse) -> Batch:
    """Decodes a batch that was read."""
    return batch(answer.batch)


def peeked_batch(answer: admin_pb.PeekEventsResponse) -> Batch:
    """Decodes a batch that was peeked at."""
    return batch(answer.batch, skipped_events=answer.skipped_events)


def channel_info(channel: admin_pb.Channel) -> ChannelInfo:
    """Decodes a channel."""
    return ChannelInfo(
        name=channel.name,
        channel_id=channel.channel_id,
        config=_limits(channel.config),
        gauges=_counts(ChannelGauges, channel.gauges),
        counters=_counts(ChannelCounters, channel.counters),
        claim=_claim_status(channel.claim) if channel.HasField("claim") else None,
        start_time=channel.start_time.ToDatetime(UTC),
        state=CHANNEL_STATES.get(channel.state, ChannelState.UNKNOWN),
        fault=channel.fault,
        replayed_fraction=channel.replayed_fraction,
        is_configured=channel.is_configured,
        is_overridden=channel.is_overridden,
        owner=channel.owner,
    )


def channel_infos(answer: admin_pb.ListChannelsResponse | admin_pb.WatchChannelsResponse) -> list[ChannelInfo]:
    """Decodes channels, ordered by name."""
    return [channel_info(channel) for channel in answer.channels]


def channel_update(answer: admin_pb.UpdateChannelResponse) -> ChannelUpdate:
    """Decodes the result of an update."""
    return ChannelUpdate(channel=channel_info(answer.channel), applied=answer.applied, message=answer.message)


def component_info(component: admin_pb.Component) -> ComponentInfo:
    """Decodes a component."""
    return ComponentInfo(
        kind=COMPONENT_KINDS.get(component.kind, ComponentKind.UNKNOWN),
        name=component.name,
        type=component.type,
        state=COMPONENT_STATES.get(component.state, ComponentState.UNKNOWN),
        reason=component.reason,
        since=component.since.ToDatetime(UTC),
        counters=_counts(ComponentCounters, component.counters),
        progress_age_seconds=_seconds_if_said(component, "progress_age"),
        channels=tuple(component.channels),
    )


def component_infos(
    answer: admin_pb.ListComponentsResponse | admin_pb.WatchComponentsResponse,
) -> list[ComponentInfo]:
    """Decodes components, ordered by kind and name."""
    return [component_info(component) for component in answer.components]


def retried_component(answer: admin_pb.RetryComponentResponse) -> ComponentInfo:
    """Decodes the component that tries again."""
    return component_info(answer.component)


def released_claim(answer: admin_pb.ReleaseClaimResponse) -> ClaimStatus:
    """Decodes the claim that was ended."""
    return _claim_status(answer.claim)


def open_transactions(answer: admin_pb.ListTransactionsResponse) -> list[OpenTransaction]:
    """Decodes open transactions, by channel, the oldest first."""
    return [
        OpenTransaction(
            txn_id=txn.txn_id,
            channel=txn.channel,
            put_count=txn.put_count,
            take_count=txn.take_count,
            body_bytes=txn.body_bytes,
            start_time=txn.start_time.ToDatetime(UTC),
            lease_remaining_seconds=_seconds_if_said(txn, "lease_remaining"),
            identity=txn.identity,
            peer=txn.peer,
            is_delivery=txn.is_delivery,
        )
        for txn in answer.transactions
    ]


def consumer_infos(answer: admin_pb.ListConsumersResponse) -> list[ConsumerInfo]:
    """Decodes consumers, by channel, the oldest first."""
    return [
        ConsumerInfo(
            channel=consumer.channel,
            peer=consumer.peer,
            identity=consumer.identity,
            open_deliveries=consumer.open_deliveries,
            open_events=consumer.open_events,
            start_time=consumer.start_time.ToDatetime(UTC),
        )
        for consumer in answer.consumers
    ]


def producer_infos(answer: admin_pb.ListProducersResponse) -> list[ProducerInfo]:
    """Decodes producers, the least recently active first."""
    return [
        ProducerInfo(
            producer_id=producer.producer_id,
            last_sequence=producer.last_sequence,
            gap_count=producer.gap_count,
            last_seen=time_if_said(producer, "last_seen"),
            identity=producer.identity,
        )
        for producer in answer.producers
    ]


def _limits(config: admin_pb.ChannelConfig) -> ChannelLimits:
    return ChannelLimits(
        type=CHANNEL_TYPES[config.type],
        capacity=config.capacity,
        transaction_capacity=config.transaction_capacity,
        byte_capacity=config.byte_capacity,
        byte_capacity_buffer_percentage=config.byte_capacity_buffer_percentage,
        keep_alive_seconds=seconds_of(config.keep_alive),
        lease_seconds=seconds_of(config.lease),
        open_transactions_max=config.open_transactions_max,
        backup_checkpoint=config.backup_checkpoint if config.HasField("backup_checkpoint") else None,
        checkpoint_interval_seconds=_seconds_if_said(config, "checkpoint_interval"),
        segment_bytes_max=config.segment_bytes_max if config.HasField("segment_bytes_max") else None,
        min_free_bytes=config.min_free_bytes if config.HasField("min_free_bytes") else None,
        fsync=FSYNC_POLICIES.get(config.fsync),
        fsync_interval_seconds=_seconds_if_said(config, "fsync_interval"),
        compression=COMPRESSIONS.get(config.compression),
        memory_capacity=config.memory_capacity if config.HasField("memory_capacity") else None,
        memory_byte_capacity=config.memory_byte_capacity if config.HasField("memory_byte_capacity") else None,
        retention_seconds=_seconds_if_said(config, "retention") or None,
        active_key=config.active_key,
    )


def _seconds_if_said(message: Any, field: str) -> float | None:
    return seconds_of(getattr(message, field)) if message.HasField(field) else None


def _counts(
    kind: type[_CountsT], message: admin_pb.ChannelGauges | admin_pb.ChannelCounters | admin_pb.ComponentCounters
) -> _CountsT:
    return kind(**{field.name: _figure(message, field.name) for field in fields(kind)})


def _figure(message: Any, name: str) -> Any:
    match getattr(message, name):
        case int() as count:
            return count
        case Timestamp():
            return time_if_said(message, name)
        case by_reason:
            return dict(by_reason)


def _claim_status(claim: admin_pb.ClaimStatus) -> ClaimStatus:
    return ClaimStatus(reader_id=claim.reader_id, epoch=claim.epoch, remaining_seconds=seconds_of(claim.remaining))
