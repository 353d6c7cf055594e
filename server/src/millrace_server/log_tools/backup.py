"""Backs up a channel, also while a server uses it, and restores a channel from a backup."""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from re import fullmatch
from zlib import crc32

from millrace_server.channels.channel_file import CHANNEL_FILE, CHECKPOINTS_ONLY, ChannelFile, ChannelIdentity
from millrace_server.channels.config import CHANNEL_NAME_PATTERN
from millrace_server.channels.directories import LOCK_FILE, locked_directories
from millrace_server.files import make_directories
from millrace_server.log_tools.layout import (
    ChannelLayout,
    DamagedError,
    FilesPlace,
    ToolError,
    UsageError,
    check_distinct,
    find_layout,
)
from millrace_server.log_tools.read_only_disk import ReadOnlyFile
from millrace_server.log_tools.scanning import ToolProgress
from millrace_server.log_tools.verify import Report, verify
from millrace_server.log_tools.view import open_view
from millrace_server.wal.checkpoints import NEWEST
from millrace_server.wal.disk import Disk, File, OsDisk
from millrace_server.wal.payload_codec import KeyMissingError, PayloadCodec

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The dependencies of the tools that write."""

    codec: PayloadCodec
    progress: ToolProgress
    disk: Disk = field(default_factory=OsDisk)
    """Where copies are written."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A file to be copied."""

    source: ReadOnlyFile
    target: Path


def make_empty_directory(path: Path, *, may_hold: Sequence[str] = ()) -> None:
    """Creates a directory, or raises UsageError if it exists and holds anything but the names in `may_hold`."""
    try:
        make_directories(path)
        held = sorted(entry.name for entry in path.iterdir() if entry.name not in may_hold)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a valid path"
        raise UsageError(f"{path}: cannot be used: {why}") from None
    if held:
        raise UsageError(f"{path}: is not empty, it contains {held[0]!a}; name one that is empty or does not exist")


def copy_files(disk: Disk, copies: Sequence[Copy], progress: ToolProgress) -> None:
    """Copies files in order, durably once this returns. If it fails, the copies made so far remain."""
    progress.begin("copying", sum(copy.source.size() for copy in copies))
    checksums = []
    for copy in copies:
        with os_errors_as_tool_errors("write", copy.target):
            checksums.append(_copy(disk, copy, progress))
    for directory in {copy.target.parent for copy in copies}:
        with os_errors_as_tool_errors("sync", directory):
            disk.sync_directory(directory)
    progress.begin("comparing", sum(copy.source.size() for copy in copies))
    for copy, checksum in zip(copies, checksums, strict=True):
        with os_errors_as_tool_errors("read", copy.target), closing(disk.open(copy.target)) as file:
            is_same = _checksum(file, progress) == checksum
        if not is_same:
            raise DamagedError(f"{copy.target}: the disk returns other bytes than were written")


def _copy(disk: Disk, copy: Copy, progress: ToolProgress) -> int:
    with closing(disk.create(copy.target)) as target:
        checksum = _checksum(copy.source, progress, lambda chunk, start: target.write([chunk], start))
        target.sync()
    return checksum


def _checksum(file: File, progress: ToolProgress, on_chunk: Callable[[bytes, int], object] | None = None) -> int:
    checksum = 0
    for start in range(0, file.size(), _CHUNK_BYTES):
        chunk = file.read(_CHUNK_BYTES, start)
        if on_chunk is not None:
            on_chunk(chunk, start)
        checksum = crc32(chunk, checksum)
        progress.advance(len(chunk))
    return checksum


@contextmanager
def os_errors_as_tool_errors(verb: str, path: Path) -> Iterator[None]:
    """Turns an OSError into a ToolError that says what could not be done."""
    try:
        yield
    except OSError as error:
        what_to_do = "; free some space and start again" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
        raise ToolError(f"cannot {verb} {path}: {error.strerror}{what_to_do}") from error


def back_up(layout: ChannelLayout, target: Path, tools: ToolContext) -> Report:
    """Copies a channel into one directory and returns a report on the copy. Takes no lock; a server may be using it.

    The copy has everything that was acknowledged before this call, and all other tools can read it. Its `channel.json`
    is written last, so that an interrupted copy is not taken for a backup.

    Raises:
        UsageError: The target cannot be used.
        DamagedError: The channel is damaged, or lacks its `channel.json`.
        UnavailableError: It cannot be read now.
        ToolError: The copy could not be written.
    """
    identity = layout.identity
    if identity is None or layout.problems:
        raise DamagedError(f"{'; '.join(layout.problems.values())}; repair it with: millraced log repair")
    check_outside(target, layout.directories)
    make_empty_directory(target)
    with open_view(layout) as view:
        copies = [Copy(segment.file, target / segment.path.name) for segment in view.segments]
        # The newest, or else the previous one: a server renames one to the other.
        copies += [Copy(view.disk.open(path), target / NEWEST) for path in view.checkpoint_paths[:1]]
        copy_files(tools.disk, copies, tools.progress)
    with os_errors_as_tool_errors("write", target / CHANNEL_FILE):
        ChannelFile(identity, 0, 1, has_memory=layout.has_memory).write(target)
    return _verified(find_layout([target]), tools)


def restore(
    source: Path, target: FilesPlace, tools: ToolContext, name: str | None = None
) -> tuple[Report, ChannelLayout]:
    """Restores a channel from a backup, so that the next start of a server opens it.

    It gets a new channel id, since readers of the original may have seen events that the backup lacks.

    Args:
        source: The backup.
        target: Directories that are empty or do not exist.
        tools: Their codec need not have the keys of the backup.
        name: A new name for the channel; None keeps that of the backup.

    Returns:
        A report on the restored channel, and its layout.

    Raises:
        UsageError: The source is not a complete backup, or a target cannot be used.
        DamagedError: The backup is damaged.
        DirectoryInUseError: A target is in use.
        ToolError: The channel could not be written.
    """
    if name is not None and not fullmatch(CHANNEL_NAME_PATTERN, name):
        raise UsageError(f"--name: is {name!a}; it must match {CHANNEL_NAME_PATTERN}")
    for directory in target.directories:
        check_outside(directory, [source])
    check_distinct(target.data_dirs)
    layout = find_layout([source])
    if layout.identity is None:
        raise UsageError(f"{source}: is not a complete backup: {'; '.join(layout.problems.values())}")
    verified = _verified(layout, tools)
    if not verified.is_good:
        raise DamagedError(f"{source}: the backup is damaged: {verified.sentences[0]}")
    for directory in target.directories:
        make_empty_directory(directory, may_hold=[LOCK_FILE])
    with locked_directories(target.directories):
        with open_view(layout, is_live=False) as view:
            dirs, checkpoint_dir = target.data_dirs, target.checkpoint_dir or target.data_dirs[0]
            copies = [Copy(one.file, dirs[one.segment_id % len(dirs)] / one.path.name) for one in view.segments]
            copies += [Copy(view.disk.open(path), checkpoint_dir / path.name) for path in view.checkpoint_paths]
            copy_files(tools.disk, copies, tools.progress)
        identity = replace(ChannelIdentity.make(name or layout.identity.name), log_id=layout.identity.log_id)
        _write_identity(identity, target, has_memory=layout.has_memory)
        restored = find_layout(target.directories, target.checkpoint_dir)
        return _verified(restored, tools), restored


def _write_identity(identity: ChannelIdentity, target: FilesPlace, *, has_memory: bool) -> None:
    indexes = dict.fromkeys(target.directories, CHECKPOINTS_ONLY)
    indexes |= {path: index for index, path in enumerate(target.data_dirs)}
    # First without the count, then with it, as when a channel is created: a directory counts once all exist.
    for count in (0, len(target.data_dirs)):
        for path, index in indexes.items():
            with os_errors_as_tool_errors("write", path / CHANNEL_FILE):
                ChannelFile(identity, index, count, has_memory=has_memory).write(path)


def _verified(layout: ChannelLayout, tools: ToolContext) -> Report:
    # No server is writing to it, so its end is known at once.
    with open_view(layout, is_live=False) as view:
        try:
            return verify(view, tools.codec, tools.progress)
        except KeyMissingError:
            # A backup can be made without the keys.
            return verify(view, tools.codec, tools.progress, decodes=False)


def check_outside(target: Path, directories: Sequence[Path]) -> None:
    """Raises UsageError if a directory is inside one of the given directories."""
    try:
        resolved = target.resolve()
    except ValueError:
        raise UsageError(f"{str(target)!a}: it is not a valid path") from None
    for directory in directories:
        if resolved.is_relative_to(directory.resolve()):
            raise UsageError(f"{target}: lies in {directory}; name a directory elsewhere")
