"""Gauges that only some channels have, such as the time of the oldest event."""

from typing import NamedTuple

from millrace_server.channels.channel import Channel, ChannelGauges
from millrace_server.channels.log_store import LogStore

_MICROSECONDS = 1_000_000


class OccasionalGauge(NamedTuple):
    """A gauge that is absent for channels without a value."""

    key: str
    """Its name in JSON, where an absent value is null."""
    name: str
    """Its name for Prometheus."""
    help: str


OCCASIONAL_GAUGES = (
    OccasionalGauge(
        "OldestEventTime",
        "millrace_channel_oldest_event_timestamp_seconds",
        "When the oldest event, queued or taken, was committed, since 1970; absent without events.",
    ),
    OccasionalGauge(
        "LastPutTime",
        "millrace_channel_last_put_timestamp_seconds",
        "When a commit last stored events, since 1970; absent if none has since the opening.",
    ),
    OccasionalGauge(
        "LastTakeTime",
        "millrace_channel_last_take_timestamp_seconds",
        "When events were last returned to a consumer or reader, since 1970; absent if none were since the opening.",
    ),
    OccasionalGauge(
        "ClaimStartTime",
        "millrace_channel_claim_start_timestamp_seconds",
        "When the claim began, or the channel was opened with it, since 1970; absent without a claim.",
    ),
    OccasionalGauge(
        "CheckpointTime",
        "millrace_channel_last_checkpoint_timestamp_seconds",
        "When the newest checkpoint was made, since 1970; absent if none was since the opening.",
    ),
    OccasionalGauge(
        "SecondsToFull",
        "millrace_channel_time_to_full_seconds",
        "Time until the channel is full, at its net growth of the last minute or two; absent while it does not grow.",
    ),
    OccasionalGauge(
        "SecondsToEmpty",
        "millrace_channel_time_to_empty_seconds",
        "Time until the channel is empty, at its net decline of the last minute or two; absent while it does not.",
    ),
)


def occasional_values(channel: Channel, gauges: ChannelGauges, store: LogStore | None) -> list[float | None]:
    """Returns the values of OCCASIONAL_GAUGES, in their order."""
    claim = channel.claims.claim
    return [
        gauges.oldest_commit_time / _MICROSECONDS or None,
        gauges.last_put_time / _MICROSECONDS or None,
        gauges.last_take_time / _MICROSECONDS or None,
        None if claim is None else claim.start_time,
        None if store is None else store.checkpoint_time or None,
        *channel.forecast(),
    ]
