"""The directories of a file channel: they belong to it alone, and each has a file that says so.

Each holds a `lock`, a `channel.json` (see `channel_file`), and the files of the write-ahead log. Three rules make a
crash harmless at any point:

- A `channel.json` whose count is n is written only once the data directories 0 to n-1 have theirs on the disk. So a
  directory without one is new if all counted directories are there. Otherwise it stands in for a missing one, such as
  a disk that is not mounted, and the channel is refused.
- A deleted channel is marked as such in all its directories before anything is removed, and the mark is removed last
  from each. So the next start finishes a deletion that was begun.
- A repair writes the new log into subdirectories, marks the channel as repaired, which decides, and puts the new
  segments in the place of the old ones. If that is interrupted, the next start finishes it. The new segments have
  higher ids, so both can be distinguished wherever it was interrupted.

A channel that was moved into an engine leaves a `channel.json` behind that says where to. It is not opened here again:
an empty channel in its place would accept events that no consumer of the moved one sees.
"""

import fcntl
import itertools
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from millrace_server.channels.channel_file import (
    CHANNEL_FILE,
    CHANNEL_FILE_TEMPORARY,
    CHECKPOINTS_ONLY,
    ChannelFile,
    ChannelIdentity,
    ChannelMovedError,
    DirectoryError,
    why_refused,
)
from millrace_server.files import SharedSyncs, lock_owner, make_directories, sync_directory, write_lock_owner
from millrace_server.wal.segments import segment_name

LOCK_FILE = "lock"

REPAIRED = "repaired"
"""The subdirectory with the segments that a repair has written."""

KEPT_INFIX = ".before-repair-"
"""In the name of the copy, besides the channel, of its files before a repair."""

_LOG_FILE = re.compile(r"segment-\d{12}\.(log|new)|checkpoint(\.previous|\.new)?")


class ChannelDirectories:
    """The locked directories of one channel; see `open_directories`. All calls block on the disk."""

    def __init__(
        self, data_dirs: Sequence[Path], checkpoint_dir: Path, files: Mapping[Path, ChannelFile], locks: ExitStack
    ) -> None:
        self.identity = files[data_dirs[0]].identity
        self.data_dirs = tuple(data_dirs)
        self.checkpoint_dir = checkpoint_dir
        self._files = dict(files)
        self._locks = locks
        self._is_marked = False

    def note_memory(self) -> None:
        """Notes durably that events may be in memory only: a repair then expects gaps between the log's sequences."""
        for path, file in self._files.items():
            if not file.has_memory:
                self._files[path] = replace(file, has_memory=True)
                _write(path, self._files[path])

    def mark_deleted(self) -> None:
        """Marks the channel as deleted, durably.

        Raises:
            OSError: It is not marked, and may continue.
            DirectoryError: It may be marked. The channel must store nothing more; this call may be repeated.
        """
        marked: list[Path] = []
        for path, file in self._files.items():
            try:
                replace(file, is_deleted=True).write(path)
            except OSError:
                # One mark is enough for the next start.
                self._take_back(marked, path)
                raise
            marked.append(path)
        self._is_marked = True

    def _take_back(self, marked: Sequence[Path], failed: Path) -> None:
        doubt = f"it is unknown whether channel {self.identity.name!r} is deleted: cannot write {{}}: {{}}"
        for path in marked:
            try:
                self._files[path].write(path)
            except OSError as error:
                raise DirectoryError(doubt.format(path / CHANNEL_FILE, error.strerror)) from error
        if ChannelFile.read(failed) != self._files[failed]:
            # The rename succeeded, its sync failed: it may be on the disk or not, and another sync would not show it.
            raise DirectoryError(doubt.format(failed / CHANNEL_FILE, "the sync of its name failed"))

    def remove(self) -> None:
        """Removes the channel's files, then its directories if they are empty, and releases the locks.

        Call it after `mark_deleted`, once the log is closed. Foreign files stay, and with them their directory. After
        an OSError another call, or the next start, removes the rest.
        """
        assert self._is_marked, "what is removed was marked before"
        for path in self._files:
            _remove_files(path)
        for path in self._files:
            (path / LOCK_FILE).unlink(missing_ok=True)
            # A link to a directory stays, and so does a directory with foreign files. A failure here loses nothing.
            with suppress(OSError):
                path.rmdir()
                sync_directory(path.parent)
        self.close()

    def close(self) -> None:
        self._locks.close()


def open_directories(
    name: str,
    data_dirs: Sequence[Path],
    checkpoint_dir: Path,
    syncs: SharedSyncs | None = None,
    *,
    forgets_moved: bool = False,
) -> ChannelDirectories:
    """Locks a channel's directories, and creates missing ones. Blocks on the disk.

    Channels that share `syncs` and are opened at the same time share the syncs of the directories above theirs.

    Afterwards no other process or channel uses them, and their channel files agree, also after a power cut. A channel
    that was being deleted is removed and created again, and with `forgets_moved` one that was moved into an engine.
    Directories may be added, moved and reordered.

    Raises:
        DirectoryInUseError: Another process or channel uses one of them.
        ChannelMovedError: The channel is elsewhere now.
        DirectoryError: One cannot be used, belongs to another channel, is missing or damaged. No file in them was
            changed, unless the disk failed.
    """
    with ExitStack() as locks:
        places, created = _create(name, data_dirs, checkpoint_dir, syncs or SharedSyncs())
        for path in places:
            locks.callback(os.close, lock_directory(path))
        files = _read(name, places)
        # A process that was killed after a rename or a removal has not synced it; the steps below rely on that sync.
        for path in (path for path in places if path not in created):
            with _converting_errors(path):
                sync_directory(path)
        if any(file and (file.is_deleted or (forgets_moved and file.moved_to)) for file in files.values()):
            _finish_deletion(files)
            files = dict.fromkeys(places)
        _refuse_moved(name, files)
        indexes = _indexes(name, data_dirs, files)
        # Once it is known that none is missing: the part of the log in that one would stay as it was.
        files |= finish_repair({path: file for path, file in files.items() if file})
        complete = _complete(name, files, indexes, len(data_dirs))
        return ChannelDirectories(data_dirs, checkpoint_dir, complete, locks.pop_all())


@contextmanager
def _converting_errors(path: Path) -> Iterator[None]:
    """Converts the operating system's errors to DirectoryError."""
    try:
        yield
    except OSError as error:
        raise DirectoryError(f"cannot use {path}: {error.strerror}") from error


def _create(
    name: str, data_dirs: Sequence[Path], checkpoint_dir: Path, syncs: SharedSyncs
) -> tuple[list[Path], set[Path]]:
    """Creates the directories; returns each once, the data directories first, and those that were missing."""
    created = set()
    for path in dict.fromkeys((*data_dirs, checkpoint_dir)):
        with _converting_errors(path):
            if _create_one(path, syncs):
                created.add(path)
    for one, other in itertools.combinations(data_dirs, 2):
        if one.samefile(other):
            raise DirectoryError(f"channel {name!r} has the same data directory twice: {one} and {other}")
    is_apart = checkpoint_dir not in data_dirs and not any(checkpoint_dir.samefile(path) for path in data_dirs)
    return [*data_dirs, checkpoint_dir] if is_apart else list(data_dirs), created


def _create_one(path: Path, syncs: SharedSyncs) -> bool:
    """Creates a directory, unless it exists; returns whether it was missing."""
    lowest = next(directory for directory in (path, *path.parents) if directory.exists())
    # Created just before a kill, its name may not be on the disk. A directory above that is not readable is not ours.
    with suppress(PermissionError):
        syncs.sync_directory(lowest.parent)
    make_directories(path, syncs.sync_directory)
    return lowest != path


def _read(name: str, places: Sequence[Path]) -> dict[Path, ChannelFile | None]:
    """Reads the channel files, and checks that they agree and that directories without one are empty."""
    files = {path: ChannelFile.read(path) for path in places}
    known = [(path, file.identity) for path, file in files.items() if file]
    for path, identity in known:
        if identity.name != name:
            raise DirectoryError(
                f"{path / CHANNEL_FILE}: belongs to channel {identity.name!r}; give {name!r} a directory of its own"
            )
        if identity != known[0][1]:
            raise DirectoryError(
                f"{path / CHANNEL_FILE}: belongs to a channel {name!r} that was created at another time, or restored, "
                f"than that of {known[0][0] / CHANNEL_FILE}; name the directories of one of them only"
            )
    for path in (path for path, file in files.items() if not file):
        with _converting_errors(path):
            ours = _log_files(path)
        if ours:
            raise DirectoryError(
                f"{path / CHANNEL_FILE}: is missing, but there is {ours[0]}; `millraced log repair` rebuilds it from "
                "the log, or move the directory's files away to begin without them"
            )
    return files


def _refuse_moved(name: str, files: Mapping[Path, ChannelFile | None]) -> None:
    for path, file in files.items():
        if file and file.moved_to:
            raise ChannelMovedError(
                f"{path / CHANNEL_FILE}: channel {name!r} was moved to {file.moved_to}; start the server with the "
                f"configuration file that says so, or move {' and '.join(map(str, files))} away to begin with an empty "
                "channel"
            )


def _indexes(name: str, data_dirs: Sequence[Path], files: Mapping[Path, ChannelFile | None]) -> dict[Path, int]:
    """Returns the index of each directory, after checking that none is missing."""
    known_count = _known_count(files)
    holders: dict[int, Path] = {}
    for path, file in files.items():
        # An index from the count on was given before a crash kept the others from counting it: nothing relies on it.
        if file and 0 <= file.index < known_count:
            other = holders.setdefault(file.index, path)
            if other != path:
                raise DirectoryError(
                    f"{path} and {other} both say that they are data directory {file.index} of channel {name!r}; one "
                    "is a copy of the other: name one of them only"
                )
    missing = [str(index) for index in range(known_count) if holders.get(index) not in data_dirs]
    if missing:
        raise DirectoryError(
            f"channel {name!r} has {known_count} data directories, numbered from 0; {', '.join(missing)} is not among "
            f"those given, {', '.join(map(str, data_dirs))}: name all of them, and check that their disks are mounted"
        )
    known = {path: index for index, path in holders.items()}
    new_indexes = itertools.count(known_count)
    indexes = dict.fromkeys(files, CHECKPOINTS_ONLY)
    return indexes | {path: known[path] if path in known else next(new_indexes) for path in data_dirs}


def _known_count(files: Mapping[Path, ChannelFile | None]) -> int:
    return max((file.count for file in files.values() if file), default=0)


def _complete(
    name: str, files: Mapping[Path, ChannelFile | None], indexes: Mapping[Path, int], count: int
) -> dict[Path, ChannelFile]:
    """Writes the channel files, so that all agree, and none counts a directory without one."""
    identity = next((file.identity for file in files.values() if file), None) or ChannelIdentity.make(name)
    known_count = _known_count(files)
    for path, index in indexes.items():
        file = files[path]
        # Of a single directory, nothing can be missing while its file is there: the one below is enough.
        if len(files) > 1 and (not file or file.index != index):
            _write(path, ChannelFile(identity, index, known_count))
    has_memory = any(file.has_memory for file in files.values() if file)
    complete = {path: ChannelFile(identity, index, count, has_memory=has_memory) for path, index in indexes.items()}
    for path, file in complete.items():
        if file != files[path]:
            _write(path, file)
    return complete


def _write(path: Path, file: ChannelFile) -> None:
    with _converting_errors(path):
        file.write(path)


def _finish_deletion(files: Mapping[Path, ChannelFile | None]) -> None:
    for path, file in files.items():
        # With a mark in each, it does not matter which of them a crash leaves.
        if file and not file.is_deleted:
            _write(path, replace(file, is_deleted=True))
    for path in files:
        with _converting_errors(path):
            _remove_files(path)


def finish_repair(files: Mapping[Path, ChannelFile]) -> dict[Path, ChannelFile]:
    """Puts the log that a repair has written in the place of the old one; returns the channel files afterwards.

    Where no repair is marked, nothing is changed. Raises DirectoryError if the disk fails; another call does the rest.
    """
    if not (first_id := max((file.repaired_from for file in files.values()), default=0)):
        return dict(files)
    for path in files:
        with _converting_errors(path):
            for name in _log_files(path):
                # Also the checkpoints, which refer to the old segments.
                if name < segment_name(first_id):
                    (path / name).unlink()
            sync_directory(path)
    for path in files:
        with _converting_errors(path):
            if not (path / REPAIRED).is_dir():
                continue
            for segment in sorted((path / REPAIRED).glob("*.log")):
                segment.rename(path / segment.name)
            # The new names first: until they are durable, the old ones must be.
            sync_directory(path)
            sync_directory(path / REPAIRED)
    finished = {path: replace(file, repaired_from=0) for path, file in files.items()}
    for path, file in finished.items():
        _write(path, file)
        _remove_repaired(path)
    return finished


def _remove_repaired(path: Path) -> None:
    shutil.rmtree(path / REPAIRED, ignore_errors=True)


def _remove_files(path: Path) -> None:
    """Removes the channel's files from a directory, the channel file last."""
    _remove_repaired(path)
    for file in _log_files(path):
        (path / file).unlink(missing_ok=True)
    sync_directory(path)
    for file in (CHANNEL_FILE_TEMPORARY, CHANNEL_FILE):
        (path / file).unlink(missing_ok=True)
    sync_directory(path)


def _log_files(path: Path) -> list[str]:
    return sorted(filter(_LOG_FILE.fullmatch, os.listdir(path)))  # noqa: PTH208 - as in `OsDisk.list`


class DirectoryInUseError(DirectoryError):
    """Raised when another process, or another channel of this one, uses the directory."""


def lock_directory(path: Path) -> int:
    """Locks a channel's directory until the returned descriptor is closed.

    The kernel holds the lock: it ends with the process, however that ends.

    Raises:
        DirectoryInUseError: Another process or channel holds it.
        DirectoryError: The lock file cannot be used.
    """
    lock = path / LOCK_FILE
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DirectoryError(f"cannot use {lock}: {why_refused(error)}") from error
    try:
        _lock(descriptor, path)
    except DirectoryError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked_directories(paths: Iterable[Path]) -> Iterator[None]:
    """Locks directories of a channel until the end of the block; raises what `lock_directory` does."""
    with ExitStack() as locks:
        for path in paths:
            locks.callback(os.close, lock_directory(path))
        yield


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DirectoryInUseError(
            f"cannot use {path}: another channel or server{lock_owner(descriptor)} uses it; stop that one, or give "
            "this one a directory of its own"
        ) from None
    except OSError as error:
        raise DirectoryError(f"cannot lock {path}: {error.strerror}") from error
    if not os.fstat(descriptor).st_nlink:
        # The process that removed it held the lock; the next process creates and locks another file.
        raise DirectoryInUseError(f"cannot use {path}: it was being removed; try again")
    write_lock_owner(descriptor)
