"""Copies of files that are compared with what was copied, and on the disk when they are said to be there."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from millrace_server.files import make_directories
from millrace_server.log_tools.errors import DamagedError, ToolError, UsageError
from millrace_server.log_tools.frozen_disk import FrozenFile
from millrace_server.log_tools.progress import ToolProgress
from millrace_server.wal.disk import Disk

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Copy:
    """A file that is to be copied."""

    source: FrozenFile
    target: Path


def make_empty_directory(path: Path, *, may_hold: Sequence[str] = ()) -> None:
    """Makes a directory, or makes sure that it is empty.

    Args:
        path: The directory.
        may_hold: Names of files that may be there all the same.

    Raises:
        UsageError: Something is there already, or it cannot be made.
    """
    try:
        make_directories(path)
        held = sorted(entry.name for entry in path.iterdir() if entry.name not in may_hold)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no directory can have such a name"
        raise UsageError(f"{path}: cannot be used: {why}") from None
    if held:
        raise UsageError(f"{path}: is not empty, there is {held[0]!a}; name a directory that is, or that is not there")


def copy_files(disk: Disk, copies: Sequence[Copy], progress: ToolProgress) -> None:
    """Copies files. Once this returns, the copies are what was read, and survive a power cut.

    Args:
        disk: Where the copies go.
        copies: What is copied, in this order.
        progress: Told how far it is.

    Raises:
        ToolError: A copy could not be written. What was copied so far is still there.
        DamagedError: The disk gives back something else than was written.
    """
    progress.begin("copying", sum(copy.source.size() for copy in copies))
    checksums = []
    for copy in copies:
        with told("write", copy.target):
            checksums.append(_copy(disk, copy, progress))
    for directory in {copy.target.parent for copy in copies}:
        with told("sync", directory):
            disk.sync_directory(directory)
    progress.begin("comparing", sum(copy.source.size() for copy in copies))
    for copy, checksum in zip(copies, checksums, strict=True):
        with told("read", copy.target):
            is_same = _checksum(disk, copy.target, progress) == checksum
        if not is_same:
            raise DamagedError(f"{copy.target}: the disk gives back something else than was written")


def _copy(disk: Disk, copy: Copy, progress: ToolProgress) -> int:
    checksum = 0
    with closing(disk.create(copy.target)) as target:
        for start in range(0, copy.source.size(), _CHUNK_BYTES):
            chunk = copy.source.read(_CHUNK_BYTES, start)
            target.write([chunk], start)
            checksum = crc32(chunk, checksum)
            progress.advance(len(chunk))
        target.sync()
    return checksum


def _checksum(disk: Disk, path: Path, progress: ToolProgress) -> int:
    checksum = 0
    with closing(disk.open(path)) as file:
        for start in range(0, file.size(), _CHUNK_BYTES):
            chunk = file.read(_CHUNK_BYTES, start)
            checksum = crc32(chunk, checksum)
            progress.advance(len(chunk))
    return checksum


@contextmanager
def told(verb: str, path: Path) -> Iterator[None]:
    """Tells in a sentence what the operating system refused."""
    try:
        yield
    except OSError as error:
        what_to_do = "; free some space and begin again" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
        raise ToolError(f"cannot {verb} {path}: {error.strerror}{what_to_do}") from error
