"""Channels as administrators see them; the fields are those of `admin_service.proto`, durations in seconds."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ChannelType(StrEnum):
    """What keeps a channel's events."""

    MEMORY = "memory"
    """Memory: fast, gone with the process."""
    FILE = "file"
    """A write-ahead log: survives crashes."""
    SPILLABLE = "spillable"
    """Memory up to a limit, then a log; what is in memory is lost in a crash."""


class FsyncPolicy(StrEnum):
    """When a channel's log is synced to the disk."""

    COMMIT = "commit"
    """Before a commit is answered."""
    INTERVAL = "interval"
    """At an interval: a power cut loses what was committed since the last one."""


class Compression(StrEnum):
    """What packs a channel's records before they are written."""

    NONE = "none"
    """Nothing."""
    ZSTD = "zstd"
    """Zstandard."""


class ChannelState(StrEnum):
    """How a channel is."""

    UNKNOWN = "unknown"
    """The server is older or newer than this client, and says nothing that it knows."""
    OPEN = "open"
    """It serves."""
    REPLAYING = "replaying"
    """It reads its log, and opens when it has done so."""
    LOG_FAILED = "log_failed"
    """Its log could not be written or synced; the server must open it again."""
    CORRUPT = "corrupt"
    """Its files are damaged."""
    STALLED = "stalled"
    """Its disk does not answer, and commits wait for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelConfig:
    """Limits to ask for. None means the server's default where a channel is made, and no change where it is updated.

    From `backup_checkpoint` on they are limits of channels with a log, which a memory channel refuses; the last two are
    those of spillable channels only.
    """

    type: ChannelType | None = None
    """What keeps the events; None for a new channel: memory. Cannot be changed."""
    capacity: int | None = None
    """Events that the channel holds, taken ones included until their commit."""
    transaction_capacity: int | None = None
    """Puts, and apart from them takes, that one transaction holds."""
    byte_capacity: int | None = None
    """Bytes for bodies and headers."""
    byte_capacity_buffer_percentage: int | None = None
    """Percentage of `byte_capacity` that is set aside for headers, 0 to 99."""
    keep_alive_seconds: float | None = None
    """How long a commit waits for room, and a take for an event; at most 3,600."""
    lease_seconds: float | None = None
    """How long a transaction or claim lives without a call; at most 3,600."""
    open_transactions_max: int | None = None
    """Transactions that may be open at once."""
    backup_checkpoint: bool | None = None
    """Keep the checkpoint before the newest one too. Cannot be changed."""
    checkpoint_interval_seconds: float | None = None
    """How long after one checkpoint the next one begins, where anything has changed; 0.1 to 3,600."""
    segment_bytes_max: int | None = None
    """A segment of this size is ended and the next one begun."""
    min_free_bytes: int | None = None
    """Bytes that puts leave free on each disk."""
    fsync: FsyncPolicy | None = None
    """When the log is synced."""
    fsync_interval_seconds: float | None = None
    """How much a power cut may lose where `fsync` is `INTERVAL`; 0.01 to 3,600."""
    compression: Compression | None = None
    """What packs records from now on."""
    memory_capacity: int | None = None
    """Events that are kept in memory only, taken ones included."""
    memory_byte_capacity: int | None = None
    """Bytes for their bodies and headers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelLimits(ChannelConfig):
    """Limits in force; None for what the channel's type does not have.

    They are a configuration too: another channel can be made with them, though not with the key.
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
    """Id of the key that records are encrypted with; empty where they are not. Keys are the server's own business."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelGauges:
    """How a channel stands."""

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
    """Commits that wait for room."""
    log_bytes: int
    """Bytes of the channel's log on the disk; 0 in memory."""
    segments: int
    """Segments of the channel's log; 0 in memory."""
    memory_events: int
    """Queued and taken events that are in memory only, so that a crash of the server loses them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelCounters:
    """What a channel has counted since the server started, under the names that Flume's users know."""

    event_put_attempt_count: int
    """Events offered to transactions, refused ones included."""
    event_put_success_count: int
    """Events stored by commits."""
    event_take_attempt_count: int
    """Events asked for: those handed out, and one for each take that found none or was refused."""
    event_take_success_count: int
    """Events removed by commits, acks and acknowledgements."""
    commit_count: int
    """Transactions committed."""
    rollback_count: int
    """Transactions rolled back, for whatever reason."""
    lease_expired_count: int
    """Transactions rolled back because their lease ran out."""
    deduplicated_count: int
    """Events dropped as repeats by their stamps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimStatus:
    """The claim that lives on a channel."""

    reader_id: str
    """Who holds it."""
    epoch: int
    """Its epoch."""
    remaining_seconds: float
    """How long it lives on without a call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelInfo:
    """A channel at one moment."""

    name: str
    """Its name."""
    channel_id: str
    """Names this making of the channel."""
    config: ChannelLimits
    """The limits in force."""
    gauges: ChannelGauges
    """How it stands."""
    counters: ChannelCounters
    """What it counted."""
    claim: ClaimStatus | None
    """The living claim; None where there is none."""
    start_time: datetime
    """When the server process opened the channel, UTC."""
    state: ChannelState
    """Whether it serves."""
    fault: str
    """What is wrong with it and what to do, in a sentence; empty while nothing is."""
    replayed_fraction: float
    """How much of its log it has read, 0 to 1, while it is replaying; otherwise 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelUpdate:
    """What came of an update."""

    channel: ChannelInfo
    """The channel as it stands, changed or not."""
    applied: bool
    """False where shrinking found no room in time; then nothing was changed."""
    message: str
    """Why nothing was changed, in a sentence; empty where it was."""
