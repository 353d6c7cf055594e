"""Channels and components as AdminService's messages, and the limits that its requests set."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import ConfigDict, TypeAdapter, ValidationError

from millrace.setting_problems import describe_problems, shown_value
from millrace.v1 import admin_service_pb2 as pb
from millrace_server.agent.components import Component, ComponentKind
from millrace_server.channels.activity import ConsumerInfo, OpenTransaction, ProducerInfo
from millrace_server.channels.channel_handle import ChannelHandle
from millrace_server.channels.claims import Claim
from millrace_server.channels.config import RETENTION_SECONDS_MAX, AnyChannelConfig, ChannelConfig
from millrace_server.channels.contents import ChannelCounters
from millrace_server.errors import BadArgumentError
from millrace_server.grpc_services.messages import duration_of, seconds_of, timestamp_of

NUMBERS: Mapping[str, Mapping[str, Any]] = {
    "type": {
        "memory": pb.CHANNEL_TYPE_MEMORY,
        "file": pb.CHANNEL_TYPE_FILE,
        "spillable": pb.CHANNEL_TYPE_SPILLABLE,
        "replicated": pb.CHANNEL_TYPE_REPLICATED,
    },
    "fsync": {"commit": pb.FSYNC_POLICY_COMMIT, "interval": pb.FSYNC_POLICY_INTERVAL},
    "compression": {"none": pb.COMPRESSION_NONE, "zstd": pb.COMPRESSION_ZSTD},
}
"""The enum numbers of the configuration file's words, by field."""

KINDS = {pb.ComponentKind.Value(f"COMPONENT_KIND_{kind.name}"): kind for kind in ComponentKind}
"""The kinds of components by their enum numbers."""

_ENUMS: Mapping[str, Any] = {"type": pb.ChannelType, "fsync": pb.FsyncPolicy, "compression": pb.Compression}
_CONFIG: TypeAdapter[AnyChannelConfig] = TypeAdapter(AnyChannelConfig, config=ConfigDict(defer_build=True))
_DURATIONS = {
    field: f"{field}_seconds" for field in ("keep_alive", "lease", "checkpoint_interval", "fsync_interval", "retention")
}
_WIRE_NAMES = {limit: field for field, limit in _DURATIONS.items()}


def channel_message(handle: ChannelHandle) -> pb.Channel:
    """Returns the current state of a channel, open or not."""
    channel = handle.channel_if_open
    message = pb.Channel(
        name=handle.name,
        config=_config_message(handle.config),
        state=f"CHANNEL_STATE_{handle.state.name}",
        fault=handle.trouble,
        replayed_fraction=handle.replayed_fraction,
        is_configured=handle.configured is not None,
        is_overridden=handle.is_overridden,
        owner=handle.owner.address if handle.owner else "",
    )
    if channel is not None:
        message.channel_id = channel.channel_id
        # The message has the names of the gauges, without those that others tell: the configuration and the claim.
        gauges = channel.gauges()._asdict()
        del gauges["capacity"], gauges["claims"]
        times = {name: timestamp_of(micros) for name, micros in gauges.items() if name.endswith("_time")}
        message.gauges.CopyFrom(pb.ChannelGauges(**gauges | times))
        message.counters.CopyFrom(_counters_message(channel.counters))
        message.start_time.CopyFrom(_timestamp(channel.start_time))
        if (claim := channel.claims.claim) is not None:
            message.claim.CopyFrom(claim_message(claim))
    if handle.store is not None:
        message.gauges.log_bytes = handle.store.log_bytes
        message.gauges.segments = handle.store.segment_count
        message.gauges.disk_free_bytes = max(handle.store.disk_space.free_bytes, 0)
        if seconds := handle.store.checkpoint_time:
            message.gauges.checkpoint_time.CopyFrom(_timestamp(seconds))
    return message


def claim_message(claim: Claim) -> pb.ClaimStatus:
    """Returns a claim."""
    remaining = duration_of(claim.lease.remaining_seconds)
    return pb.ClaimStatus(reader_id=claim.reader_id, epoch=claim.epoch, remaining=remaining)


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
        event_expired_count=counters.expired,
        refused=counters.refused,
    )


def _config_message(config: ChannelConfig) -> pb.ChannelConfig:
    """Returns the limits that a channel of this type has."""
    encryption = config.log.encryption if config.log is not None else None
    message = pb.ChannelConfig(active_key=encryption.active_key if encryption else None)
    for field in message.DESCRIPTOR.fields:
        value = getattr(config, _DURATIONS.get(field.name, field.name), None)
        if value is None:
            continue
        if field.name in _DURATIONS:
            getattr(message, field.name).CopyFrom(duration_of(value))
        else:
            setattr(message, field.name, NUMBERS[field.name][value] if field.name in NUMBERS else value)
    return message


def config_of(settings: Mapping[str, Any]) -> pb.ChannelConfig:
    """Returns settings of a channel, under their names in the configuration file, as requests have them."""
    config = pb.ChannelConfig()
    for name, value in settings.items():
        field = _WIRE_NAMES.get(name, name)
        if (field in _DURATIONS and field == name) or field not in config.DESCRIPTOR.fields_by_name:
            raise BadArgumentError(f"settings.{name}: is not known, or set in the server's configuration file only")
        try:
            if field in _DURATIONS:
                getattr(config, field).CopyFrom(duration_of(value or 0.0))
            else:
                setattr(config, field, NUMBERS[field][value] if field in NUMBERS else value)
        except (KeyError, OverflowError, TypeError, ValueError):
            raise BadArgumentError(f"settings.{name}: is {shown_value(value)}, which it cannot be") from None
    return config


def limits_of(config: pb.ChannelConfig) -> dict[str, object]:
    """Returns the limits that a request sets, under the field names of the server's ChannelConfig."""
    limits: dict[str, object] = {}
    for field, value in config.ListFields():
        if field.name == "active_key":
            raise BadArgumentError(
                f"config.active_key: is {shown_value(value)}; it must be absent, since keys are set in the server's "
                "configuration file"
            )
        if field.name == "retention":
            limits["retention_seconds"] = seconds_of("config.retention", value, RETENTION_SECONDS_MAX) or None
        elif field.name in _DURATIONS:
            limits[_DURATIONS[field.name]] = seconds_of(f"config.{field.name}", value)
        elif field.name in NUMBERS:
            limits[field.name] = word_of(field.name, value)
        else:
            limits[field.name] = value
    return limits


def word_of(field: str, number: int) -> str:
    """Returns the configuration file's word for an enum number."""
    for word, known in NUMBERS[field].items():
        if number == known:
            return word
    allowed = " or ".join(map(_ENUMS[field].Name, NUMBERS[field].values()))
    raise BadArgumentError(f"config.{field}: is {number_name(field, number)}; it must be {allowed}")


def number_name(field: str, number: int) -> str:
    """Returns the name of an enum number, or an unknown number as it is."""
    return str(_ENUMS[field].Name(number)) if number in _ENUMS[field].values() else str(number)


def checked_config(limits: dict[str, object]) -> AnyChannelConfig:
    """Returns a valid configuration, or raises BadArgumentError with all problems."""
    try:
        return _CONFIG.validate_python(limits)
    except ValidationError as error:
        problems = describe_problems(error, AnyChannelConfig)
        raise BadArgumentError("; ".join(_in_wire_names(str(problem)) for problem in problems)) from None


def changed_config(request: pb.ChannelConfig, former: ChannelConfig) -> AnyChannelConfig:
    """Returns the configuration with what a request changes; refuses changes of what is fixed at creation."""
    if request.type and request.type != NUMBERS["type"][former.type]:
        asked = number_name("type", request.type)
        raise BadArgumentError(f"config.type: is {asked}; a channel's type, here {former.type}, cannot be changed")
    config = checked_config({**former.model_dump(), **limits_of(request)})
    _check_changeable(former, config)
    return config


def _check_changeable(former: ChannelConfig, config: ChannelConfig) -> None:
    before, after = former.on_disk, config.on_disk
    if before is not None and after is not None and before.backup_checkpoint != after.backup_checkpoint:
        raise BadArgumentError(
            f"config.backup_checkpoint: is {shown_value(after.backup_checkpoint)}; it cannot be "
            f"changed from {shown_value(before.backup_checkpoint)} after the channel was created"
        )


def _in_wire_names(problem: str) -> str:
    limit, colon, rest = problem.partition(":")
    return f"config.{_WIRE_NAMES.get(limit, limit)}{colon}{rest}"


def component_message(component: Component) -> pb.Component:
    """Returns the current state of a component."""
    message = pb.Component(
        kind=f"COMPONENT_KIND_{component.kind.name}",
        name=component.name,
        type=component.type_name,
        state=f"COMPONENT_STATE_{component.state.name}",
        # A reason may quote any text, such as a file name with surrogates; protobuf accepts only valid Unicode.
        reason=component.reason.encode(errors="replace").decode(),
        counters=_component_counters(component),
        channels=component.channels,
    )
    message.since.CopyFrom(_timestamp(component.since))
    if (seconds := component.progress_age_seconds) is not None:
        message.progress_age.CopyFrom(duration_of(seconds))
    return message


def _component_counters(component: Component) -> pb.ComponentCounters:
    return pb.ComponentCounters(
        event_count=component.event_count,
        batch_count=component.batch_count,
        body_bytes=component.byte_count,
        failure_count=component.failure_count,
        **{f"{outcome.value}_count": count for outcome, count in component.outcome_counts.items()},
    )


def _timestamp(seconds: float) -> Timestamp:
    encoded = Timestamp()
    encoded.FromMicroseconds(round(seconds * 1_000_000))
    return encoded


def transaction_message(transaction: OpenTransaction) -> pb.OpenTransaction:
    """Returns an open transaction, or a delivery."""
    fields = transaction._asdict()
    if (seconds := fields.pop("lease_remaining_seconds")) is not None:
        fields["lease_remaining"] = duration_of(seconds)
    return pb.OpenTransaction(**fields | {"start_time": _timestamp(transaction.start_time)})


def consumer_message(channel: str, consumer: ConsumerInfo) -> pb.Consumer:
    """Returns a consumer of a channel."""
    fields = consumer._asdict() | {"start_time": _timestamp(consumer.start_time)}
    return pb.Consumer(channel=channel, **fields)


def producer_message(producer: ProducerInfo) -> pb.Producer:
    """Returns a producer of a channel."""
    return pb.Producer(**producer._asdict() | {"last_seen": timestamp_of(producer.last_seen)})
