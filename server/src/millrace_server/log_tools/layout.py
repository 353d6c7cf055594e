"""The directories and files of a channel, and the errors of the tools that work on them."""

import itertools
import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace_server.channels.channel_file import (
    CHANNEL_FILE,
    CHECKPOINTS_ONLY,
    ChannelFile,
    ChannelIdentity,
    DirectoryError,
)
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS, channel_id_of
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, FormatError, SegmentHeader
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.segments import SEGMENT_NAME

CHECKPOINT_NAMES = (NEWEST, PREVIOUS)


class ToolError(Exception):
    """Base class of the errors of a tool; the message is a sentence for the operator."""


class DamagedError(ToolError):
    """Raised when the files are too damaged for what was requested."""


class NoSpaceError(ToolError):
    """Raised when the target has no space for what is to be written."""


class UsageError(ToolError):
    """Raised when the command line names something that the tool cannot use."""


class UnavailableError(ToolError):
    """Raised when the files may be intact but cannot be used now: in use, encrypted, or of another version."""


class OtherVersionError(UnavailableError):
    """Raised when another version wrote the files."""


@dataclass(frozen=True, slots=True)
class FilesPlace:
    """Where a channel in files is, or will be, and the codec of its log."""

    data_dirs: Sequence[Path]
    codec: PayloadCodec
    checkpoint_dir: Path | None = None
    """None if it is one of `data_dirs`: the one that has checkpoints, or else the first."""

    @property
    def directories(self) -> list[Path]:
        """All directories, each once."""
        return list(dict.fromkeys([*self.data_dirs, *filter(None, [self.checkpoint_dir])]))


@dataclass(frozen=True, slots=True)
class ChannelLayout:
    """The directories of one channel, and the contents of their `channel.json` files."""

    directories: tuple[Path, ...]
    """All directories, each once: first the data directories, in order."""
    checkpoint_dir: Path
    log_id: bytes
    """The channel id in segments and checkpoints, 16 bytes."""
    identity: ChannelIdentity | None
    """None if no `channel.json` states it."""
    files: Mapping[Path, ChannelFile]
    """The `channel.json` of each directory that has one."""
    problems: Mapping[Path, str]
    """Why a directory has no readable `channel.json`, by directory."""

    @property
    def has_memory(self) -> bool:
        """Whether the log may lack events that were in memory only."""
        return any(file.has_memory for file in self.files.values())

    @property
    def name(self) -> str:
        """The channel's name, or that of its directory if it is unknown."""
        return self.identity.name if self.identity else self.directories[0].resolve().name


def find_layout(directories: Sequence[Path], checkpoint_dir: Path | None = None) -> ChannelLayout:
    """Finds the channel in some directories, and the one with its checkpoints unless that is given.

    Raises:
        UsageError: One is not a directory, or they hold no channel, or parts of different ones.
        OtherVersionError: Another version of Millrace wrote them.
        UnavailableError: The channel was being deleted or repaired, or was moved.
    """
    for path in directories:
        _check_directory(path)
    check_distinct(directories)
    files: dict[Path, ChannelFile] = {}
    problems: dict[Path, str] = {}
    for path in directories:
        _read_file(path, files, problems)
    identity = _identity(files)
    log_id = identity.log_id if identity else _stated_log_id(directories)
    if log_id is None:
        raise UsageError(f"{' and '.join(map(str, directories))}: holds no channel; name a channel's own directory")
    _check_complete(files, problems)
    ordered = sorted(directories, key=lambda path: _order(files.get(path)))
    found = checkpoint_dir or _checkpoint_dir(ordered, files)
    return ChannelLayout(tuple(ordered), found, log_id, identity, files, problems)


def check_distinct(directories: Sequence[Path]) -> None:
    """Raises UsageError if two of the directories, which need not exist, are the same."""
    for one, other in itertools.combinations(directories, 2):
        if one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other)):
            raise UsageError(f"{one} and {other} are the same directory; name it once")


def segment_paths(directories: Sequence[Path]) -> list[tuple[int, Path]]:
    """Returns the segments of some directories, ordered by id; raises UsageError if one is not a regular file."""
    found = [
        (int(match[1]), path)
        for directory in directories
        for path in directory.iterdir()
        if (match := SEGMENT_NAME.fullmatch(path.name))
    ]
    for _, path in found:
        check_regular(path)
    return sorted(found)


def check_regular(path: Path) -> None:
    """Raises UsageError if a path exists and is not a regular file: reading a pipe, for example, might never end."""
    try:
        mode = path.stat().st_mode
    except OSError:
        # It was removed, or is unreadable. Opening it will show which.
        return
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path}: is not a regular file; move it away")


def _check_directory(path: Path) -> None:
    try:
        is_directory = path.is_dir()
        if is_directory:
            next(path.iterdir(), None)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a valid path"
        raise UsageError(f"{path}: cannot be read: {why}") from None
    if not is_directory:
        raise UsageError(f"{path}: is not a directory; name the directory that holds the channel's files")


def _read_file(path: Path, files: dict[Path, ChannelFile], problems: dict[Path, str]) -> None:
    try:
        file = ChannelFile.read(path)
    except DirectoryError as error:
        if _is_of_another_version(path / CHANNEL_FILE):
            raise OtherVersionError(str(error)) from None
        problems[path] = str(error)
        return
    if file is None:
        problems[path] = f"{path / CHANNEL_FILE}: is missing"
    elif file.is_deleted:
        raise UnavailableError(
            f"{path}: the channel was being deleted; the server removes it when it next opens a channel of this name"
        )
    elif file.moved_to:
        raise UnavailableError(
            f"{path}: the channel was moved to {file.moved_to}; name the configuration file that says so"
        )
    elif file.repaired_from:
        raise UnavailableError(
            f"{path}: a repair was interrupted; the server finishes it when it next opens the channel"
        )
    else:
        files[path] = file


def _is_of_another_version(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    # Content without a version number is damage, not another version.
    return isinstance(content, dict) and isinstance(version := content.get("version"), int) and version != 1


def _identity(files: Mapping[Path, ChannelFile]) -> ChannelIdentity | None:
    known = [(path, file.identity) for path, file in files.items()]
    for path, identity in known:
        if identity != known[0][1]:
            raise UsageError(f"{path} and {known[0][0]} belong to different channels; name the directories of one")
    return known[0][1] if known else None


def _stated_log_id(directories: Sequence[Path]) -> bytes | None:
    """Returns the channel id in the readable headers of segments, or else in a checkpoint; None without any file."""
    segments = [path for _, path in segment_paths(directories)]
    stated: dict[bytes, Path] = {}
    for path in segments:
        if log_id := _log_id_of_segment(path):
            stated.setdefault(log_id, path)
    if len(stated) > 1:
        owners = ", ".join(f"{path} belongs to {log_id.hex()}" for log_id, path in stated.items())
        raise UsageError(
            f"no {CHANNEL_FILE} states which channel this is, and the segments are of several: {owners}; move away "
            "those that do not belong here"
        )
    if stated:
        return next(iter(stated))
    checkpoints = [directory / name for directory in directories for name in CHECKPOINT_NAMES]
    log_id = next(filter(None, map(_log_id_of_checkpoint, checkpoints)), None)
    if segments and log_id is None:
        raise UsageError(
            f"{segments[0].parent}: nothing states which channel this is: {CHANNEL_FILE}, the headers of all segments "
            f"and the checkpoints are damaged or missing; restore {CHANNEL_FILE} from a backup"
        )
    return log_id


def _log_id_of_segment(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return SegmentHeader.decode(file.read(SEGMENT_HEADER_BYTES)).channel_id
    except (OSError, FormatError):
        return None


def _log_id_of_checkpoint(path: Path) -> bytes | None:
    check_regular(path)
    try:
        return channel_id_of(path.read_bytes())
    except OSError:
        return None


def _check_complete(files: Mapping[Path, ChannelFile], problems: Mapping[Path, str]) -> None:
    count = max((file.count for file in files.values()), default=0)
    indexes = {file.index for file in files.values()}
    missing = [str(index) for index in range(count) if index not in indexes]
    # A directory without a readable channel.json may be the one that is missing.
    if len(missing) > len(problems):
        raise UsageError(
            f"the channel has {count} data directories, numbered from 0; {', '.join(missing)} is not among those "
            "given: name all of them, and check that their disks are mounted"
        )


def _order(file: ChannelFile | None) -> tuple[bool, int]:
    return (file is None or file.index == CHECKPOINTS_ONLY, file.index if file else 0)


def _checkpoint_dir(directories: Sequence[Path], files: Mapping[Path, ChannelFile]) -> Path:
    marked = [path for path, file in files.items() if file.index == CHECKPOINTS_ONLY]
    holding = [path for path in directories if any((path / name).exists() for name in CHECKPOINT_NAMES)]
    return [*marked, *holding, directories[0]][0]
