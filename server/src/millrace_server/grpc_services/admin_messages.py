"""Channels and components as AdminService's messages, and the limits that its requests set."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from millrace.setting_problems import describe_problems, shown_value
from millrace.v1 import admin_service_pb2 as pb
from millrace_server.agent.components import Component, ComponentKind, ComponentState, EventOutcome
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.config import AnyChannelConfig, ChannelConfig, LogChannelConfig
from millrace_server.channels.counters import ChannelCounters
from millrace_server.errors import BadArgumentError
from millrace_server.grpc_services.messages import duration_of, seconds_of

CHANNEL_TYPES = {
    pb.CHANNEL_TYPE_MEMORY: "memory",
    pb.CHANNEL_TYPE_FILE: "file",
    pb.CHANNEL_TYPE_SPILLABLE: "spillable",
}
"""The channel types by their enum number."""
FSYNC_POLICIES = {pb.FSYNC_POLICY_COMMIT: "commit", pb.FSYNC_POLICY_INTERVAL: "interval"}
COMPRESSIONS = {pb.COMPRESSION_NONE: "none", pb.COMPRESSION_ZSTD: "zstd"}

_CONFIG: TypeAdapter[AnyChannelConfig] = TypeAdapter(AnyChannelConfig)
_DURATIONS = {field: f"{field}_seconds" for field in ("keep_alive", "lease", "checkpoint_interval", "fsync_interval")}
_WIRE_NAMES = {limit: field for field, limit in _DURATIONS.items()}
_WORDS: dict[str, tuple[Any, Mapping[Any, str]]] = {
    "fsync": (pb.FsyncPolicy, FSYNC_POLICIES),
    "compression": (pb.Compression, COMPRESSIONS),
}
_TYPE_NUMBERS = {name: number for number, name in CHANNEL_TYPES.items()}
_FSYNC_NUMBERS = {name: number for number, name in FSYNC_POLICIES.items()}
_COMPRESSION_NUMBERS = {name: number for number, name in COMPRESSIONS.items()}


_CHANNEL_STATES = {
    ChannelState.OPEN: pb.CHANNEL_STATE_OPEN,
    ChannelState.REPLAYING: pb.CHANNEL_STATE_REPLAYING,
    ChannelState.LOG_FAILED: pb.CHANNEL_STATE_LOG_FAILED,
    ChannelState.CORRUPT: pb.CHANNEL_STATE_CORRUPT,
    ChannelState.STALLED: pb.CHANNEL_STATE_STALLED,
}


def channel_message(handle: ChannelHandle) -> pb.Channel:
    """Returns the current state of a channel, open or not."""
    channel = handle.channel_if_open
    message = pb.Channel(
        name=handle.name,
        config=_config_message(handle.config),
        state=_CHANNEL_STATES[handle.state],
        fault=handle.trouble,
        replayed_fraction=handle.replayed_fraction,
    )
    if channel is not None:
        message.channel_id = channel.channel_id
        message.gauges.CopyFrom(_gauges_message(channel))
        message.counters.CopyFrom(_counters_message(channel.counters))
        message.start_time.FromDatetime(datetime.fromtimestamp(channel.start_time, UTC))
        if claim := _claim_message(channel):
            message.claim.CopyFrom(claim)
    if handle.store is not None:
        message.gauges.log_bytes = handle.store.log_bytes
        message.gauges.segments = handle.store.segment_count
    return message


def _gauges_message(channel: Channel) -> pb.ChannelGauges:
    # The message has the names of the gauges.
    return pb.ChannelGauges(**asdict(channel.gauges()))


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
        keep_alive=duration_of(config.keep_alive_seconds),
        lease=duration_of(config.lease_seconds),
        open_transactions_max=config.open_transactions_max,
    )
    if (log := config.log) is not None:
        message.MergeFrom(_log_config_message(log))
    if (spillable := config.spillable) is not None:
        message.memory_capacity = spillable.memory_capacity
        message.memory_byte_capacity = spillable.memory_byte_capacity
    return message


def _log_config_message(config: LogChannelConfig) -> pb.ChannelConfig:
    """Returns the limits that only channels with a log have."""
    return pb.ChannelConfig(
        backup_checkpoint=config.backup_checkpoint,
        checkpoint_interval=duration_of(config.checkpoint_interval_seconds),
        segment_bytes_max=config.segment_bytes_max,
        min_free_bytes=config.min_free_bytes,
        fsync=_FSYNC_NUMBERS[config.fsync],
        fsync_interval=duration_of(config.fsync_interval_seconds),
        compression=_COMPRESSION_NUMBERS[config.compression],
        active_key=config.encryption.active_key if config.encryption else "",
    )


def _claim_message(channel: Channel) -> pb.ClaimStatus | None:
    claim = channel.claims.claim
    if claim is None:
        return None
    return pb.ClaimStatus(
        reader_id=claim.reader_id, epoch=claim.epoch, remaining=duration_of(claim.lease.remaining_seconds)
    )


def limits_of(config: pb.ChannelConfig) -> dict[str, object]:
    """Returns the limits that a request sets, under the field names of the server's ChannelConfig."""
    limits: dict[str, object] = {}
    for field, value in config.ListFields():
        if field.name == "active_key":
            raise BadArgumentError(
                f"config.active_key: is {shown_value(value)}; it must be absent, since keys are set in the server's "
                "configuration file"
            )
        if field.name in _DURATIONS:
            limits[_DURATIONS[field.name]] = seconds_of(f"config.{field.name}", value)
        elif field.name in _WORDS:
            limits[field.name] = _word(field.name, value)
        elif field.name != "type":
            limits[field.name] = value
    return limits


def _word(field: str, number: int) -> str:
    """Returns the configuration file's word for an enum number."""
    enum, words = _WORDS[field]
    if number not in words:
        allowed = " or ".join(map(enum.Name, words))
        raise BadArgumentError(f"config.{field}: is {number}; it must be {allowed}")
    return words[number]


def checked_config(limits: dict[str, object]) -> AnyChannelConfig:
    """Returns a valid configuration.

    Raises:
        BadArgumentError: A limit is not allowed; the message names all problems.
    """
    try:
        return _CONFIG.validate_python(limits)
    except ValidationError as error:
        problems = map(_in_wire_names, describe_problems(error, AnyChannelConfig))
        raise BadArgumentError("; ".join(problems)) from None


def check_changeable(former: ChannelConfig, config: ChannelConfig) -> None:
    """Refuses a change of a limit that is fixed at creation.

    Raises:
        BadArgumentError: The change is not allowed.
    """
    before, after = former.log, config.log
    if before is not None and after is not None and before.backup_checkpoint != after.backup_checkpoint:
        raise BadArgumentError(
            f"config.backup_checkpoint: is {shown_value(after.backup_checkpoint)}; it cannot be "
            f"changed from {shown_value(before.backup_checkpoint)} after the channel was created"
        )


def _in_wire_names(problem: str) -> str:
    limit, colon, rest = problem.partition(":")
    return f"config.{_WIRE_NAMES.get(limit, limit)}{colon}{rest}"


def type_name(config: pb.ChannelConfig) -> str:
    """Returns the name of a channel type, or the number of an unknown one."""
    known = config.type in pb.ChannelType.values()
    return pb.ChannelType.Name(config.type) if known else str(config.type)


_COMPONENT_KINDS = {
    ComponentKind.SOURCE: pb.COMPONENT_KIND_SOURCE,
    ComponentKind.SINK: pb.COMPONENT_KIND_SINK,
    ComponentKind.SINK_GROUP: pb.COMPONENT_KIND_SINK_GROUP,
}
_COMPONENT_STATES = {
    ComponentState.STARTING: pb.COMPONENT_STATE_STARTING,
    ComponentState.RUNNING: pb.COMPONENT_STATE_RUNNING,
    ComponentState.BACKING_OFF: pb.COMPONENT_STATE_BACKING_OFF,
    ComponentState.FAILED: pb.COMPONENT_STATE_FAILED,
    ComponentState.STOPPED: pb.COMPONENT_STATE_STOPPED,
    ComponentState.STANDING_BY: pb.COMPONENT_STATE_STANDING_BY,
}


def component_message(component: Component) -> pb.Component:
    """Returns the current state of a component."""
    message = pb.Component(
        kind=_COMPONENT_KINDS[component.kind],
        name=component.name,
        type=component.type_name,
        state=_COMPONENT_STATES[component.state],
        # A reason may quote any text, such as a file name with surrogates; protobuf accepts only valid Unicode.
        reason=component.reason.encode(errors="replace").decode(),
        counters=_component_counters(component),
    )
    message.since.FromDatetime(datetime.fromtimestamp(component.since, UTC))
    if (seconds := component.progress_age_seconds) is not None:
        message.progress_age.CopyFrom(duration_of(seconds))
    return message


def _component_counters(component: Component) -> pb.ComponentCounters:
    return pb.ComponentCounters(
        event_count=component.event_count,
        batch_count=component.batch_count,
        body_bytes=component.byte_count,
        failure_count=component.failure_count,
        filtered_count=component.outcome_counts[EventOutcome.FILTERED],
        unrouted_count=component.outcome_counts[EventOutcome.UNROUTED],
        dead_lettered_count=component.outcome_counts[EventOutcome.DEAD_LETTERED],
        dropped_count=component.outcome_counts[EventOutcome.DROPPED],
        missed_count=component.outcome_counts[EventOutcome.MISSED],
    )
