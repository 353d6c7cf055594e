"""A channel as AdminService tells of it."""

from datetime import UTC, datetime

from millrace.v1 import admin_service_pb2 as pb
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import ChannelConfig
from millrace_server.grpc_services.durations import duration

CHANNEL_TYPES = {pb.CHANNEL_TYPE_MEMORY: "memory"}
"""The types that can be made, by their number on the wire."""

_TYPE_NUMBERS = {name: number for number, name in CHANNEL_TYPES.items()}


def channel_message(channel: Channel) -> pb.Channel:
    """The channel as it stands at this moment."""
    contents = channel.contents
    counters = contents.counters
    return pb.Channel(
        name=channel.name,
        channel_id=channel.channel_id,
        config=_config_message(channel.config),
        gauges=pb.ChannelGauges(
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
        ),
        counters=pb.ChannelCounters(
            event_put_attempt_count=counters.put_attempts,
            event_put_success_count=counters.put_successes,
            event_take_attempt_count=counters.take_attempts,
            event_take_success_count=counters.take_successes,
            commit_count=counters.commits,
            rollback_count=counters.rollbacks,
            lease_expired_count=counters.leases_expired,
            deduplicated_count=counters.deduplicated,
        ),
        claim=_claim_message(channel),
        start_time=datetime.fromtimestamp(channel.start_time, UTC),
    )


def _config_message(config: ChannelConfig) -> pb.ChannelConfig:
    return pb.ChannelConfig(
        type=_TYPE_NUMBERS[config.type],
        capacity=config.capacity,
        transaction_capacity=config.transaction_capacity,
        byte_capacity=config.byte_capacity,
        byte_capacity_buffer_percentage=config.byte_capacity_buffer_percentage,
        keep_alive=duration(config.keep_alive_seconds),
        lease=duration(config.lease_seconds),
        open_transactions_max=config.open_transactions_max,
    )


def _claim_message(channel: Channel) -> pb.ClaimStatus | None:
    claim = channel.claims.claim
    if claim is None:
        return None
    return pb.ClaimStatus(
        reader_id=claim.reader_id, epoch=claim.epoch, remaining=duration(claim.lease.remaining_seconds)
    )
