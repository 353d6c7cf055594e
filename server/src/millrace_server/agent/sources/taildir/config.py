"""The settings of the source `taildir`."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext

HeaderKey = Annotated[str, Field(min_length=1, max_length=256)]


def _check_pattern(pattern: str) -> str:
    if "\0" in pattern:
        raise ValueError(f"is {shown_value(pattern)}; no file can have such a name")
    return pattern


PathPattern = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_check_pattern)]


class TaildirSourceConfig(LinesConfig, SourceConfig, frozen=True, extra="forbid"):
    """A source of the lines of files that grow.

    A file is known by its device, its inode and what it begins with, whatever its name. Renamed, it is read on to its
    end; cut short or written anew, it is a new file. A file of another name that has the beginning of one that was cut
    short, and what was read of it last, is its copy: it is read on from there. Files that are seen for the first time
    together are read in the order in which they were last written to, as they were rotated. Of a file of which less
    than 16 bytes were read, no copy is known: its lines may come twice.
    """

    type: Literal["taildir"]
    """Lines of files that grow."""

    paths: Annotated[list[PathPattern], Field(min_length=1)]
    """Which files: paths in which `*`, `?` and `[...]` stand for parts of a name, and `**` for any directories, links
    to directories left out. A name that begins with a dot is matched only by a pattern that begins so too."""

    exclude: list[PathPattern] = Field(default_factory=lambda: ["*.gz", "*.bz2", "*.xz", "*.zst", "*.zip"])
    """Which of these files are left out: patterns of names, or with a slash of whole paths, where `*` matches slashes
    too. Without further settings, files that were compressed once they were rotated."""

    skip_to_end: bool = False
    """Whether files that are there when the source runs for the first time are read from their end on. Files that come
    later are read from their beginning."""

    unfinished_line_seconds: float | None = Field(None, gt=0, le=86_400, allow_inf_nan=False)
    """A last line without a line end goes on once the file has not grown for so long; what is added to it later is an
    event of its own. Without it, such a line waits until it is finished, or until the file was rotated or deleted."""

    idle_close_seconds: float = Field(60.0, gt=0, le=86_400, allow_inf_nan=False)
    """A file that has not grown for so long is closed. It is opened again when it grows."""

    files_open_max: int = Field(256, ge=1, le=65_536)
    """At most so many files are open at once."""

    file_header: HeaderKey | None = None
    """The header that tells the path under which the event's file was first seen."""

    basename_header: HeaderKey | None = None
    """The header that tells this path's last part."""

    byte_offset_header: HeaderKey | None = None
    """The header that tells where in its file an event begins, in bytes."""

    path_headers: dict[PathPattern, dict[HeaderKey, str]] = Field(default_factory=dict)
    """For patterns of `paths`, headers of the files that each of them finds. A file that several find belongs to the
    first."""

    @field_validator("path_headers")
    @classmethod
    def _check_patterns(cls, headers: dict[str, dict[str, str]], info: ValidationInfo) -> dict[str, dict[str, str]]:
        patterns = info.data.get("paths")
        unknown = [] if patterns is None else [pattern for pattern in headers if pattern not in patterns]
        if unknown:
            raise ValueError(
                f"names {shown_value(unknown[0])}, which is none of the patterns in paths; write it as there"
            )
        return headers

    def make(self, place: SourceContext) -> Source:
        from millrace_server.agent.sources.taildir.source import TaildirSource

        return TaildirSource(self, place)
