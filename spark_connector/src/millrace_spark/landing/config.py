"""What a landing is told: the tables of its TOML file."""

import re
from collections.abc import Iterable
from itertools import permutations
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field, field_validator, model_validator

from millrace_spark.errors import OptionError
from millrace_spark.landing.formats import LineFormat, TextFormat, columns_of
from millrace_spark.landing.paths import WorkFolder, absolute_path, file_system_of, name_of
from millrace_spark.option_values import parse_endpoints
from millrace_spark.shards import is_meant

EVENT_COLUMNS = ("channel", "endpoint", "sequence", "headers", "body")
"""Columns of events that a landed row may have besides what was parsed."""

TIME_PARTS = ("year", "month", "week", "day", "date", "hour", "minute")
"""Parts of a time that a partition may be named after."""

HEADER = "headers."
"""What stands before a header's name where a column is named."""

LANDING_TIME = "landing"
"""What `partitions.time` may be besides a column: the time at which a row is landed."""

_NAMES_MAX = 16
_CHANNEL = re.compile(r"[a-z0-9*?\[\]!._-]{1,64}")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")

Names = Annotated[list[str], Field(max_length=_NAMES_MAX)]


def _checked_path(path: str | None) -> str | None:
    try:
        return None if path is None else absolute_path(path)
    except ValueError as error:
        raise ValueError(f"is {path!r}; it must be {error}") from None


def _checked_endpoints(endpoints: list[str]) -> list[str]:
    try:
        return list(parse_endpoints(",".join(endpoints)))
    except OptionError as error:
        raise ValueError(str(error).removeprefix("option endpoints: ")) from None


class SourceConfig(BaseModel, frozen=True, extra="forbid"):
    """Which channels are landed, and how much of them at a time."""

    endpoints: list[str] = Field(min_length=1, max_length=1_000)
    """Servers that hold the channels, `host:port`."""

    channels: list[str] = Field(min_length=1, max_length=1_000)
    """Channels by name, or by patterns such as `web-*`, which are looked up on each server when the landing starts."""

    reader_id: str | None = Field(None, min_length=1, max_length=128, pattern="^[!-~]+$")
    """Who claims the channels; without it a name made of the target's path. A restart takes the claim of its former
    self; another landing needs another name."""

    starting_sequences: str = "earliest"
    """Where the first start begins, later ones go on where they were: `earliest`, `latest`, or JSON by channel."""

    events_per_batch_max: int = Field(500_000, ge=1, le=1_000_000_000)
    """Events that a batch takes at most, of all channels together."""

    bytes_per_batch_max: int | None = Field(None, ge=1, le=1 << 50)
    """Bytes of bodies that a batch takes at most, as the channels' mean sizes tell."""

    events_per_batch_min: int | None = Field(None, ge=1, le=1_000_000_000)
    """With `follow`: a batch waits for so many events, but no longer than `batch_delay_seconds_max`."""

    batch_delay_seconds_max: float = Field(900.0, gt=0, le=86_400, allow_inf_nan=False)
    """How long a batch waits for `events_per_batch_min`."""

    fail_on_data_loss: bool = True
    """End with an error where events are gone that were not landed; else go on with what is there."""

    takeover: bool = False
    """End another reader's claim."""

    lease_seconds: float | None = Field(None, gt=0, le=3_600, allow_inf_nan=False)
    """How long a claim outlives a landing that was killed; 30 without it."""

    retry_seconds: float | None = Field(None, gt=0, le=86_400, allow_inf_nan=False)
    """How long a server that does not answer is tried again; 120 without it."""

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, endpoints: list[str]) -> list[str]:
        return _checked_endpoints(endpoints)

    @field_validator("channels")
    @classmethod
    def _check_channels(cls, channels: list[str]) -> list[str]:
        for channel in channels:
            if not _CHANNEL.fullmatch(channel):
                raise ValueError(f"{channel!r} is no channel's name, and no pattern such as web-*")
        return channels


class TargetConfig(BaseModel, frozen=True, extra="forbid"):
    """Where rows go, and what they have besides what was parsed."""

    path: str
    """The folder, here or on any file system that Hadoop knows: `landed/web`, `hdfs://namenode/landed/web`."""

    format: Literal["parquet", "delta"] = "parquet"
    """What is written. `delta` needs the package delta-spark, and makes the folder a Delta table."""

    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    """How Parquet is compressed."""

    event_columns: Names = Field(default_factory=lambda: ["sequence"])
    """Which of channel, endpoint, sequence, headers and body become columns."""

    event_column_prefix: str = Field("", max_length=64, pattern="^[A-Za-z0-9_]*$")
    """What the names of these columns begin with, where a parsed column has the same name."""

    header_columns: Names = Field(default_factory=list)
    """Headers that become string columns of their names."""

    file_prefix: str = ""
    """What the names of all files begin with."""

    rows_per_file_max: int | None = Field(None, ge=1, le=1_000_000_000)
    """A file with more rows becomes several."""

    work_path: str | None = None
    """Where checkpoint, staging and records are, on the same file system; beside `path`, with `.landing` at its end,
    without it. Whoever removes it lands anew."""

    @field_validator("path", "work_path")
    @classmethod
    def _check_path(cls, path: str | None) -> str | None:
        return _checked_path(path)

    @field_validator("event_columns")
    @classmethod
    def _check_event_columns(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in EVENT_COLUMNS:
                raise ValueError(f"{name!r} is no column of events; these are {', '.join(EVENT_COLUMNS)}")
        return names

    @field_validator("file_prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        # Readers leave out what begins with a dot or an underscore.
        if prefix and not _PREFIX.fullmatch(prefix):
            raise ValueError(
                f"is {prefix!r}; it must be letters, digits, dots and dashes, with a letter or digit first"
            )
        return f"{prefix.rstrip('-')}-" if prefix else ""


class PartitionConfig(BaseModel, frozen=True, extra="forbid"):
    """Into which folders below the target rows are sorted."""

    by: Names = Field(default_factory=list)
    """Parts of the time (year, month, week, day, date, hour, minute), parsed columns, or `headers.NAME`; outermost
    first."""

    time: str | None = None
    """The column that holds a row's time, `headers.NAME`, or `landing`, which is when it is landed; without it the
    column `time`."""

    time_format: str = "auto"
    """How a time that is text or a number is written: Spark's letters, `epoch_seconds` or `epoch_milliseconds`; `auto`
    takes a timestamp as it is, a number as milliseconds since 1970, and text as ISO 8601."""

    time_zone: str = "UTC"
    """Whose hours and days they are."""

    no_time: Literal["landing", "bad"] = "landing"
    """What has no time is sorted by the time at which it is landed, or is a bad line."""

    round_minutes: int = Field(1, ge=1, le=1_440)
    """Times are rounded down to a multiple of this, counted from midnight in `time_zone`."""

    @field_validator("time_zone")
    @classmethod
    def _check_time_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ValueError, OSError, LookupError):
            raise ValueError(f"is {name!r}; it must be the name of a time zone, such as Europe/Berlin") from None
        return name

    @field_validator("by")
    @classmethod
    def _check_names(cls, names: list[str]) -> list[str]:
        plain = [name.removeprefix(HEADER).lower() for name in names]
        for name, other in zip(names, plain, strict=True):
            if not other or plain.count(other) > 1:
                raise ValueError(f"{name!r} is empty or comes twice; each partition needs a name of its own")
        return names

    @property
    def header_names(self) -> list[str]:
        """The headers that partitions are named after."""
        return [name.removeprefix(HEADER) for name in self.by if name.startswith(HEADER)]

    @property
    def needs_time(self) -> bool:
        """Whether a partition is named after a part of the time."""
        return any(name in TIME_PARTS for name in self.by)


class BadLinesConfig(BaseModel, frozen=True, extra="forbid"):
    """Where lines go that cannot be parsed, with the reason and all they came with."""

    channel: str | None = Field(None, min_length=1, max_length=64)
    """A dead-letter channel; `millrace dead-letter` shows it, and brings the lines back to where they came from."""

    endpoints: list[str] | None = Field(None, min_length=1, max_length=1_000)
    """Servers that hold this channel; those of the source without it."""

    path: str | None = None
    """A folder of Parquet files, on the file system of the target; beside the target, with `.bad` at its end, without
    it."""

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, endpoints: list[str] | None) -> list[str] | None:
        return None if endpoints is None else _checked_endpoints(endpoints)

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str | None) -> str | None:
        return _checked_path(path)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.channel is not None and self.path is not None:
            raise ValueError("has channel and path; it must have one of them")
        if self.endpoints is not None and self.channel is None:
            raise ValueError("has endpoints, but no channel there; name it, or leave out endpoints")
        return self


class CompactionConfig(BaseModel, frozen=True, extra="forbid"):
    """When small files are merged, and up to which size."""

    target_bytes: int = Field(128 * 1024 * 1024, ge=1, le=1 << 40)
    """Files are merged until they are about so large; what has at least half of it is left alone."""

    files_min: int = Field(8, ge=2, le=1_000_000)
    """A partition's small files are merged when there are so many of them."""

    quiet_seconds: float = Field(600.0, ge=0, le=31_536_000, allow_inf_nan=False)
    """A partition is left alone until nothing has come into it for so long."""

    enabled: bool = True
    """Merge between batches, and at the end."""


class RunConfig(BaseModel, frozen=True, extra="forbid"):
    """How long the program runs."""

    follow: bool = False
    """Go on until stopped; else end once all is landed that was there at the start."""

    trigger_seconds: float = Field(10.0, ge=0, le=86_400, allow_inf_nan=False)
    """With `follow`: a batch begins so long after the one before it began; 0 as soon as something is there."""

    grace_seconds: float = Field(60.0, ge=0, le=3_600, allow_inf_nan=False)
    """How long a batch may go on after the program was told to stop; then it is broken off, and the next start lands
    it."""


class SparkConfig(BaseModel, frozen=True, extra="forbid"):
    """The Spark that the program starts; under spark-submit the one that is there is taken."""

    master: str = "local[*]"
    """Where it runs."""

    conf: dict[str, str] = Field(default_factory=dict)
    """Settings of Spark, such as `"spark.driver.memory" = "4g"`."""


class LandingConfig(BaseModel, frozen=True, extra="forbid"):
    """A whole configuration."""

    source: SourceConfig
    """The table `[source]`."""

    parse: LineFormat = Field(default_factory=lambda: TextFormat(type="text"))
    """The table `[parse]`."""

    target: TargetConfig
    """The table `[target]`."""

    partitions: PartitionConfig = Field(default_factory=PartitionConfig)
    """The table `[partitions]`."""

    bad_lines: BadLinesConfig = Field(default_factory=BadLinesConfig)
    """The table `[bad_lines]`."""

    compaction: CompactionConfig = Field(default_factory=CompactionConfig)
    """The table `[compaction]`."""

    run: RunConfig = Field(default_factory=RunConfig)
    """The table `[run]`."""

    spark: SparkConfig = Field(default_factory=SparkConfig)
    """The table `[spark]`."""

    @property
    def bad_lines_path(self) -> str:
        """The folder of bad lines, where they go to one."""
        return self.bad_lines.path or f"{self.target.path}.bad"

    @property
    def work(self) -> WorkFolder:
        """Where the landing keeps what is no landed file."""
        return WorkFolder(self.target.work_path) if self.target.work_path else WorkFolder.beside(self.target.path)

    @property
    def landing_name(self) -> str:
        """Who claims the channels."""
        return self.source.reader_id or f"land-{name_of(self.target.path)}"

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        """Files are renamed from the work folder to the others and what is left of them is removed there.

        And no reader of rows may find another's files.
        """
        for setting, path in (("bad_lines.path", self.bad_lines.path), ("target.work_path", self.target.work_path)):
            if path is None:
                continue
            if file_system_of(path) != file_system_of(self.target.path):
                raise ValueError(
                    f"{setting}: is {path}; it must lie on the file system of target.path, {self.target.path}"
                )
        places = {"target.work_path": self.work.path, "target.path": self.target.path}
        if self.bad_lines.channel is None:
            places["bad_lines.path"] = self.bad_lines_path
        for (setting, path), (other, folder) in permutations(places.items(), 2):
            if f"{path}/".startswith(f"{folder}/"):
                raise ValueError(
                    f"{setting}: is {path}, which lies in {other}, {folder}; each must be a folder of its own, beside "
                    "the others"
                )
        return self

    @model_validator(mode="after")
    def _check_bad_lines(self) -> Self:
        channel = self.bad_lines.channel
        endpoints = self.bad_lines.endpoints or self.source.endpoints
        if channel and is_meant(channel, tuple(self.source.channels)) and set(endpoints) & set(self.source.endpoints):
            raise ValueError(
                f"bad_lines.channel: is {channel}, which source.channels mean too, so its lines would be landed and "
                "set aside again and again; give it a name that they do not fit"
            )
        return self

    def find_column_problem(self, parsed: Iterable[str]) -> str | None:
        """Says which column there is not, or would come twice; None where all is well.

        Args:
            parsed: The columns that lines become.
        """
        parsed = list(parsed)
        for name in self.partitions.by:
            if name in TIME_PARTS and name in parsed:
                return f"partitions.by: {name!r} is a part of the time and a parsed column, too; rename the column"
            if name not in (*TIME_PARTS, *parsed) and not name.startswith(HEADER):
                return (
                    f"partitions.by: {name!r} is neither a part of the time ({', '.join(TIME_PARTS)}) "
                    f"nor a parsed column ({', '.join(parsed)}) nor headers.NAME"
                )
        return self._find_duplicate(parsed)

    def _find_duplicate(self, parsed: list[str]) -> str | None:
        names = [
            *parsed,
            *(self.target.event_column_prefix + name for name in self.target.event_columns),
            *self.target.header_columns,
            *self.partitions.header_names,
            # A partition that is a parsed column is that column, and there once.
            *(name for name in self.partitions.by if name in TIME_PARTS),
        ]
        # Spark tells no names apart by their case.
        lowered = [name.lower() for name in names]
        for name in names:
            if lowered.count(name.lower()) > 1:
                return (
                    f"target: the column {name!r} would come twice; choose a target.event_column_prefix, or leave one "
                    "out of target.event_columns, target.header_columns or partitions.by"
                )
        return None

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        """As far as columns are known: those of JSON are when Spark has read the schema."""
        known = columns_of(self.parse)
        time = self.partitions.time or "time"
        if known is None:
            problem = self._find_duplicate([])
        elif self.partitions.needs_time and not (time in known or time == LANDING_TIME or time.startswith(HEADER)):
            problem = (
                f"partitions.time: {time!r} is no parsed column; these are {', '.join(known)}. "
                f"Name one of them, headers.NAME, or {LANDING_TIME}"
            )
        else:
            problem = self.find_column_problem(known)
        if problem is not None:
            raise ValueError(problem)
        return self
