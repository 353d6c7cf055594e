"""Files that are there whole or not at all."""

import os
from pathlib import Path

_TEMPORARY_SUFFIX = ".tmp"


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Puts a file in the place of the one before, if any.

    Once this returns, the new content survives a crash. After a crash inside it, or an error, the file holds the old
    content or the new one, whole.

    Args:
        path: The file. What is named so with `.tmp` added is overwritten; only one writer may be at work.
        content: All of the new content.
        mode: Permissions of a new file, less the process's umask.

    Raises:
        OSError: The old content is still there, unless only the directory's fsync failed.
    """
    temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
    try:
        _write_new(temporary, content, mode)
        # The name must not point at the new content before that is on the disk, so the fsync comes first.
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory survive a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path, *, mode: int = 0o700) -> None:
    """Makes a directory and those above it, where they are missing, so that they survive a crash."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir(mode=mode, exist_ok=True)
        sync_directory(directory.parent)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    # What a crash left behind may be a link or have other permissions: begin anew.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
