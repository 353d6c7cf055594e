"""The configuration of one channel: its limits, where it stores its events, and the names that it accepts."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from millrace.setting_problems import shown_value
from millrace.setting_units import COUNT_UNIT, ByteSize, Count
from millrace.units import GIB, KIB, MIB
from millrace_server.errors import BadArgumentError, BadNameError
from millrace_server.files import NamedPath
from millrace_server.replication.engine_settings import EngineSettings

CHANNEL_NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,63}"
IDENTIFIER_LENGTH_MAX = 128

_CHANNEL_NAME = re.compile(CHANNEL_NAME_PATTERN)
_IDENTIFIER = re.compile(rf"[ -~]{{1,{IDENTIFIER_LENGTH_MAX}}}")
_SHOWN_LENGTH_MAX = 80

CAPACITY_MAX = 1_000_000_000
SECONDS_MAX = 3600.0
RETENTION_SECONDS_MAX = 100 * 366 * 86_400.0
BYTES_MAX = 1 << 50
SEGMENT_BYTES_MAX = 1 << 40

KEY_ID_PATTERN = r"[A-Za-z0-9._-]{1,64}"
"""The ids that keys may have."""


_PARTS_OF_CAPACITY = ("transaction_capacity", "memory_capacity")
"""Settings that are never above `capacity`, and whose defaults are lowered to a smaller one."""

_MEMORY_SHARE = 0.2
_PARTS_OF_STREAM = 10
_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")


@cache
def _share_of_memory() -> int:
    """Returns a fifth of the machine's or container's memory, so that several channels can fill up."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        container_bytes = int(_CONTAINER_MEMORY.read_text())
    except (OSError, ValueError):
        # No container, or "max", which means no limit.
        container_bytes = machine_bytes
    return int(min(machine_bytes, container_bytes) * _MEMORY_SHARE)


EventCount = Annotated[Count, Field(ge=1, le=CAPACITY_MAX)]
ByteCount = Annotated[ByteSize, Field(ge=1, le=BYTES_MAX)]
Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]
KeyId = Annotated[str, Field(pattern=rf"^(?:{KEY_ID_PATTERN})$")]


class ChannelConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The settings of all channel types; each type has its own defaults."""

    type: Literal["memory", "file", "spillable", "replicated"]
    """Where the events are stored."""

    capacity: EventCount
    """Maximum number of events in the channel, including taken ones until their commit."""

    transaction_capacity: EventCount
    """The maximum number of puts, and separately of takes, in one transaction. Defaults to `capacity` if that is
    smaller."""

    byte_capacity: ByteCount
    """Bytes for bodies and headers together."""

    byte_capacity_buffer_percentage: int = Field(20, ge=0, le=99)
    """Percentage of `byte_capacity` that is reserved for headers."""

    keep_alive_seconds: Seconds = 3.0
    """Seconds that a commit waits for space, and a take for an event."""

    lease_seconds: float = Field(30.0, gt=0, le=SECONDS_MAX, allow_inf_nan=False)
    """Seconds without a call after which a transaction or claim expires."""

    open_transactions_max: int = Field(5_000, ge=1, le=1_000_000)
    """Maximum number of open transactions."""

    retention_seconds: float | None = Field(None, gt=0, le=RETENTION_SECONDS_MAX, allow_inf_nan=False)
    """Events are removed as if consumed this many seconds after their commit, or up to a second later. None: never.
    Events that an open transaction has taken stay with it. Events stored by a release without commit times count as
    committed when the server opened the channel."""

    @property
    def body_bytes_max(self) -> int:
        return self.byte_capacity * (100 - self.byte_capacity_buffer_percentage) // 100

    @property
    def open_body_bytes_max(self) -> int:
        """Bytes of bodies that open transactions together may have put; they are in memory until their commit."""
        return self.body_bytes_max

    @property
    def log(self) -> "LogChannelConfig | None":
        """This configuration where the channel has a log."""
        return None

    @property
    def on_disk(self) -> "DiskChannelConfig | None":
        """This configuration where the channel's log is in files of this server."""
        return None

    @property
    def replicated(self) -> "ReplicatedChannelConfig | None":
        """This configuration where the channel's log is in an engine that several servers share."""
        return None

    @property
    def spillable(self) -> "SpillableChannelConfig | None":
        """This configuration where the channel is spillable."""
        return None

    @model_validator(mode="before")
    @classmethod
    def _lower_defaults_to_capacity(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        capacity = COUNT_UNIT.number(values.get("capacity"))
        if type(capacity) is not int or capacity <= 0:
            return values
        parts = [name for name in _PARTS_OF_CAPACITY if name in cls.model_fields and name not in values]
        return {**values, **{name: capacity for name in parts if capacity < cls.model_fields[name].default}}

    @field_validator(*_PARTS_OF_CAPACITY, check_fields=False)
    @classmethod
    def _check_within_capacity(cls, part: int, info: ValidationInfo) -> int:
        capacity = info.data.get("capacity", part)
        if part > capacity:
            raise ValueError(f"is {part}; it must not be above capacity, {capacity}")
        return part


class MemoryChannelConfig(ChannelConfig):
    """Settings of a channel in memory: fast, but its events are lost when the process ends."""

    type: Literal["memory"]
    """In memory."""

    capacity: EventCount = 100
    """Maximum number of events in the channel, including taken ones until their commit."""

    transaction_capacity: EventCount = 100
    """The maximum number of puts, and separately of takes, in one transaction. Defaults to `capacity` if that is
    smaller."""

    byte_capacity: ByteCount = Field(default_factory=_share_of_memory)
    """Bytes for bodies and headers together."""


class EncryptionConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The keys that encrypt a channel's files. To rotate: add a key, make it the active one, keep the old one."""

    keys: dict[KeyId, NamedPath]
    """The file of each key, by the key's id. A key is needed as long as the channel has records encrypted with it."""

    active_key: KeyId
    """Id of the key that encrypts new records; one of `keys`."""

    @field_validator("active_key")
    @classmethod
    def _check_is_a_key(cls, active_key: str, info: ValidationInfo) -> str:
        keys = info.data.get("keys", {active_key: None})
        if active_key not in keys:
            known = " or ".join(map(shown_value, keys)) or "of which there is none"
            raise ValueError(f"is {shown_value(active_key)}; it must be the id of one of the keys, {known}")
        return active_key


class LogChannelConfig(ChannelConfig):
    """The settings of channels with a log."""

    type: Literal["file", "spillable", "replicated"]
    """Where the events are stored."""

    capacity: EventCount = 1_000_000
    """Maximum number of events in the channel, including taken ones until their commit."""

    transaction_capacity: EventCount = 10_000
    """The maximum number of puts, and separately of takes, in one transaction. Defaults to `capacity` if that is
    smaller."""

    byte_capacity: ByteCount = 8 * GIB
    """Bytes for bodies and headers together."""

    checkpoint_interval_seconds: float = Field(30.0, ge=0.1, le=SECONDS_MAX, allow_inf_nan=False)
    """Seconds from one checkpoint to the next, if anything has changed."""

    segment_bytes_max: ByteSize = Field(256 * MIB, ge=64 * KIB, le=SEGMENT_BYTES_MAX)
    """Size at which a segment ends and the next one begins. The space of consumed events is freed in whole segments,
    or all of it once the channel is empty, so on a small disk choose a small fraction of its size. Segments are larger
    if the state of stamps and transactions, with which each segment begins, would fill more than half of this size."""

    compression: Literal["none", "zstd"] = "none"
    """Compression of new records; existing records stay as they are."""

    encryption: EncryptionConfig | None = None
    """The keys that encrypt records. None: no encryption."""

    @property
    def log(self) -> "LogChannelConfig":
        return self

    @property
    def reserved_bytes(self) -> int:
        """Bytes that puts leave free, for takes and checkpoints."""
        raise NotImplementedError

    @property
    def sync_interval_seconds(self) -> float | None:
        """Seconds from one sync of the log to the next; None: before each commit is acknowledged."""
        return None

    @property
    def keeps_previous_checkpoint(self) -> bool:
        """Whether to keep the second newest checkpoint too."""
        return True

    @property
    def open_body_bytes_max(self) -> int:
        return min(self.body_bytes_max, _share_of_memory())


class DiskChannelConfig(LogChannelConfig):
    """The settings of channels with a write-ahead log in files."""

    type: Literal["file", "spillable"]
    """Where the events are stored."""

    data_dirs: list[NamedPath] = Field(default_factory=list)
    """Directories for segments, used in turn, each in a subdirectory of the channel's name. None: `server.data_dir`."""

    checkpoint_dir: NamedPath | None = None
    """Directory for checkpoints, in a subdirectory of the channel's name. None: the first of `data_dirs`."""

    backup_checkpoint: bool = True
    """Whether to keep the second newest checkpoint too."""

    min_free_bytes: ByteSize = Field(500 * MIB, ge=0, le=BYTES_MAX)
    """Bytes that puts leave free on each disk, for takes, checkpoints and other programs, however many channels put at
    once. A completely full disk still has space for the records of about a thousand commits of takes of each channel,
    which the log keeps allocated; then takes are refused too, until something on the disk is deleted."""

    fsync: Literal["commit", "interval"] = "commit"
    """When the log is synced. `commit`: before each commit is acknowledged. `interval`: every `fsync_interval_seconds`;
    a power failure loses commits since the last sync."""

    fsync_interval_seconds: float = Field(1.0, ge=0.01, le=SECONDS_MAX, allow_inf_nan=False)
    """Seconds from one sync to the next if `fsync` is `interval`."""

    @property
    def on_disk(self) -> "DiskChannelConfig":
        return self

    @property
    def reserved_bytes(self) -> int:
        return self.min_free_bytes

    @property
    def sync_interval_seconds(self) -> float | None:
        return None if self.fsync == "commit" else self.fsync_interval_seconds

    @property
    def keeps_previous_checkpoint(self) -> bool:
        return self.backup_checkpoint

    @field_validator("data_dirs")
    @classmethod
    def _check_apart(cls, data_dirs: list[Path]) -> list[Path]:
        named: dict[str, Path] = {}
        for path in data_dirs:
            # The file system decides: one directory with two names is still one disk.
            same = named.setdefault(os.path.realpath(path), path)
            if same is not path:
                raise ValueError(
                    f"has {shown_value(str(same))} and {shown_value(str(path))}, which are the same directory; "
                    "each must be another one"
                )
        return data_dirs


class FileChannelConfig(DiskChannelConfig):
    """Settings of a channel in a write-ahead log."""

    type: Literal["file"]
    """In a write-ahead log: a commit survives crashes."""


class SpillableChannelConfig(DiskChannelConfig):
    """Settings of a channel in memory that spills to a write-ahead log: memory first, then disk."""

    type: Literal["spillable"]
    """In memory up to `memory_capacity`, then in a log. Events in memory are lost when the process ends."""

    memory_capacity: EventCount = 10_000
    """Maximum number of events in memory only, including taken ones. Defaults to `capacity` if that is smaller."""

    memory_byte_capacity: ByteCount = Field(default_factory=_share_of_memory)
    """Bytes for the bodies and headers in memory."""

    @property
    def spillable(self) -> "SpillableChannelConfig":
        return self

    @property
    def memory_body_bytes_max(self) -> int:
        return self.memory_byte_capacity * (100 - self.byte_capacity_buffer_percentage) // 100


def _share_of_stream(fields: dict[str, Any]) -> int:
    engine: EngineSettings | None = fields.get("engine")
    return MIB if engine is None else engine.stream_bytes_max // _PARTS_OF_STREAM


class ReplicatedChannelConfig(LogChannelConfig):
    """Settings of a channel with a log that an engine replicates: it survives the loss of its machine.

    One of the servers with the channel in their files owns it at a time; the others stand by, and take over when the
    owner stops.
    """

    type: Literal["replicated"]
    """In a stream of an engine: a commit survives the loss of a machine."""

    engine: EngineSettings
    """The engine that stores the log."""

    min_free_bytes: ByteSize = Field(default_factory=_share_of_stream, ge=0, le=BYTES_MAX)
    """Bytes that puts leave free in the stream, for takes and checkpoints."""

    @field_validator("min_free_bytes")
    @classmethod
    def _check_leaves_space(cls, min_free_bytes: int, info: ValidationInfo) -> int:
        engine: EngineSettings | None = info.data.get("engine")
        if engine is not None and min_free_bytes >= engine.stream_bytes_max:
            raise ValueError(
                f"is {min_free_bytes}; it must be below engine.stream_bytes_max, {engine.stream_bytes_max}"
            )
        return min_free_bytes

    def at(self, engine: EngineSettings) -> "ReplicatedChannelConfig":
        """Returns the same channel at another engine, whose stream it leaves the same share of free by default."""
        is_default = self.min_free_bytes == _share_of_stream({"engine": self.engine})
        fits = self.min_free_bytes < engine.stream_bytes_max
        free = self.min_free_bytes if fits and not is_default else _share_of_stream({"engine": engine})
        return self.model_copy(update={"engine": engine, "min_free_bytes": free})

    @property
    def replicated(self) -> "ReplicatedChannelConfig":
        return self

    @property
    def reserved_bytes(self) -> int:
        return self.min_free_bytes


AnyChannelConfig = Annotated[
    MemoryChannelConfig | FileChannelConfig | SpillableChannelConfig | ReplicatedChannelConfig,
    Field(discriminator="type"),
]
"""The configuration of a channel of any type."""


def check_channel_name(name: str) -> None:
    """Raises BadNameError where the name is not allowed for a channel."""
    if not _CHANNEL_NAME.fullmatch(name):
        raise BadNameError(f"channel: is {shown(name)}; it must match {CHANNEL_NAME_PATTERN}")


def check_identifier(field: str, identifier: str) -> None:
    """Raises BadArgumentError where a txn_id, producer_id or reader_id is not allowed."""
    if not _IDENTIFIER.fullmatch(identifier):
        raise BadArgumentError(
            f"{field}: is {shown(identifier)}; it must have 1 to {IDENTIFIER_LENGTH_MAX} printable ASCII characters"
        )


def shown(text: str) -> str:
    """Quotes external text for messages: control characters are escaped, the length is capped."""
    if len(text) > _SHOWN_LENGTH_MAX:
        return f"{text[:_SHOWN_LENGTH_MAX]!a}... ({len(text)} characters)"
    return ascii(text)
