"""Settings of the source `spooldir`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace.setting_units import ByteSize
from millrace.units import GIB, MIB
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.setting_types import check_fastavro
from millrace_server.agent.sources.source import SourceConfig
from millrace_server.files import NamedPath

QUARANTINED_SUFFIX = ".QUARANTINED"
"""The suffix of a bad file that could not be moved away."""

REASON_SUFFIX = ".reason"
"""The suffix of the text file that says why a file is bad."""


def _check_suffix(suffix: str) -> str:
    if not suffix or "/" in suffix or "\0" in suffix:
        raise ValueError(f'is {shown_value(suffix)}; it must be the end of a file\'s name, such as ".COMPLETED"')
    return suffix


HeaderName = Annotated[str, Field(min_length=1)]
Pattern = Annotated[str, Field(min_length=1)]


class LinesFormat(LinesConfig, frozen=True, extra="forbid", defer_build=True):
    """Each event is one line, or several lines."""

    type: Literal["lines"]
    """Each event is one line, or several lines."""


class BlobFormat(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Each file is one event."""

    type: Literal["blob"]
    """Each file is one event."""

    file_bytes_max: ByteSize = Field(16 * MIB, ge=1, le=GIB)
    """A larger file, measured after decompression, is bad."""


class AvroFormat(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Each record of an Avro container file is an event."""

    type: Literal["avro"]
    """Each record of an Avro container file is an event."""

    body: Literal["json", "avro"] = "json"
    """The body of an event: the record as JSON, or in Avro's binary encoding with the schema of the file."""

    schema_header: HeaderName | None = None
    """The header for the schema of the file, as JSON."""

    _check_is_installed = field_validator("type")(check_fastavro)


AnyFormat = Annotated[LinesFormat | BlobFormat | AvroFormat, Field(discriminator="type")]
"""The format of files; `type` selects it."""


class RenameDone(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Completed files are renamed."""

    type: Literal["rename"]
    """Completed files are renamed."""

    suffix: Annotated[str, AfterValidator(_check_suffix)] = ".COMPLETED"
    """Appended to the name. Files whose names have this suffix are not read."""


class DeleteDone(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Completed files are deleted."""

    type: Literal["delete"]
    """Completed files are deleted."""


class MoveDone(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Completed files are moved to another directory."""

    type: Literal["move"]
    """Completed files are moved to another directory."""

    directory: NamedPath
    """The target, on the same filesystem. It is created if it does not exist."""


AnyDone = Annotated[RenameDone | DeleteDone | MoveDone, Field(discriminator="type")]
"""What to do with a file once all of it is stored; `type` selects it."""


class SpooldirSourceConfig(SourceConfig):
    """A source that reads files that are complete when they are put into a directory, and never change afterwards.

    Files whose names end with `.gz`, `.zst` or `.zstd` are decompressed. Files whose names begin with a dot are
    ignored; use such names for files that are still being written.
    """

    type: Literal["spooldir"]
    """Complete files that are put into a directory."""

    directory: NamedPath
    """The directory to watch."""

    recursive: bool = False
    """Whether to include subdirectories."""

    include: list[Pattern] = Field(default_factory=lambda: ["*"], min_length=1)
    """Which files to read: shell patterns (`*`, `?`, `[...]`) of names, or of paths relative to `directory` if they
    contain a slash."""

    exclude: list[Pattern] = Field(default_factory=list)
    """Which of these files to ignore."""

    order: Literal["oldest", "youngest", "name"] = "oldest"
    """Which file to read first: by modification time, or by path."""

    poll_seconds: float = Field(0.5, ge=0.05, le=3600, allow_inf_nan=False)
    """The interval at which the directory is scanned; longer if a scan takes long."""

    settle_seconds: float = Field(1.0, ge=0, le=3600, allow_inf_nan=False)
    """A file is read once it has not changed for this long."""

    format: AnyFormat = Field(default_factory=lambda: LinesFormat(type="lines"))
    """The format of the files."""

    done: AnyDone = Field(default_factory=lambda: RenameDone(type="rename"))
    """What to do with a file once it is completely stored."""

    quarantine_directory: NamedPath | None = None
    """The directory for bad files, on the same filesystem. Default: `quarantine` in `directory`."""

    file_header: HeaderName | None = None
    """The header for the path of the file."""

    basename_header: HeaderName | None = None
    """The header for the name of the file without its directories."""

    offset_header: HeaderName | None = None
    """The header for the position of the event in the file: the byte after decompression, or the index of the record,
    from 0."""

    @property
    def quarantine(self) -> Path:
        return self.quarantine_directory or self.directory / "quarantine"

    @property
    def own_directories(self) -> frozenset[Path]:
        """The directories below `directory` to which the source itself moves files."""
        moved = [self.done.directory] if isinstance(self.done, MoveDone) else []
        root = self.directory.absolute()
        return frozenset(
            self.directory / own.absolute().relative_to(root)
            for own in (self.quarantine, *moved)
            if own.absolute().is_relative_to(root)
        )

    @property
    def own_suffixes(self) -> tuple[str, ...]:
        """The suffixes that the source itself appends to names in `directory`."""
        done = (self.done.suffix,) if isinstance(self.done, RenameDone) else ()
        return (*done, QUARANTINED_SUFFIX, QUARANTINED_SUFFIX + REASON_SUFFIX)

    @field_validator("done", "quarantine_directory")
    @classmethod
    def _check_is_another_directory(cls, value: Any, info: ValidationInfo) -> Any:
        target = value.directory if isinstance(value, MoveDone) else value
        directory = info.data.get("directory")
        if isinstance(target, Path) and directory and target.absolute() == directory.absolute():
            raise ValueError(f"is {shown_value(str(target))}; it must be a directory other than `directory`")
        return value
