"""Settings of the source `taildir`."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext, source_class

HeaderKey = Annotated[str, Field(min_length=1, max_length=256)]


def _check_pattern(pattern: str) -> str:
    if "\0" in pattern:
        raise ValueError(f"is {shown_value(pattern)}; no file can have such a name")
    return pattern


PathPattern = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_check_pattern)]


class TaildirSourceConfig(LinesConfig, SourceConfig, frozen=True, extra="forbid", defer_build=True):
    """A source of the lines of growing files.

    A file is identified by its device, its inode and its first bytes, regardless of its name. After it is renamed, it
    is read to its end; after it is truncated or rewritten, it is a new file. A file with another name that begins like
    a truncated file, and contains the bytes last read from it, is its copy, and is read from that position. Files that
    are found at the same time are read in the order of their modification times, as they were rotated. Copies are not
    recognized if fewer than 16 bytes of the file were read; its lines may then be stored twice.
    """

    type: Literal["taildir"]
    """Lines of growing files."""

    paths: Annotated[list[PathPattern], Field(min_length=1)]
    """The files to read: paths in which `*`, `?` and `[...]` match parts of a name, and `**` any directories except
    symbolic links to directories. A name that begins with a dot is only matched by a pattern that begins with a dot."""

    exclude: list[PathPattern] = Field(default_factory=lambda: ["*.gz", "*.bz2", "*.xz", "*.zst", "*.zip"])
    """Which of these files to ignore: patterns of names, or of entire paths if they contain a slash, where `*` also
    matches slashes. The default excludes rotated files that were compressed."""

    skip_to_end: bool = False
    """Whether files that exist when the source runs for the first time are read from their end. Later files are read
    from their beginning."""

    unfinished_line_seconds: float | None = Field(None, gt=0, le=86_400, allow_inf_nan=False)
    """A last line without a line end becomes an event once the file has not grown for this long; text that is appended
    later is another event. By default, such a line waits until it is complete, or the file is rotated or deleted."""

    idle_close_seconds: float = Field(60.0, gt=0, le=86_400, allow_inf_nan=False)
    """A file that has not grown for this long is closed. It is reopened when it grows."""

    files_open_max: int = Field(256, ge=1, le=65_536)
    """The maximum number of open files."""

    file_header: HeaderKey | None = None
    """The header for the path under which the file was first found."""

    basename_header: HeaderKey | None = None
    """The header for the last part of this path."""

    byte_offset_header: HeaderKey | None = None
    """The header for the position of the event in its file, in bytes."""

    path_headers: dict[PathPattern, dict[HeaderKey, str]] = Field(default_factory=dict)
    """Headers for the files that match a pattern of `paths`, for each pattern. A file that matches several patterns
    belongs to the first."""

    @field_validator("path_headers")
    @classmethod
    def _check_patterns(cls, headers: dict[str, dict[str, str]], info: ValidationInfo) -> dict[str, dict[str, str]]:
        patterns = info.data.get("paths")
        unknown = [] if patterns is None else [pattern for pattern in headers if pattern not in patterns]
        if unknown:
            raise ValueError(
                f"has {shown_value(unknown[0])}, which is not one of the patterns in paths; write it exactly as there"
            )
        return headers

    def make(self, context: SourceContext) -> Source:
        return source_class(self.type)(self, context)
