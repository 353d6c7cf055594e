"""Settings of the sink `files`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BeforeValidator, Field, Secret, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace.setting_units import ByteSize
from millrace.units import KIB, MIB, TIB
from millrace_server.agent.setting_types import TimeZoneName, revealed, time_zone_of
from millrace_server.agent.sinks.files.event_files import EventFiles, FileNames
from millrace_server.agent.sinks.files.local_target import LocalTarget
from millrace_server.agent.sinks.files.open_files import OpenFiles, RollLimits
from millrace_server.agent.sinks.files.paths import Partitioner, PathRules, PathTemplate, TimeRule
from millrace_server.agent.sinks.files.sink import FilesSink, FilesSinkSettings
from millrace_server.agent.sinks.files.sink_directory import SinkDirectory
from millrace_server.agent.sinks.files.targets import FileTarget, RemoteTarget, open_file_system
from millrace_server.agent.sinks.files.writers import Compression, EventWriter, JsonWriter, TextWriter
from millrace_server.agent.sinks.sink import NonRejectingSinkConfig, Sink, SinkContext
from millrace_server.extras import check_installed

_DAY_SECONDS = 86_400

_SUFFIXES = {"text": ".txt", "json": ".jsonl", "avro": ".avro", "parquet": ".parquet"}
_COMPRESSION_SUFFIXES = {"gzip": ".gz", "zstd": ".zst"}
_LIBRARIES = {"avro": "fastavro", "parquet": "pyarrow"}


def _check_option(value: object) -> object:
    if not isinstance(value, str | int):
        raise ValueError(f"is {shown_value(value)}; it must be text, a whole number, true or false")  # noqa: TRY004 - pydantic asks for it
    return value


Option = Annotated[Any, BeforeValidator(_check_option)]
"""An option of a file system's library."""


class FilesSinkConfig(NonRejectingSinkConfig):
    """A sink that writes events into files. An event leaves its channel once its file has its final name."""

    type: Literal["files"]
    """Files of text, JSON, Avro or Parquet."""

    path: str
    """The directory: `/data/{header:host}/dt={time:%Y-%m-%d}`, or a path of this form after `s3://`, `hdfs://` and so
    on.

    On this machine, the directory before the first brace must exist; those below it are created. While it is unmounted,
    renamed or replaced by another directory, nothing is written.
    """

    options: dict[str, Secret[Option]] = Field(default_factory=dict)
    """Options of the file system in `path`, such as `region` and `endpoint_override`: pyarrow's for S3, or fsspec's.

    Their values are never shown, since they may be secrets.
    """

    format: Literal["text", "json", "avro", "parquet"] = "text"
    """`text`: the bodies. The others store an event's sequence, headers and body; `json`: one event per line."""

    body: Literal["text", "binary"] | None = None
    """The type of bodies in the other formats; with `text`, bodies that are not UTF-8 are stored separately. None:
    `text` for JSON, otherwise `binary`."""

    append_newline: bool = True
    """Whether a newline is written after each body in the format `text`."""

    compression: Compression = "none"
    """The compression of text and JSON files as a whole, and of blocks in Avro and Parquet. `snappy`: Parquet only."""

    prefix: str = Field("", pattern=r"^(?:([A-Za-z0-9][A-Za-z0-9._=-]{0,63})?)$")
    """The start of the files' names; the sink's name, the channel's id and the events' sequences follow."""

    suffix: str | None = Field(None, pattern=r"^(?:[A-Za-z0-9._=-]{0,32})$")
    """The end of the files' names. None: derived from format and compression, such as `.jsonl.gz`."""

    time_header: str = Field("timestamp", min_length=1)
    """The header with the time for `path`: milliseconds since 1970, or ISO 8601 (in UTC if there is no offset)."""

    time_missing: Literal["clock", "word"] = "clock"
    """What to use for an event without a valid time: `clock`, the time of writing, or `word`, `missing_word`."""

    time_zone: TimeZoneName = "UTC"
    """The time zone of times in `path`, such as `Europe/Paris`."""

    time_round_seconds: int = Field(1, ge=1, le=_DAY_SECONDS)
    """Times in `path` are rounded down to a multiple of this, counted from midnight."""

    missing_word: str = Field("unknown", pattern=r"^(?:[A-Za-z0-9_][A-Za-z0-9._=-]{0,99})$")
    """Replaces a header in `path` that an event does not have."""

    roll_bytes: ByteSize = Field(128 * MIB, ge=KIB, le=TIB)
    """A file is finished at approximately this size."""

    roll_events: int = Field(10_000_000, ge=1, le=1_000_000_000)
    """The maximum number of events in a file."""

    roll_seconds: float = Field(300.0, ge=0.1, le=_DAY_SECONDS, allow_inf_nan=False)
    """A file is finished this long after its first event."""

    idle_seconds: float = Field(
        default_factory=lambda fields: fields["roll_seconds"], ge=0.1, le=_DAY_SECONDS, allow_inf_nan=False
    )
    """A file is finished this long after its last event. Default: `roll_seconds`, which has no effect."""

    open_files_max: int = Field(100, ge=1, le=10_000)
    """The maximum number of open files; beyond it, the least recently written file is finished."""

    stall_seconds: float = Field(60.0, ge=0.1, le=_DAY_SECONDS, allow_inf_nan=False)
    """A file system that takes longer for an operation counts as not responding."""

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        template = PathTemplate.parse(path)
        if template.scheme:
            _check_file_system(path, template)
        return path

    @field_validator("format")
    @classmethod
    def _check_library(cls, file_format: str) -> str:
        library = _LIBRARIES.get(file_format)
        if library is not None:
            check_installed(file_format, library, "files")
        return file_format

    @field_validator("compression")
    @classmethod
    def _check_compression(cls, compression: Compression, info: ValidationInfo) -> Compression:
        file_format = info.data.get("format")
        if compression == "snappy" and file_format not in {"parquet", None}:
            kinds = " or ".join(map(shown_value, ("none", "gzip", "zstd")))
            raise ValueError(f"is {shown_value(compression)}; for format {shown_value(file_format)} it must be {kinds}")
        return compression

    def make(self, context: SinkContext) -> Sink:
        template = PathTemplate.parse(self.path)
        settings = FilesSinkSettings(context.name, template.root, self.batch_events_max, self.stall_seconds)
        # One for all runs of the sink: no run may write into another directory than the first one did.
        target = self._target(template, context.directory / "staging")
        return FilesSink(settings, partial(self._make_files, context, template, target, self._writer()))

    def _make_files(
        self,
        context: SinkContext,
        template: PathTemplate,
        target: FileTarget,
        make_writer: Callable[[BinaryIO], EventWriter],
    ) -> EventFiles:
        limits = RollLimits(
            self.roll_bytes, self.roll_events, self.roll_seconds, self.idle_seconds, self.open_files_max
        )
        times = TimeRule(time_zone_of(self.time_zone), self.time_round_seconds)
        rules = PathRules(template, times, self.time_header, self.missing_word, self.time_missing == "clock")
        return EventFiles(
            SinkDirectory(context.directory, context.name),
            target,
            Partitioner(rules),
            OpenFiles(limits, make_writer),
            FileNames(f"{self.prefix}{context.name}-", self._suffix()),
        )

    def _target(self, template: PathTemplate, staging: Path) -> FileTarget:
        if not template.scheme:
            return LocalTarget(Path(template.root))
        make = partial(open_file_system, template.root, revealed(self.options))
        return RemoteTarget(make, template.root, staging)

    def _suffix(self) -> str:
        if self.suffix is not None:
            return self.suffix
        is_stream = self.format in {"text", "json"}
        return _SUFFIXES[self.format] + (_COMPRESSION_SUFFIXES.get(self.compression, "") if is_stream else "")

    def _writer(self) -> Callable[[BinaryIO], EventWriter]:
        """Returns the factory of the format's writer, whose library is imported only here."""
        is_body_text = self.body == "text" or (self.body is None and self.format == "json")
        match self.format:
            case "text":
                return partial(TextWriter, compression=self.compression, append_newline=self.append_newline)
            case "json":
                return partial(JsonWriter, compression=self.compression, is_body_text=is_body_text)
            case "avro":
                from millrace_server.agent.sinks.files.avro_writer import AvroWriter

                return partial(AvroWriter, compression=self.compression, is_body_text=is_body_text)
            case "parquet":
                from millrace_server.agent.sinks.files.parquet_writer import ParquetWriter

                return partial(ParquetWriter, compression=self.compression, is_body_text=is_body_text)


def _check_file_system(path: str, template: PathTemplate) -> None:
    check_installed(path, "fsspec", "files")
    if template.scheme in {"s3", "hdfs"}:
        check_installed(path, "pyarrow", "files")
        return
    import fsspec

    try:
        fsspec.get_filesystem_class(template.scheme)
    except (ImportError, ValueError) as error:
        raise ValueError(f"is {shown_value(path)}, whose file system cannot be used: {error}") from None
