"""The settings of the source `spooldir`."""

import importlib.util
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext
from millrace_server.channels.config import NamedPath

MIB = 1 << 20

QUARANTINED_SUFFIX = ".QUARANTINED"
"""Ends the name of a bad file that could not be moved away."""

REASON_SUFFIX = ".reason"
"""Ends the name of the text file that says why a file is bad."""


def _check_suffix(suffix: str) -> str:
    if not suffix or "/" in suffix or "\0" in suffix:
        raise ValueError(f'is {shown_value(suffix)}; it must be the end of a file\'s name, such as ".COMPLETED"')
    return suffix


HeaderName = Annotated[str, Field(min_length=1)]
Pattern = Annotated[str, Field(min_length=1)]


class LinesFormat(LinesConfig, frozen=True, extra="forbid"):
    """Each line is an event, or several lines are."""

    type: Literal["lines"]
    """Each line is an event, or several lines are."""


class BlobFormat(BaseModel, frozen=True, extra="forbid"):
    """Each file is one event."""

    type: Literal["blob"]
    """Each file is one event."""

    file_bytes_max: int = Field(16 * MIB, ge=1, le=1024 * MIB)
    """A larger file, counted without its compression, is bad."""


class AvroFormat(BaseModel, frozen=True, extra="forbid"):
    """Each record of an Avro container file is an event."""

    type: Literal["avro"]
    """Each record of an Avro container file is an event."""

    body: Literal["json", "avro"] = "json"
    """What a body is: the record as JSON, or in Avro's binary encoding with the file's schema."""

    schema_header: HeaderName | None = None
    """The header that gets the file's schema, as JSON."""

    @field_validator("type")
    @classmethod
    def _check_is_installed(cls, value: Literal["avro"]) -> Literal["avro"]:
        if importlib.util.find_spec("fastavro") is None:
            raise ValueError('is "avro", which needs fastavro; install "millrace-server[avro]"')
        return value


AnyFormat = Annotated[LinesFormat | BlobFormat | AvroFormat, Field(discriminator="type")]
"""What is in a file, told apart by its `type`."""


class RenameDone(BaseModel, frozen=True, extra="forbid"):
    """Done files get another name."""

    type: Literal["rename"]
    """Done files get another name."""

    suffix: Annotated[str, AfterValidator(_check_suffix)] = ".COMPLETED"
    """What is added to the name. Files whose names end so are not taken."""


class DeleteDone(BaseModel, frozen=True, extra="forbid"):
    """Done files are deleted."""

    type: Literal["delete"]
    """Done files are deleted."""


class MoveDone(BaseModel, frozen=True, extra="forbid"):
    """Done files are moved to another directory."""

    type: Literal["move"]
    """Done files are moved to another directory."""

    directory: NamedPath
    """Where to, on the same filesystem. It is made where it is not there."""


AnyDone = Annotated[RenameDone | DeleteDone | MoveDone, Field(discriminator="type")]
"""What becomes of a file all of which is stored, told apart by its `type`."""


class SpooldirSourceConfig(SourceConfig):
    """A source of files that are put into a directory whole, and not changed any more.

    Names that end with `.gz` or with `.zst` or `.zstd` are compressed. Names that begin with a dot are never taken: so
    are files called that somebody is still writing.
    """

    type: Literal["spooldir"]
    """Files that are put into a directory whole."""

    directory: NamedPath
    """Where files are put."""

    recursive: bool = False
    """Whether files in directories below it are taken too."""

    include: list[Pattern] = Field(default_factory=lambda: ["*"], min_length=1)
    """Which files are taken: shell patterns (`*`, `?`, `[...]`) of names, or of paths below `directory` where they have
    a slash."""

    exclude: list[Pattern] = Field(default_factory=list)
    """Which of these are not."""

    order: Literal["oldest", "youngest", "name"] = "oldest"
    """Which of the files that wait is taken first, by the time of its last change, or by its path."""

    poll_seconds: float = Field(0.5, ge=0.05, le=3600, allow_inf_nan=False)
    """How often the directory is looked into; less often where that takes long."""

    settle_seconds: float = Field(1.0, ge=0, le=3600, allow_inf_nan=False)
    """A file is taken once it was seen without a change for so long."""

    format: AnyFormat = Field(default_factory=lambda: LinesFormat(type="lines"))
    """What is in the files."""

    done: AnyDone = Field(default_factory=lambda: RenameDone(type="rename"))
    """What becomes of a file once all of it is stored."""

    quarantine_directory: NamedPath | None = None
    """Where bad files are moved to, on the same filesystem. Default: `quarantine` below `directory`."""

    file_header: HeaderName | None = None
    """The header that gets the path of the file that an event came from."""

    basename_header: HeaderName | None = None
    """The header that gets the file's name without its directories."""

    offset_header: HeaderName | None = None
    """The header that gets where in the file the event begins: the byte, without compression, or which record it is,
    from 0."""

    @property
    def quarantine(self) -> Path:
        """Where bad files are moved to."""
        return self.quarantine_directory or self.directory / "quarantine"

    @property
    def own_directories(self) -> frozenset[Path]:
        """Directories that the source fills, as they are called when they lie below `directory`."""
        moved = [self.done.directory] if isinstance(self.done, MoveDone) else []
        root = self.directory.absolute()
        return frozenset(
            self.directory / own.absolute().relative_to(root)
            for own in (self.quarantine, *moved)
            if own.absolute().is_relative_to(root)
        )

    @property
    def own_suffixes(self) -> tuple[str, ...]:
        """How the names end that the source gives to files in `directory`."""
        done = (self.done.suffix,) if isinstance(self.done, RenameDone) else ()
        return (*done, QUARANTINED_SUFFIX, QUARANTINED_SUFFIX + REASON_SUFFIX)

    @field_validator("done", "quarantine_directory")
    @classmethod
    def _check_is_another_directory(cls, value: Any, info: ValidationInfo) -> Any:
        target = value.directory if isinstance(value, MoveDone) else value
        directory = info.data.get("directory")
        if isinstance(target, Path) and directory and target.absolute() == directory.absolute():
            raise ValueError(f"is {shown_value(str(target))}; it must be another directory than `directory`")
        return value

    def make(self, place: SourceContext) -> Source:
        from millrace_server.agent.sources.spooldir.source import SpooldirSource

        return SpooldirSource(place.name, self)
