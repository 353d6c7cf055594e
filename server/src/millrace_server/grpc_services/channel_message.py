"""A channel as AdminService tells of it."""

from datetime import UTC, datetime

from millrace.v1 import admin_service_pb2 as pb
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import ChannelConfig, LogChannelConfig, SpillableChannelConfig
from millrace_server.channels.counters import ChannelCounters
from millrace_server.channels.hosted import ChannelState, HostedChannel
from millrace_server.grpc_services.durations import duration

CHANNEL_TYPES = {
    pb.CHANNEL_TYPE_MEMORY: "memory",
    pb.CHANNEL_TYPE_FILE: "file",
    pb.CHANNEL_TYPE_SPILLABLE: "spillable",
}
"""The types that can be made, by their number on the wire."""
FSYNC_POLICIES = {pb.FSYNC_POLICY_COMMIT: "commit", pb.FSYNC_POLICY_INTERVAL: "interval"}
"""When a log may be synced, likewise."""
COMPRESSIONS = {pb.COMPRESSION_NONE: "none", pb.COMPRESSION_ZSTD: "zstd"}
"""What may pack records, likewise."""

_TYPE_NUMBERS = {name: number for number, name in CHANNEL_TYPES.items()}
_FSYNC_NUMBERS = {name: number for number, name in FSYNC_POLICIES.items()}
_COMPRESSION_NUMBERS = {name: number for number, name in COMPRESSIONS.items()}


_STATE_NUMBERS = {
    ChannelState.OPEN: pb.CHANNEL_STATE_OPEN,
    ChannelState.REPLAYING: pb.CHANNEL_STATE_REPLAYING,
    ChannelState.LOG_FAILED: pb.CHANNEL_STATE_LOG_FAILED,
    ChannelState.CORRUPT: pb.CHANNEL_STATE_CORRUPT,
    ChannelState.STALLED: pb.CHANNEL_STATE_STALLED,
}


def channel_message(hosted: HostedChannel) -> pb.Channel:
    """The channel as it stands at this moment, open or not."""
    channel = hosted.channel_if_open
    message = pb.Channel(
        name=hosted.name,
        config=_config_message(hosted.config),
        state=_STATE_NUMBERS[hosted.state],
        fault=hosted.trouble,
        replayed_fraction=hosted.replayed_fraction,
    )
    if channel is not None:
        message.channel_id = channel.channel_id
        message.gauges.CopyFrom(_gauges_message(channel))
        message.counters.CopyFrom(_counters_message(channel.contents.counters))
        message.start_time.FromDatetime(datetime.fromtimestamp(channel.start_time, UTC))
        if claim := _claim_message(channel):
            message.claim.CopyFrom(claim)
    if hosted.store is not None:
        message.gauges.log_bytes = hosted.store.log_bytes
        message.gauges.segments = hosted.store.segment_count
    return message


def _gauges_message(channel: Channel) -> pb.ChannelGauges:
    contents = channel.contents
    return pb.ChannelGauges(
        queued_events=contents.queue.event_count,
        taken_events=contents.taken_count,
        body_bytes=contents.room.body_bytes,
        body_bytes_max=contents.room.body_bytes_max,
        open_transactions=channel.open_transactions,
        first_sequence=contents.first_sequence,
        next_sequence=contents.next_sequence,
        producers=len(contents.ledger),
        waiting_takes=len(contents.takers),
        waiting_commits=len(contents.room.line),
        memory_events=channel.commits.memory_event_count,
    )


def _counters_message(counters: ChannelCounters) -> pb.ChannelCounters:
    return pb.ChannelCounters(
        event_put_attempt_count=counters.put_attempts,
        event_put_success_count=counters.put_successes,
        event_take_attempt_count=counters.take_attempts,
        event_take_success_count=counters.take_successes,
        commit_count=counters.commits,
        rollback_count=counters.rollbacks,
        lease_expired_count=counters.leases_expired,
        deduplicated_count=counters.deduplicated,
    )


def _config_message(config: ChannelConfig) -> pb.ChannelConfig:
    message = pb.ChannelConfig(
        type=_TYPE_NUMBERS[config.type],
        capacity=config.capacity,
        transaction_capacity=config.transaction_capacity,
        byte_capacity=config.byte_capacity,
        byte_capacity_buffer_percentage=config.byte_capacity_buffer_percentage,
        keep_alive=duration(config.keep_alive_seconds),
        lease=duration(config.lease_seconds),
        open_transactions_max=config.open_transactions_max,
    )
    if isinstance(config, LogChannelConfig):
        message.MergeFrom(_log_config_message(config))
    if isinstance(config, SpillableChannelConfig):
        message.memory_capacity = config.memory_capacity
        message.memory_byte_capacity = config.memory_byte_capacity
    return message


def _log_config_message(config: LogChannelConfig) -> pb.ChannelConfig:
    """What only a channel with a log has."""
    return pb.ChannelConfig(
        backup_checkpoint=config.backup_checkpoint,
        checkpoint_interval=duration(config.checkpoint_interval_seconds),
        segment_bytes_max=config.segment_bytes_max,
        min_free_bytes=config.min_free_bytes,
        fsync=_FSYNC_NUMBERS[config.fsync],
        fsync_interval=duration(config.fsync_interval_seconds),
        compression=_COMPRESSION_NUMBERS[config.compression],
        active_key=config.encryption.active_key if config.encryption else "",
    )


def _claim_message(channel: Channel) -> pb.ClaimStatus | None:
    claim = channel.claims.claim
    if claim is None:
        return None
    return pb.ClaimStatus(
        reader_id=claim.reader_id, epoch=claim.epoch, remaining=duration(claim.lease.remaining_seconds)
    )
