import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace.v1 import event_pb2 as _event_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChannelType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_TYPE_UNSPECIFIED: _ClassVar[ChannelType]
    CHANNEL_TYPE_MEMORY: _ClassVar[ChannelType]
    CHANNEL_TYPE_FILE: _ClassVar[ChannelType]
    CHANNEL_TYPE_SPILLABLE: _ClassVar[ChannelType]
    CHANNEL_TYPE_REPLICATED: _ClassVar[ChannelType]

class FsyncPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FSYNC_POLICY_UNSPECIFIED: _ClassVar[FsyncPolicy]
    FSYNC_POLICY_COMMIT: _ClassVar[FsyncPolicy]
    FSYNC_POLICY_INTERVAL: _ClassVar[FsyncPolicy]

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_UNSPECIFIED: _ClassVar[Compression]
    COMPRESSION_NONE: _ClassVar[Compression]
    COMPRESSION_ZSTD: _ClassVar[Compression]

class ChannelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_STATE_UNSPECIFIED: _ClassVar[ChannelState]
    CHANNEL_STATE_OPEN: _ClassVar[ChannelState]
    CHANNEL_STATE_REPLAYING: _ClassVar[ChannelState]
    CHANNEL_STATE_LOG_FAILED: _ClassVar[ChannelState]
    CHANNEL_STATE_CORRUPT: _ClassVar[ChannelState]
    CHANNEL_STATE_STALLED: _ClassVar[ChannelState]
    CHANNEL_STATE_STANDING_BY: _ClassVar[ChannelState]
    CHANNEL_STATE_DISK_FULL: _ClassVar[ChannelState]

class ComponentKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPONENT_KIND_UNSPECIFIED: _ClassVar[ComponentKind]
    COMPONENT_KIND_SOURCE: _ClassVar[ComponentKind]
    COMPONENT_KIND_SINK: _ClassVar[ComponentKind]
    COMPONENT_KIND_SINK_GROUP: _ClassVar[ComponentKind]

class ComponentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPONENT_STATE_UNSPECIFIED: _ClassVar[ComponentState]
    COMPONENT_STATE_STARTING: _ClassVar[ComponentState]
    COMPONENT_STATE_RUNNING: _ClassVar[ComponentState]
    COMPONENT_STATE_BACKING_OFF: _ClassVar[ComponentState]
    COMPONENT_STATE_FAILED: _ClassVar[ComponentState]
    COMPONENT_STATE_STOPPED: _ClassVar[ComponentState]
    COMPONENT_STATE_STANDING_BY: _ClassVar[ComponentState]
CHANNEL_TYPE_UNSPECIFIED: ChannelType
CHANNEL_TYPE_MEMORY: ChannelType
CHANNEL_TYPE_FILE: ChannelType
CHANNEL_TYPE_SPILLABLE: ChannelType
CHANNEL_TYPE_REPLICATED: ChannelType
FSYNC_POLICY_UNSPECIFIED: FsyncPolicy
FSYNC_POLICY_COMMIT: FsyncPolicy
FSYNC_POLICY_INTERVAL: FsyncPolicy
COMPRESSION_UNSPECIFIED: Compression
COMPRESSION_NONE: Compression
COMPRESSION_ZSTD: Compression
CHANNEL_STATE_UNSPECIFIED: ChannelState
CHANNEL_STATE_OPEN: ChannelState
CHANNEL_STATE_REPLAYING: ChannelState
CHANNEL_STATE_LOG_FAILED: ChannelState
CHANNEL_STATE_CORRUPT: ChannelState
CHANNEL_STATE_STALLED: ChannelState
CHANNEL_STATE_STANDING_BY: ChannelState
CHANNEL_STATE_DISK_FULL: ChannelState
COMPONENT_KIND_UNSPECIFIED: ComponentKind
COMPONENT_KIND_SOURCE: ComponentKind
COMPONENT_KIND_SINK: ComponentKind
COMPONENT_KIND_SINK_GROUP: ComponentKind
COMPONENT_STATE_UNSPECIFIED: ComponentState
COMPONENT_STATE_STARTING: ComponentState
COMPONENT_STATE_RUNNING: ComponentState
COMPONENT_STATE_BACKING_OFF: ComponentState
COMPONENT_STATE_FAILED: ComponentState
COMPONENT_STATE_STOPPED: ComponentState
COMPONENT_STATE_STANDING_BY: ComponentState

class ChannelConfig(_message.Message):
    __slots__ = ("type", "capacity", "transaction_capacity", "byte_capacity", "byte_capacity_buffer_percentage", "keep_alive", "lease", "open_transactions_max", "backup_checkpoint", "checkpoint_interval", "segment_bytes_max", "min_free_bytes", "fsync", "fsync_interval", "compression", "active_key", "memory_capacity", "memory_byte_capacity", "retention")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    BYTE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    BYTE_CAPACITY_BUFFER_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    BACKUP_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    MIN_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FSYNC_FIELD_NUMBER: _ClassVar[int]
    FSYNC_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_KEY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    type: ChannelType
    capacity: int
    transaction_capacity: int
    byte_capacity: int
    byte_capacity_buffer_percentage: int
    keep_alive: _duration_pb2.Duration
    lease: _duration_pb2.Duration
    open_transactions_max: int
    backup_checkpoint: bool
    checkpoint_interval: _duration_pb2.Duration
    segment_bytes_max: int
    min_free_bytes: int
    fsync: FsyncPolicy
    fsync_interval: _duration_pb2.Duration
    compression: Compression
    active_key: str
    memory_capacity: int
    memory_byte_capacity: int
    retention: _duration_pb2.Duration
    def __init__(self, type: _Optional[_Union[ChannelType, str]] = ..., capacity: _Optional[int] = ..., transaction_capacity: _Optional[int] = ..., byte_capacity: _Optional[int] = ..., byte_capacity_buffer_percentage: _Optional[int] = ..., keep_alive: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., open_transactions_max: _Optional[int] = ..., backup_checkpoint: bool = ..., checkpoint_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., segment_bytes_max: _Optional[int] = ..., min_free_bytes: _Optional[int] = ..., fsync: _Optional[_Union[FsyncPolicy, str]] = ..., fsync_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., compression: _Optional[_Union[Compression, str]] = ..., active_key: _Optional[str] = ..., memory_capacity: _Optional[int] = ..., memory_byte_capacity: _Optional[int] = ..., retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ChannelGauges(_message.Message):
    __slots__ = ("queued_events", "taken_events", "body_bytes", "body_bytes_max", "open_transactions", "first_sequence", "next_sequence", "producers", "waiting_takes", "waiting_commits", "log_bytes", "segments", "memory_events", "oldest_commit_time", "last_put_time", "last_take_time", "checkpoint_time", "disk_free_bytes")
    QUEUED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_EVENTS_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_TAKES_FIELD_NUMBER: _ClassVar[int]
    WAITING_COMMITS_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_EVENTS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_PUT_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_TAKE_TIME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_TIME_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    queued_events: int
    taken_events: int
    body_bytes: int
    body_bytes_max: int
    open_transactions: int
    first_sequence: int
    next_sequence: int
    producers: int
    waiting_takes: int
    waiting_commits: int
    log_bytes: int
    segments: int
    memory_events: int
    oldest_commit_time: _timestamp_pb2.Timestamp
    last_put_time: _timestamp_pb2.Timestamp
    last_take_time: _timestamp_pb2.Timestamp
    checkpoint_time: _timestamp_pb2.Timestamp
    disk_free_bytes: int
    def __init__(self, queued_events: _Optional[int] = ..., taken_events: _Optional[int] = ..., body_bytes: _Optional[int] = ..., body_bytes_max: _Optional[int] = ..., open_transactions: _Optional[int] = ..., first_sequence: _Optional[int] = ..., next_sequence: _Optional[int] = ..., producers: _Optional[int] = ..., waiting_takes: _Optional[int] = ..., waiting_commits: _Optional[int] = ..., log_bytes: _Optional[int] = ..., segments: _Optional[int] = ..., memory_events: _Optional[int] = ..., oldest_commit_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_put_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_take_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., checkpoint_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., disk_free_bytes: _Optional[int] = ...) -> None: ...

class ChannelCounters(_message.Message):
    __slots__ = ("event_put_attempt_count", "event_put_success_count", "event_take_attempt_count", "event_take_success_count", "commit_count", "rollback_count", "lease_expired_count", "deduplicated_count", "event_expired_count", "refused")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EVENT_PUT_ATTEMPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVENT_PUT_SUCCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVENT_TAKE_ATTEMPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVENT_TAKE_SUCCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVENT_EXPIRED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    event_put_attempt_count: int
    event_put_success_count: int
    event_take_attempt_count: int
    event_take_success_count: int
    commit_count: int
    rollback_count: int
    lease_expired_count: int
    deduplicated_count: int
    event_expired_count: int
    refused: _containers.ScalarMap[str, int]
    def __init__(self, event_put_attempt_count: _Optional[int] = ..., event_put_success_count: _Optional[int] = ..., event_take_attempt_count: _Optional[int] = ..., event_take_success_count: _Optional[int] = ..., commit_count: _Optional[int] = ..., rollback_count: _Optional[int] = ..., lease_expired_count: _Optional[int] = ..., deduplicated_count: _Optional[int] = ..., event_expired_count: _Optional[int] = ..., refused: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ClaimStatus(_message.Message):
    __slots__ = ("reader_id", "epoch", "remaining")
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    reader_id: str
    epoch: int
    remaining: _duration_pb2.Duration
    def __init__(self, reader_id: _Optional[str] = ..., epoch: _Optional[int] = ..., remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Channel(_message.Message):
    __slots__ = ("name", "channel_id", "config", "gauges", "counters", "claim", "start_time", "state", "fault", "replayed_fraction", "is_configured", "is_overridden", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    GAUGES_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    IS_CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    IS_OVERRIDDEN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    channel_id: str
    config: ChannelConfig
    gauges: ChannelGauges
    counters: ChannelCounters
    claim: ClaimStatus
    start_time: _timestamp_pb2.Timestamp
    state: ChannelState
    fault: str
    replayed_fraction: float
    is_configured: bool
    is_overridden: bool
    owner: str
    def __init__(self, name: _Optional[str] = ..., channel_id: _Optional[str] = ..., config: _Optional[_Union[ChannelConfig, _Mapping]] = ..., gauges: _Optional[_Union[ChannelGauges, _Mapping]] = ..., counters: _Optional[_Union[ChannelCounters, _Mapping]] = ..., claim: _Optional[_Union[ClaimStatus, _Mapping]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[ChannelState, str]] = ..., fault: _Optional[str] = ..., replayed_fraction: _Optional[float] = ..., is_configured: bool = ..., is_overridden: bool = ..., owner: _Optional[str] = ...) -> None: ...

class CreateChannelRequest(_message.Message):
    __slots__ = ("name", "config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: ChannelConfig
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Union[ChannelConfig, _Mapping]] = ...) -> None: ...

class CreateChannelResponse(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: Channel
    def __init__(self, channel: _Optional[_Union[Channel, _Mapping]] = ...) -> None: ...

class UpdateChannelRequest(_message.Message):
    __slots__ = ("name", "config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: ChannelConfig
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Union[ChannelConfig, _Mapping]] = ...) -> None: ...

class UpdateChannelResponse(_message.Message):
    __slots__ = ("channel", "applied", "message")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    channel: Channel
    applied: bool
    message: str
    def __init__(self, channel: _Optional[_Union[Channel, _Mapping]] = ..., applied: bool = ..., message: _Optional[str] = ...) -> None: ...

class DeleteChannelRequest(_message.Message):
    __slots__ = ("name", "force")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    def __init__(self, name: _Optional[str] = ..., force: bool = ...) -> None: ...

class DeleteChannelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListChannelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListChannelsResponse(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[Channel]
    def __init__(self, channels: _Optional[_Iterable[_Union[Channel, _Mapping]]] = ...) -> None: ...

class GetChannelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetChannelResponse(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: Channel
    def __init__(self, channel: _Optional[_Union[Channel, _Mapping]] = ...) -> None: ...

class WatchChannelsRequest(_message.Message):
    __slots__ = ("names", "interval")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    interval: _duration_pb2.Duration
    def __init__(self, names: _Optional[_Iterable[str]] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchChannelsResponse(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[Channel]
    def __init__(self, channels: _Optional[_Iterable[_Union[Channel, _Mapping]]] = ...) -> None: ...

class PeekEventsRequest(_message.Message):
    __slots__ = ("channel", "from_sequence", "max_events", "follow", "columns", "from_time")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FROM_TIME_FIELD_NUMBER: _ClassVar[int]
    channel: str
    from_sequence: int
    max_events: int
    follow: bool
    columns: bool
    from_time: _timestamp_pb2.Timestamp
    def __init__(self, channel: _Optional[str] = ..., from_sequence: _Optional[int] = ..., max_events: _Optional[int] = ..., follow: bool = ..., columns: bool = ..., from_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PeekEventsResponse(_message.Message):
    __slots__ = ("batch", "skipped_events")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    batch: _event_pb2.EventBatch
    skipped_events: int
    def __init__(self, batch: _Optional[_Union[_event_pb2.EventBatch, _Mapping]] = ..., skipped_events: _Optional[int] = ...) -> None: ...

class PurgeChannelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class PurgeChannelResponse(_message.Message):
    __slots__ = ("purged_count",)
    PURGED_COUNT_FIELD_NUMBER: _ClassVar[int]
    purged_count: int
    def __init__(self, purged_count: _Optional[int] = ...) -> None: ...

class ComponentCounters(_message.Message):
    __slots__ = ("event_count", "batch_count", "body_bytes", "failure_count", "filtered_count", "unrouted_count", "dead_lettered_count", "dropped_count", "missed_count")
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    BATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILTERED_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNROUTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_COUNT_FIELD_NUMBER: _ClassVar[int]
    MISSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    event_count: int
    batch_count: int
    body_bytes: int
    failure_count: int
    filtered_count: int
    unrouted_count: int
    dead_lettered_count: int
    dropped_count: int
    missed_count: int
    def __init__(self, event_count: _Optional[int] = ..., batch_count: _Optional[int] = ..., body_bytes: _Optional[int] = ..., failure_count: _Optional[int] = ..., filtered_count: _Optional[int] = ..., unrouted_count: _Optional[int] = ..., dead_lettered_count: _Optional[int] = ..., dropped_count: _Optional[int] = ..., missed_count: _Optional[int] = ...) -> None: ...

class Component(_message.Message):
    __slots__ = ("kind", "name", "type", "state", "reason", "since", "counters", "progress_age", "channels")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_AGE_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    kind: ComponentKind
    name: str
    type: str
    state: ComponentState
    reason: str
    since: _timestamp_pb2.Timestamp
    counters: ComponentCounters
    progress_age: _duration_pb2.Duration
    channels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[_Union[ComponentKind, str]] = ..., name: _Optional[str] = ..., type: _Optional[str] = ..., state: _Optional[_Union[ComponentState, str]] = ..., reason: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., counters: _Optional[_Union[ComponentCounters, _Mapping]] = ..., progress_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., channels: _Optional[_Iterable[str]] = ...) -> None: ...

class ListComponentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListComponentsResponse(_message.Message):
    __slots__ = ("components",)
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    components: _containers.RepeatedCompositeFieldContainer[Component]
    def __init__(self, components: _Optional[_Iterable[_Union[Component, _Mapping]]] = ...) -> None: ...

class WatchComponentsRequest(_message.Message):
    __slots__ = ("interval",)
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchComponentsResponse(_message.Message):
    __slots__ = ("components",)
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    components: _containers.RepeatedCompositeFieldContainer[Component]
    def __init__(self, components: _Optional[_Iterable[_Union[Component, _Mapping]]] = ...) -> None: ...

class RetryComponentRequest(_message.Message):
    __slots__ = ("kind", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: ComponentKind
    name: str
    def __init__(self, kind: _Optional[_Union[ComponentKind, str]] = ..., name: _Optional[str] = ...) -> None: ...

class RetryComponentResponse(_message.Message):
    __slots__ = ("component",)
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    component: Component
    def __init__(self, component: _Optional[_Union[Component, _Mapping]] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[OpenTransaction]
    def __init__(self, transactions: _Optional[_Iterable[_Union[OpenTransaction, _Mapping]]] = ...) -> None: ...

class OpenTransaction(_message.Message):
    __slots__ = ("txn_id", "channel", "put_count", "take_count", "body_bytes", "start_time", "lease_remaining", "identity", "peer", "is_delivery")
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TAKE_COUNT_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    LEASE_REMAINING_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    IS_DELIVERY_FIELD_NUMBER: _ClassVar[int]
    txn_id: str
    channel: str
    put_count: int
    take_count: int
    body_bytes: int
    start_time: _timestamp_pb2.Timestamp
    lease_remaining: _duration_pb2.Duration
    identity: str
    peer: str
    is_delivery: bool
    def __init__(self, txn_id: _Optional[str] = ..., channel: _Optional[str] = ..., put_count: _Optional[int] = ..., take_count: _Optional[int] = ..., body_bytes: _Optional[int] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lease_remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., identity: _Optional[str] = ..., peer: _Optional[str] = ..., is_delivery: bool = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("txn_id",)
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    txn_id: str
    def __init__(self, txn_id: _Optional[str] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseClaimRequest(_message.Message):
    __slots__ = ("channel", "epoch")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    channel: str
    epoch: int
    def __init__(self, channel: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReleaseClaimResponse(_message.Message):
    __slots__ = ("claim",)
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimStatus
    def __init__(self, claim: _Optional[_Union[ClaimStatus, _Mapping]] = ...) -> None: ...

class ListProducersRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class ListProducersResponse(_message.Message):
    __slots__ = ("producers",)
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    producers: _containers.RepeatedCompositeFieldContainer[Producer]
    def __init__(self, producers: _Optional[_Iterable[_Union[Producer, _Mapping]]] = ...) -> None: ...

class Producer(_message.Message):
    __slots__ = ("producer_id", "last_sequence", "gap_count", "last_seen", "identity")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GAP_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    last_sequence: int
    gap_count: int
    last_seen: _timestamp_pb2.Timestamp
    identity: str
    def __init__(self, producer_id: _Optional[str] = ..., last_sequence: _Optional[int] = ..., gap_count: _Optional[int] = ..., last_seen: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., identity: _Optional[str] = ...) -> None: ...

class ForgetProducerRequest(_message.Message):
    __slots__ = ("channel", "producer_id")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    channel: str
    producer_id: str
    def __init__(self, channel: _Optional[str] = ..., producer_id: _Optional[str] = ...) -> None: ...

class ForgetProducerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListConsumersRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class ListConsumersResponse(_message.Message):
    __slots__ = ("consumers",)
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    consumers: _containers.RepeatedCompositeFieldContainer[Consumer]
    def __init__(self, consumers: _Optional[_Iterable[_Union[Consumer, _Mapping]]] = ...) -> None: ...

class Consumer(_message.Message):
    __slots__ = ("peer", "identity", "open_deliveries", "open_events", "start_time", "channel")
    PEER_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    OPEN_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    OPEN_EVENTS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    peer: str
    identity: str
    open_deliveries: int
    open_events: int
    start_time: _timestamp_pb2.Timestamp
    channel: str
    def __init__(self, peer: _Optional[str] = ..., identity: _Optional[str] = ..., open_deliveries: _Optional[int] = ..., open_events: _Optional[int] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., channel: _Optional[str] = ...) -> None: ...

class MoveChannelRequest(_message.Message):
    __slots__ = ("name", "server")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    name: str
    server: str
    def __init__(self, name: _Optional[str] = ..., server: _Optional[str] = ...) -> None: ...

class MoveChannelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
