"""Shows what an upgrade to this version changes on the disk. Changes nothing itself."""

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace_server.channels.channel_file import CHANNEL_FILE
from millrace_server.log_tools.layout import (
    ChannelLayout,
    FilesPlace,
    OtherVersionError,
    ToolError,
    check_regular,
    find_layout,
    segment_paths,
)
from millrace_server.wal import checkpoints
from millrace_server.wal import format as segment_format
from millrace_server.wal.checkpoints import CheckpointFiles
from millrace_server.wal.disk import OsDisk
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, FormatError, SegmentHeader, UnknownVersionError
from millrace_server.wal.payload_codec import KeyMissingError, PayloadCodec
from millrace_server.wal.versions import FileVersions, read_versions


@dataclass(frozen=True, slots=True)
class ChannelUpgrade:
    """How an upgrade to this version changes one channel's files."""

    channel: str
    versions: FileVersions
    problem: str = ""
    """What cannot be read, so that the effect of the upgrade is unknown; empty if nothing."""

    @property
    def sentence(self) -> str:
        """The effect on the files."""
        if self.problem:
            return self.problem
        if not self.versions.is_known:
            return f"{self._formats()}: a later version wrote it, and this one does not open it"
        if self.versions.is_earlier:
            return (
                f"{self._formats()}: will be converted to log format {segment_format.VERSION} and checkpoint format "
                f"{checkpoints.VERSION} as it is written; earlier versions cannot open it from then on"
            )
        return "nothing to convert"

    def document(self) -> dict[str, object]:
        """The same as JSON."""
        return {
            "channel": self.channel,
            "log_format": self.versions.segment,
            "checkpoint_format": self.versions.checkpoint,
            "is_readable": self.versions.is_known and not self.problem,
            "is_converted": self.versions.is_earlier and not self.problem,
            "problem": self.problem,
        }

    def _formats(self) -> str:
        return f"log format {self.versions.segment or '-'}, checkpoint format {self.versions.checkpoint or '-'}"


def inspect_channel(place: FilesPlace) -> ChannelUpgrade | None:
    """Returns what an upgrade does to one channel; None if it was never opened, so that it has no directory.

    Raises:
        OtherVersionError: Another version wrote its `channel.json`.
        OSError: Its files cannot be read.
    """
    directories, problems = [], []
    for path in place.directories:
        try:
            is_directory = stat.S_ISDIR(path.stat().st_mode)
        except FileNotFoundError:
            if path.is_symlink():
                problems.append(f"{path}: is a link to a directory that does not exist")
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
        else:
            if is_directory:
                directories.append(path)
            else:
                problems.append(f"{path}: is not a directory")
    if not problems:
        try:
            layout = find_layout(directories, place.checkpoint_dir) if directories else None
            return None if layout is None else _inspect_files(layout, place.codec)
        except OtherVersionError:
            raise
        except ToolError as error:
            problems.append(str(error))
    return ChannelUpgrade(place.data_dirs[0].name, FileVersions(0, 0), "; ".join(problems))


def _inspect_files(layout: ChannelLayout, codec: PayloadCodec) -> ChannelUpgrade:
    versions = read_versions(layout.directories, layout.checkpoint_dir)
    # A directory that was just added to the configuration is empty.
    refused = [why for path, why in layout.problems.items() if (path / CHANNEL_FILE).exists() or segment_paths([path])]
    problems = [*refused, _header_problem(layout.directories), _checkpoint_problem(layout, codec)]
    return ChannelUpgrade(layout.name, versions, "; ".join(filter(None, problems)))


def _checkpoint_problem(layout: ChannelLayout, codec: PayloadCodec) -> str:
    """Returns that the newest checkpoint is damaged; empty if it is valid or missing."""
    path = layout.checkpoint_dir / checkpoints.NEWEST
    check_regular(path)
    if not path.exists():
        return ""
    files = CheckpointFiles(OsDisk(), layout.checkpoint_dir, layout.log_id, keeps_previous=True, codec=codec)
    try:
        newest = next(files.valid_checkpoints(), None)
    except (KeyMissingError, UnknownVersionError):
        # Its checksum matches; a later version is reported by `versions`.
        return ""
    return "" if newest and not newest.is_previous else f"{path}: is damaged, or no checkpoint of this channel"


def _header_problem(directories: Sequence[Path]) -> str:
    """Returns that the newest segment's header is damaged, so that its version is unknown; empty if it is valid."""
    if not (segments := segment_paths(directories)):
        return ""
    newest = segments[-1][1]
    try:
        with newest.open("rb") as file:
            SegmentHeader.decode(file.read(SEGMENT_HEADER_BYTES))
    except UnknownVersionError:
        # Reported by `versions`.
        return ""
    except FormatError as error:
        return f"{newest}: {error}"
    return ""
