"""The configuration of a landing: the tables of its TOML file."""

import re
from collections.abc import Iterable
from itertools import permutations
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from millrace.setting_units import ByteSize
from millrace_spark.errors import OptionError
from millrace_spark.landing.formats import LineFormat, TextFormat, columns_of
from millrace_spark.landing.paths import WorkFolder, absolute_path, file_system_of, name_of
from millrace_spark.option_values import TLS_OPTIONS, parse_timestamp
from millrace_spark.shards import is_meant, parse_endpoints

EVENT_COLUMNS = ("channel", "endpoint", "sequence", "headers", "body", "commit_time")
"""Columns of events that rows may have in addition to the parsed columns."""

TIME_PARTS = ("year", "month", "week", "day", "date", "hour", "minute")
"""Parts of a time that may be partitions."""

HEADER = "headers."
"""The prefix of a header's name among column names."""

LANDING_TIME = "landing"
"""The value of `partitions.time` for the time at which a row is landed."""

_NAMES_MAX = 16
_CHANNEL = re.compile(r"[a-z0-9*?\[\]!._-]{1,64}")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")

Names = Annotated[list[str], Field(max_length=_NAMES_MAX)]


def _checked_path(path: str) -> str:
    try:
        return absolute_path(path)
    except ValueError as error:
        raise ValueError(f"is {path!r}; it must be {error}") from None


def _checked_endpoints(endpoints: list[str]) -> list[str]:
    try:
        parse_endpoints(",".join(endpoints))
    except OptionError as error:
        raise ValueError(str(error).removeprefix("option endpoints: ")) from None
    return endpoints


def _servers(endpoints: list[str]) -> set[str]:
    return {server.strip() for endpoint in endpoints for server in endpoint.split("/")}


Endpoints = Annotated[list[str], Field(min_length=1, max_length=1_000), AfterValidator(_checked_endpoints)]
FolderPath = Annotated[str, AfterValidator(_checked_path)]


class TlsConfig(BaseModel, frozen=True, extra="forbid"):
    """How to connect over TLS, by the paths of PEM files on the driver and each executor."""

    ca: str | None = Field(None, min_length=1)
    """The authorities that sign the servers' certificates; default: those that come with gRPC."""

    certificate: str | None = Field(None, min_length=1)
    """The client's certificate, with the intermediate ones."""

    private_key: str | None = Field(None, min_length=1)
    """Its private key, without a password."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key must be given together; one of them is missing")
        if not self.model_fields_set:
            raise ValueError("has no file; set ca, or remove the table")
        return self

    @property
    def options(self) -> dict[str, str]:
        """The options of TLS of reading and writing."""
        paths = zip(TLS_OPTIONS, (self.ca, self.certificate, self.private_key), strict=True)
        return {name: path for name, path in paths if path is not None}


class SourceConfig(BaseModel, frozen=True, extra="forbid"):
    """The channels to land, and the size of batches."""

    endpoints: Endpoints
    """Servers that hold the channels, `host:port`; those that share replicated ones as `mill-1:7070/mill-2:7070`."""

    channels: list[str] = Field(min_length=1, max_length=1_000)
    """Names of channels, or patterns such as `web-*`, which are looked up on each server when the landing starts."""

    reader_id: str | None = Field(None, min_length=1, max_length=128, pattern="^[!-~]+$")
    """The reader that claims the channels; default: a name derived from the target's path. A restart takes over its own
    claim; another landing needs another name."""

    starting_sequences: str = "earliest"
    """Where the first run starts: `earliest`, `latest`, or JSON by channel. Later runs continue from the last one."""

    starting_timestamp: str | None = None
    """Where the first run starts instead of `starting_sequences`: at the first events committed at or after this time,
    such as `2026-01-31T08:00:00Z`."""

    events_per_batch_max: int = Field(500_000, ge=1, le=1_000_000_000)
    """The maximum events of a batch, over all channels."""

    bytes_per_batch_max: int | None = Field(None, ge=1, le=1 << 50)
    """The maximum bytes of bodies in a batch, by the mean body size of each channel."""

    events_per_batch_min: int | None = Field(None, ge=1, le=1_000_000_000)
    """With `follow`: the minimum events of a batch, for which it waits up to `batch_delay_seconds_max`."""

    batch_delay_seconds_max: float = Field(900.0, gt=0, le=86_400, allow_inf_nan=False)
    """The longest wait for `events_per_batch_min`."""

    fail_on_data_loss: bool = True
    """Fail if events are gone that were not landed; otherwise continue with the remaining events."""

    takeover: bool = False
    """End another reader's claim."""

    lease_seconds: float | None = Field(None, gt=0, le=3_600, allow_inf_nan=False)
    """How long a claim outlives a killed landing; default: 30."""

    retry_seconds: float | None = Field(None, gt=0, le=86_400, allow_inf_nan=False)
    """How long calls to a server that does not respond are retried; default: 120."""

    tls: TlsConfig | None = None
    """How to connect over TLS, also to the servers of `bad_lines`; default: plain text. The table `[source.tls]` has
    the paths of PEM files on the driver and each executor: `ca`, the authorities that sign the servers' certificates;
    `certificate` and `private_key`, the client's own."""

    token_file: str | None = Field(None, min_length=1)
    """The file of the token that proves who lands, also to the servers of `bad_lines`, on the driver and each executor;
    it is read again when it changes."""

    @property
    def security_options(self) -> dict[str, str]:
        """The options of TLS and the token, of reading and writing."""
        tls = {} if self.tls is None else self.tls.options
        return tls if self.token_file is None else {**tls, "token.file": self.token_file}

    @field_validator("starting_timestamp")
    @classmethod
    def _check_starting_timestamp(cls, text: str | None) -> str | None:
        try:
            parse_timestamp(text or "0")
        except ValueError as error:
            raise ValueError(f"is {text!r}; it must be {error}") from None
        return text

    @model_validator(mode="after")
    def _check_one_start(self) -> Self:
        if self.starting_timestamp and "starting_sequences" in self.model_fields_set:
            raise ValueError("starting_timestamp excludes starting_sequences; remove one of them")
        return self

    @field_validator("channels")
    @classmethod
    def _check_channels(cls, channels: list[str]) -> list[str]:
        for channel in channels:
            if not _CHANNEL.fullmatch(channel):
                raise ValueError(f"{channel!r} is neither a channel's name nor a pattern such as web-*")
        return channels


Compression = Literal["zstd", "snappy", "gzip", "lz4", "none"]


class TargetConfig(BaseModel, frozen=True, extra="forbid"):
    """The destination of rows, and their columns in addition to the parsed ones."""

    path: FolderPath
    """The folder, local or on any file system that Hadoop supports: `landed/web`, `hdfs://namenode/landed/web`."""

    format: Literal["parquet", "delta"] = "parquet"
    """The file format. `delta` needs the package delta-spark, and makes the folder a Delta table."""

    compression: Compression = "zstd"
    """The compression of Parquet."""

    event_columns: Names = Field(default_factory=lambda: ["sequence"])
    """The columns of events in the rows: any of channel, endpoint, sequence, headers, body and commit_time."""

    event_column_prefix: str = Field("", max_length=64, pattern="^[A-Za-z0-9_]*$")
    """A prefix for the names of these columns, in case a parsed column has the same name."""

    header_columns: Names = Field(default_factory=list)
    """Headers that become string columns with their names."""

    file_prefix: str = ""
    """A prefix for the names of all files."""

    rows_per_file_max: int | None = Field(None, ge=1, le=1_000_000_000)
    """The maximum rows of a file; larger files are split."""

    work_path: FolderPath | None = None
    """The folder of the checkpoint, staged files and records, on the same file system; default: `path` with the suffix
    `.landing`. Without it, the landing starts from scratch."""

    @field_validator("event_columns")
    @classmethod
    def _check_event_columns(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in EVENT_COLUMNS:
                raise ValueError(f"{name!r} is not a column of events; these are {', '.join(EVENT_COLUMNS)}")
        return names

    @field_validator("file_prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        # Readers ignore files that begin with a dot or an underscore.
        if prefix and not _PREFIX.fullmatch(prefix):
            raise ValueError(
                f"is {prefix!r}; it must be letters, digits, dots and dashes, with a letter or digit first"
            )
        return f"{prefix.rstrip('-')}-" if prefix else ""


class PartitionConfig(BaseModel, frozen=True, extra="forbid"):
    """The partitions: the folders within the target."""

    by: Names = Field(default_factory=list)
    """Parts of the time (year, month, week, day, date, hour, minute), parsed columns, or `headers.NAME`; outermost
    first."""

    time: str | None = None
    """The column with the time of a row, `headers.NAME`, or `landing` for the time of landing; default: the column
    `time`."""

    time_format: str = "auto"
    """The format of times that are text or numbers: Spark's pattern letters, `epoch_seconds` or `epoch_milliseconds`.
    With `auto`, numbers are milliseconds since 1970, and text is ISO 8601."""

    time_zone: str = "UTC"
    """The time zone of the partitions."""

    no_time: Literal["landing", "bad"] = "landing"
    """How to treat rows without a time: use the time of landing, or as bad lines."""

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
                raise ValueError(f"{name!r} is empty or duplicated; each partition needs a name of its own")
        return names

    @property
    def header_names(self) -> list[str]:
        return [name.removeprefix(HEADER) for name in self.by if name.startswith(HEADER)]

    @property
    def needs_time(self) -> bool:
        return any(name in TIME_PARTS for name in self.by)


class BadLinesConfig(BaseModel, frozen=True, extra="forbid"):
    """The destination of lines that cannot be parsed, with the reason and the whole event."""

    channel: str | None = Field(None, min_length=1, max_length=64)
    """A dead-letter channel; `millrace dead-letter` shows its events, and replays them to their channels."""

    endpoints: Endpoints | None = None
    """Servers that hold this channel; default: those of the source."""

    path: FolderPath | None = None
    """A folder of Parquet files, on the file system of the target; default: the target with the suffix `.bad`."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.channel is not None and self.path is not None:
            raise ValueError("has channel and path; it must have one of them")
        if self.endpoints is not None and self.channel is None:
            raise ValueError("has endpoints, but no channel; set channel, or remove endpoints")
        return self


class CompactionConfig(BaseModel, frozen=True, extra="forbid"):
    """The compaction of small files."""

    target_bytes: ByteSize = Field(128 * 1024 * 1024, ge=1, le=1 << 40)
    """The approximate size of merged files; files of at least half this size are not merged."""

    files_min: int = Field(8, ge=2, le=1_000_000)
    """A partition is compacted when it has this many small files."""

    quiet_seconds: float = Field(600.0, ge=0, le=31_536_000, allow_inf_nan=False)
    """A partition is compacted only after this time without new files."""

    enabled: bool = True
    """Compact between batches, and at the end."""


class RunConfig(BaseModel, frozen=True, extra="forbid"):
    """When the program runs and stops."""

    follow: bool = False
    """Run until stopped; otherwise end when all events that were there at the start are landed."""

    trigger_seconds: float = Field(10.0, ge=0, le=86_400, allow_inf_nan=False)
    """With `follow`: the interval between the starts of batches; 0 starts one as soon as there are events."""

    grace_seconds: float = Field(60.0, ge=0, le=3_600, allow_inf_nan=False)
    """How long a batch may continue after a stop signal; after that it is aborted, and the next start lands it."""


class SparkConfig(BaseModel, frozen=True, extra="forbid"):
    """The Spark that the program starts; under spark-submit, the existing one is used."""

    master: str = "local[*]"
    """The master URL."""

    conf: dict[str, str] = Field(default_factory=dict)
    """Settings of Spark, such as `"spark.driver.memory" = "4g"`."""


class LandingConfig(BaseModel, frozen=True, extra="forbid"):
    """The whole configuration."""

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
        """The folder of bad lines, if they do not go to a channel."""
        return self.bad_lines.path or f"{self.target.path}.bad"

    @property
    def work(self) -> WorkFolder:
        return WorkFolder(self.target.work_path) if self.target.work_path else WorkFolder.beside(self.target.path)

    @property
    def landing_name(self) -> str:
        """The name of the landing, which is also its reader id."""
        return self.source.reader_id or f"land-{name_of(self.target.path)}"

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        """Checks that the folders are separate, and on one file system, since files are renamed between them."""
        for setting, path in (("bad_lines.path", self.bad_lines.path), ("target.work_path", self.target.work_path)):
            if path is None:
                continue
            if file_system_of(path) != file_system_of(self.target.path):
                raise ValueError(
                    f"{setting}: is {path}; it must be on the file system of target.path, {self.target.path}"
                )
        places = {"target.work_path": self.work.path, "target.path": self.target.path}
        if self.bad_lines.channel is None:
            places["bad_lines.path"] = self.bad_lines_path
        for (setting, path), (other, folder) in permutations(places.items(), 2):
            if f"{path}/".startswith(f"{folder}/"):
                raise ValueError(
                    f"{setting}: is {path}, which is in {other}, {folder}; each must be a separate folder, "
                    "none inside another"
                )
        return self

    @model_validator(mode="after")
    def _check_bad_lines(self) -> Self:
        channel = self.bad_lines.channel
        endpoints = self.bad_lines.endpoints or self.source.endpoints
        is_shared = not _servers(endpoints).isdisjoint(_servers(self.source.endpoints))
        if channel and is_meant(channel, tuple(self.source.channels)) and is_shared:
            raise ValueError(
                f"bad_lines.channel: is {channel}, which source.channels match too, so its lines would be landed again "
                "and again; choose a name that they do not match"
            )
        return self

    def find_column_problem(self, parsed: Iterable[str]) -> str | None:
        """Returns an error about a missing or duplicate column; None if there is none."""
        parsed = list(parsed)
        for name in self.partitions.by:
            if name in TIME_PARTS and name in parsed:
                return f"partitions.by: {name!r} is both a part of the time and a parsed column; rename the column"
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
            # A partition that is a parsed column is not a second column.
            *(name for name in self.partitions.by if name in TIME_PARTS),
        ]
        # Spark's column names are case-insensitive.
        lowered = [name.lower() for name in names]
        for name in names:
            if lowered.count(name.lower()) > 1:
                return (
                    f"target: the column {name!r} would be duplicated; set target.event_column_prefix, or remove it "
                    "from target.event_columns, target.header_columns or partitions.by"
                )
        return None

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        """Checks the columns that are known; those of JSON are known once Spark has parsed the schema."""
        known = columns_of(self.parse)
        time = self.partitions.time or "time"
        if known is None:
            problem = self._find_duplicate([])
        elif self.partitions.needs_time and not (time in known or time == LANDING_TIME or time.startswith(HEADER)):
            problem = (
                f"partitions.time: {time!r} is not a parsed column; the columns are {', '.join(known)}. "
                f"Name one of them, headers.NAME, or {LANDING_TIME}"
            )
        else:
            problem = self.find_column_problem(known)
        if problem is not None:
            raise ValueError(problem)
        return self
