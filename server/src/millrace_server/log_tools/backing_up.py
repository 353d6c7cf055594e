"""A copy of a channel, taken while a server may go on with it, and the channel made of such a copy."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from re import fullmatch

from millrace_server.channels.channel_file import (
    CHANNEL_FILE,
    CHECKPOINTS_ONLY,
    ChannelFile,
    ChannelIdentity,
)
from millrace_server.channels.directory_lock import LOCK_FILE, lock_directory
from millrace_server.channels.names import CHANNEL_NAME_PATTERN
from millrace_server.log_tools.copying import Copy, copy_files, make_empty_directory, told
from millrace_server.log_tools.errors import DamagedError, UsageError
from millrace_server.log_tools.places import LogPlaces, find_places
from millrace_server.log_tools.progress import ToolProgress
from millrace_server.log_tools.verifying import Report, verify
from millrace_server.log_tools.view import LogView, take_view
from millrace_server.wal.checkpoints import NEWEST
from millrace_server.wal.disk import Disk
from millrace_server.wal.payload_codec import KeyMissingError, PayloadCodec


@dataclass(frozen=True, slots=True)
class BackupTools:
    """What copying needs."""

    disk: Disk
    """Where copies go."""
    codec: PayloadCodec
    """Opens payloads, to make sure of the copy."""
    progress: ToolProgress


def back_up(places: LogPlaces, target: Path, tools: BackupTools) -> Report:
    """Copies a channel into one directory. Needs no help from a server that uses it, and takes no lock.

    All that was acknowledged before this call is in the copy. It is a channel's directory that all other tools read;
    its `channel.json` comes last, so that a copy that was broken off is none.

    Args:
        places: The channel.
        target: An empty directory, or one that is not there.
        tools: How.

    Returns:
        What is in the copy.

    Raises:
        UsageError: The target cannot be used, or the channel does not say who it is.
        DamagedError: The channel is damaged.
        UnavailableError: It cannot be read now.
        ToolError: The copy could not be written.
    """
    identity = places.identity
    if identity is None or places.problems:
        raise DamagedError(f"{'; '.join(places.problems.values())}; mend it with: millraced log repair")
    refuse_inside(target, places.directories)
    make_empty_directory(target)
    with take_view(places) as view:
        checkpoints = [path for path in view.checkpoint_paths if path.name == NEWEST] or view.checkpoint_paths
        copies = [Copy(segment.file, target / segment.path.name) for segment in view.segments]
        # The one before takes the newest one's place, should that be missing just now.
        copies += [Copy(view.disk.open(path), target / NEWEST) for path in checkpoints[:1]]
        copy_files(tools.disk, copies, tools.progress)
    with told("write", target / CHANNEL_FILE):
        ChannelFile(identity, 0, 1).write(target)
    return _verified(find_places([target]), tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTarget:
    """Where a channel is to lie, and what it is to be called."""

    data_dirs: Sequence[Path]
    """For segments; empty, or not there."""
    checkpoint_dir: Path
    """For checkpoints; one of them, or another one that is empty or not there."""
    name: str | None = None
    """None: as in the backup."""

    @property
    def directories(self) -> Sequence[Path]:
        """Each once."""
        return list(dict.fromkeys([*self.data_dirs, self.checkpoint_dir]))


def restore(source: Path, target: RestoreTarget, tools: BackupTools) -> tuple[Report, LogPlaces]:
    """Makes a channel of a backup, so that the next start of a server opens it.

    It gets a new channel id, since it may not hold what readers of the other one have seen.

    Args:
        source: The backup.
        target: The channel.
        tools: How.

    Returns:
        What is in the channel, and where it lies.

    Raises:
        UsageError: The source is no complete backup, or a target cannot be used.
        DamagedError: The backup is damaged.
        DirectoryInUseError: A target is in use.
        ToolError: The channel could not be written.
    """
    if target.name is not None and not fullmatch(CHANNEL_NAME_PATTERN, target.name):
        raise UsageError(f"--name: is {target.name!a}; it must match {CHANNEL_NAME_PATTERN}")
    for directory in target.directories:
        refuse_inside(directory, [source])
    places = find_places([source])
    if places.identity is None:
        raise UsageError(f"{source}: is no complete backup: {'; '.join(places.problems.values())}")
    verified = _verified(places, tools)
    if not verified.is_good:
        raise DamagedError(f"{source}: the backup is damaged: {verified.sentences[0]}")
    with ExitStack() as locks:
        for directory in target.directories:
            make_empty_directory(directory, may_hold=[LOCK_FILE])
            locks.callback(os.close, lock_directory(directory))
        with take_view(places, waits=False) as view:
            copy_files(tools.disk, _restored_copies(view, target), tools.progress)
        _write_identity(places.identity, target)
        restored = find_places(target.directories, target.checkpoint_dir)
        return _verified(restored, tools), restored


def _restored_copies(view: LogView, target: RestoreTarget) -> list[Copy]:
    copies = [
        Copy(segment.file, target.data_dirs[segment.segment_id % len(target.data_dirs)] / segment.path.name)
        for segment in view.segments
    ]
    return copies + [Copy(view.disk.open(path), target.checkpoint_dir / path.name) for path in view.checkpoint_paths]


def _write_identity(identity: ChannelIdentity, target: RestoreTarget) -> None:
    made = ChannelIdentity.make(target.name or identity.name)
    restored = replace(made, log_id=identity.log_id)
    indexes = dict.fromkeys(target.directories, CHECKPOINTS_ONLY)
    indexes |= {path: index for index, path in enumerate(target.data_dirs)}
    # None is counted before it is there, as at a channel's first start.
    for count in (0, len(target.data_dirs)):
        for path, index in indexes.items():
            with told("write", path / CHANNEL_FILE):
                ChannelFile(restored, index, count).write(path)


def _verified(places: LogPlaces, tools: BackupTools) -> Report:
    # Nobody writes to it, so its end need not be waited for.
    with take_view(places, waits=False) as view:
        try:
            return verify(view, tools.codec, tools.progress)
        except KeyMissingError:
            # Whoever copies need not be able to read.
            return verify(view, tools.codec, tools.progress, opens=False)


def refuse_inside(target: Path, directories: Sequence[Path]) -> None:
    """Raises UsageError where a directory lies in one of others."""
    try:
        resolved = target.resolve()
    except ValueError:
        raise UsageError(f"{str(target)!a}: no directory can have such a name") from None
    for directory in directories:
        if resolved.is_relative_to(directory.resolve()):
            raise UsageError(f"{target}: lies in {directory}; name a directory elsewhere")
