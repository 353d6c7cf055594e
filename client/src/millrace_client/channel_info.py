"""Channels as administrators see them; the fields are those of `admin_service.proto`, durations in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class ChannelType(StrEnum):
    """Where a channel keeps its events."""

    MEMORY = "memory"
    """In memory: fast, but lost with the process."""
    FILE = "file"
    """In a write-ahead log: survives crashes."""
    SPILLABLE = "spillable"
    """In memory up to a limit, then in a log; a crash loses the events in memory."""
    REPLICATED = "replicated"
    """In a log that an engine replicates: survives the loss of a machine. One of the servers that share it owns it."""


class FsyncPolicy(StrEnum):
    """When a channel's log is synced to the disk."""

    COMMIT = "commit"
    """Before a commit is acknowledged."""
    INTERVAL = "interval"
    """At an interval: a power failure loses the commits since the last sync."""


class Compression(StrEnum):
    """How a channel's records are compressed."""

    NONE = "none"
    ZSTD = "zstd"
    """Zstandard."""


class ChannelState(StrEnum):
    """The state of a channel."""

    UNKNOWN = "unknown"
    """The server reports a state that this client does not know."""
    OPEN = "open"
    REPLAYING = "replaying"
    """It is replaying its log and opens afterwards."""
    LOG_FAILED = "log_failed"
    """Its log could not be written or synced; the server must reopen it."""
    CORRUPT = "corrupt"
    """Its files are damaged."""
    STALLED = "stalled"
    """Its disk does not respond, and commits wait for it."""
    STANDING_BY = "standing_by"
    """Another server owns it; calls are served there."""
    DISK_FULL = "disk_full"
    """Its disk has no space for puts, or for checkpoints; takes are served."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelConfig:
    """Requested limits. None means the server's default for a new channel, and no change for an update.

    The limits from `backup_checkpoint` to `compression` are for channels with a log, and those of memory for spillable
    channels only.
    """

    type: ChannelType | None = None
    """Where the events are kept; None for a new channel: in memory. Cannot be changed."""
    capacity: int | None = None
    """The maximum number of events in the channel, including taken events until their commit."""
    transaction_capacity: int | None = None
    """The most puts, and separately the most takes, of one transaction."""
    byte_capacity: int | None = None
    """The maximum number of bytes of bodies and headers."""
    byte_capacity_buffer_percentage: int | None = None
    """The percentage of `byte_capacity` that is reserved for headers, 0 to 99."""
    keep_alive_seconds: float | None = None
    """How long a commit waits for space, and a take for an event; at most 3,600."""
    lease_seconds: float | None = None
    """How long a transaction or claim lives without a call; at most 3,600."""
    open_transactions_max: int | None = None
    backup_checkpoint: bool | None = None
    """Whether to keep the checkpoint before the newest one. Cannot be changed."""
    checkpoint_interval_seconds: float | None = None
    """The time between checkpoints, if anything has changed; 0.1 to 3,600."""
    segment_bytes_max: int | None = None
    """The size at which a new segment is started."""
    min_free_bytes: int | None = None
    """The bytes that puts leave free on each disk."""
    fsync: FsyncPolicy | None = None
    """When the log is synced."""
    fsync_interval_seconds: float | None = None
    """The interval between syncs if `fsync` is `INTERVAL`; 0.01 to 3,600."""
    compression: Compression | None = None
    """How records are compressed from now on."""
    memory_capacity: int | None = None
    """The maximum number of events kept in memory only, including taken events."""
    memory_byte_capacity: int | None = None
    """The maximum number of bytes of their bodies and headers."""
    retention_seconds: float | None = None
    """How long after their commit events are kept, in a channel of any type; older ones are removed as if consumed. 0:
    forever."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelLimits(ChannelConfig):
    """The limits in force; None for limits that the channel's type does not have.

    They can be used as the configuration of another channel, except for the key.
    """

    type: ChannelType
    capacity: int
    transaction_capacity: int
    byte_capacity: int
    byte_capacity_buffer_percentage: int
    keep_alive_seconds: float
    lease_seconds: float
    open_transactions_max: int
    active_key: str = ""
    """The id of the key that encrypts records; empty if they are not encrypted. Only the server has the keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelGauges:
    """The current contents of a channel."""

    queued_events: int
    """Events in the channel that no transaction has taken."""
    taken_events: int
    """Events that open transactions have taken."""
    body_bytes: int
    """Bytes of the bodies of queued and taken events."""
    body_bytes_max: int
    """Bytes of bodies that the channel may hold."""
    open_transactions: int
    """Transactions that are open, deliveries of Consume included."""
    first_sequence: int
    """The oldest sequence in the queue; `next_sequence` where it is empty."""
    next_sequence: int
    """The sequence that the next committed event will get."""
    producers: int
    """Producers whose stamps the channel remembers."""
    waiting_takes: int
    """Takes and deliveries that wait for an event."""
    waiting_commits: int
    """Commits that wait for space."""
    log_bytes: int
    """Bytes of the channel's log on the disk; 0 in memory."""
    segments: int
    """Segments of the channel's log; 0 in memory."""
    memory_events: int
    """Queued and taken events that are in memory only, so that a crash of the server loses them."""
    oldest_commit_time: datetime | None = None
    """When the oldest event was committed, UTC; None if the channel is empty, or the time is not known."""
    last_put_time: datetime | None = None
    """When a commit last stored events; None if none has since the server started."""
    last_take_time: datetime | None = None
    """When a take, a delivery or a read last returned events; None if none has since the server started."""
    checkpoint_time: datetime | None = None
    """When the log's newest checkpoint was made; None in memory and before the first one."""
    disk_free_bytes: int = 0
    """Free bytes of the data directory that has the fewest; 0 in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelCounters:
    """What a channel has counted since the server started, under the names that Flume's users know."""

    event_put_attempt_count: int
    """Events offered to transactions, refused ones included."""
    event_put_success_count: int
    """Events stored by commits."""
    event_take_attempt_count: int
    """Events requested: those taken, and one for each take that found none or was refused."""
    event_take_success_count: int
    """Events removed by commits, acks and acknowledgements."""
    commit_count: int
    rollback_count: int
    """Transactions rolled back for any reason."""
    lease_expired_count: int
    """Transactions rolled back because their lease ran out."""
    deduplicated_count: int
    """Events dropped as repeats by their stamps."""
    event_expired_count: int = 0
    """Events removed because they were older than the channel's retention."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Calls refused, by the reason of their error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimStatus:
    """The active claim on a channel."""

    reader_id: str
    epoch: int
    remaining_seconds: float
    """How long it lives without another call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelInfo:
    """The state of a channel at one moment."""

    name: str
    channel_id: str
    """Its unique id, which changes if the channel is deleted and created again."""
    config: ChannelLimits
    gauges: ChannelGauges
    counters: ChannelCounters
    claim: ClaimStatus | None
    """The active claim; None if there is none."""
    start_time: datetime
    """When the server process opened the channel, UTC."""
    state: ChannelState
    fault: str
    """The fault and what to do about it, in a sentence; empty if there is none."""
    replayed_fraction: float
    """How much of its log it has replayed, 0 to 1."""
    is_configured: bool = False
    """Whether the server's configuration file names it."""
    is_overridden: bool = False
    """Whether an update has changed it from what the file says, until the next start or reload of the file."""
    owner: str = ""
    """The address of the server that owns it while this one stands by; empty if that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelUpdate:
    """The result of an update."""

    channel: ChannelInfo
    """The channel's state, changed or not."""
    applied: bool
    """False if shrinking found no free capacity in time; then nothing was changed."""
    message: str
    """Why nothing was changed, in a sentence; empty if the update was applied."""
