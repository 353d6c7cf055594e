"""All calls to the operating system that the log makes, behind protocols, so that tests can simulate a disk.

A write is durable only after `sync` of the file; a name that was created, changed or removed only after `sync` of the
directory. Until then a crash may keep any part of it, in any order; see FORMAT.md, "What is assumed of the disk".
"""

import errno
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

# Linux refuses a vectored write of more pieces.
_IOV_MAX = 1024

NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
"""A disk or a quota is full."""

Piece = bytes | memoryview
"""Bytes to be written, next to other pieces."""


class File(Protocol):
    """An open file."""

    def write(self, pieces: Sequence[Piece], offset: int) -> None:
        """Writes all pieces, one after the other, at an offset.

        Raises:
            OSError: Any part may have been written.
        """

    def read(self, length: int, offset: int) -> bytes:
        """Reads `length` bytes, fewer only at the file's end."""

    def read_cached(self, length: int, offset: int) -> bytes | bytearray | None:
        """Like `read`, but returns None if it would wait for the disk, as far as the system can tell."""

    def reserve(self, offset: int, length: int) -> None:
        """Allocates space, which reads as zeros, so that a later sync need not write allocation metadata."""

    def truncate(self, length: int) -> None:
        """Cuts the file to a length."""

    def sync(self) -> None:
        """Makes all that was written survive a power cut."""

    def size(self) -> int:
        """The file's length in bytes."""

    def close(self) -> None:
        """Closes the file, without a sync."""


class Directory(Protocol):
    """An open directory."""

    def sync(self) -> None:
        """Makes the directory's names survive a power cut."""

    def close(self) -> None:
        """Closes the directory, without a sync."""


class Disk(Protocol):
    """Files and their names."""

    def create(self, path: Path) -> File:
        """Creates a file that must not exist."""

    def open(self, path: Path, *, writable: bool = False) -> File:
        """Opens a file that must exist."""

    def rename(self, source: Path, target: Path) -> None:
        """Renames a file, atomically replacing any file of that name."""

    def unlink(self, path: Path) -> None:
        """Removes a name."""

    def list(self, directory: Path) -> list[str]:
        """Returns the names in a directory, sorted."""

    def open_directory(self, directory: Path) -> Directory:
        """Opens a directory, so that a later sync of it cannot run out of descriptors."""

    def sync_directory(self, directory: Path) -> None:
        """Makes the directory's names survive a power cut."""

    def free_bytes(self, directory: Path) -> int:
        """Returns the space that this process may still use in the directory's file system."""

    def total_bytes(self, directory: Path) -> int:
        """Returns the size of the directory's file system, or of its quota there where it has one."""

    def device(self, directory: Path) -> int:
        """Returns a number that all directories of the same file system share."""


def allocate(file: File, offset: int, length: int) -> None:
    """Allocates space in a file; does nothing where the file system cannot, which then grows with each write.

    Raises:
        OSError: There is too little space.
    """
    try:
        file.reserve(offset, length)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise


class OsFile:
    """A file of the operating system. It closes with its last reference, which may be a reader's on another thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        self.close()

    def write(self, pieces: Sequence[Piece], offset: int) -> None:
        for start in range(0, len(pieces), _IOV_MAX):
            part = pieces[start : start + _IOV_MAX]
            length = sum(map(len, part))
            # Vectored: the pieces of a group go to the kernel without being joined.
            written = os.pwritev(self._descriptor, part, offset)
            if written < length:
                # Rare, mostly a disk that fills up, so a copy of the rest costs nothing that counts.
                self._write_rest(b"".join(part)[written:], offset + written)
            offset += length

    def _write_rest(self, rest: bytes, offset: int) -> None:
        """Continues after a short write: the next write either succeeds or raises the reason."""
        while rest:
            written = os.pwrite(self._descriptor, rest, offset)
            if not written:
                raise OSError(errno.EIO, "the disk accepted no bytes and gave no reason")
            rest = rest[written:]
            offset += written

    def read(self, length: int, offset: int) -> bytes:
        # Positional, so that threads share the descriptor without a lock. Short reads happen on some file systems.
        content = os.pread(self._descriptor, length, offset)
        while len(content) < length and (
            more := os.pread(self._descriptor, length - len(content), offset + len(content))
        ):
            content += more
        return content

    def read_cached(self, length: int, offset: int) -> bytes | bytearray | None:
        # Preallocated for preadv, the only read call that takes RWF_NOWAIT.
        buffer = bytearray(length)
        try:
            count = os.preadv(self._descriptor, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except (AttributeError, NotImplementedError, ValueError):
            # The system has no such call, so it is unknown what would wait.
            return self.read(length, offset)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # Nor does this file system support it.
            return self.read(length, offset)
        # After a short read, the rest is on the disk or behind the file's end.
        return buffer if count == length else None

    def reserve(self, offset: int, length: int) -> None:
        # Extends the file's length as well: only then does a sync of later writes skip the length.
        os.posix_fallocate(self._descriptor, offset, length)

    def truncate(self, length: int) -> None:
        # Also frees preallocated space. The new length is durable only after a sync.
        os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        # Not fsync: timestamps need not be durable. fdatasync does write a changed length.
        os.fdatasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def written_end(self) -> int:
        """Returns the end of the last block that was ever written, which preallocated space behind it was not.

        Where the system does not tell, the file's length.
        """
        end = 0
        # The descriptor's offset, which this moves, is not used.
        with suppress(OSError, AttributeError):
            # Preallocated space counts as written while what was read of it is in the cache.
            os.fdatasync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            while True:
                end = os.lseek(self._descriptor, os.lseek(self._descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
        return end or self.size()

    def close(self) -> None:
        # Reset first, so that a second close cannot close someone else's reused descriptor.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsDirectory:
    """A directory of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def sync(self) -> None:
        # Not fdatasync: a directory's names are metadata, which it may leave out.
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class OsDisk:
    """The operating system's files."""

    def create(self, path: Path) -> OsFile:
        # O_EXCL: two writers of one file would destroy each other's records.
        return OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def open(self, path: Path, *, writable: bool = False) -> OsFile:
        return OsFile(os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC))

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def list(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))  # noqa: PTH208 - paths cost many times as much as names

    def open_directory(self, directory: Path) -> OsDirectory:
        # A directory can be opened for reading only, and fsync of it works all the same.
        return OsDirectory(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def sync_directory(self, directory: Path) -> None:
        # Opened each time: this is rare, and a kept descriptor would hold an unmounted disk.
        with closing(self.open_directory(directory)) as opened:
            opened.sync()

    def free_bytes(self, directory: Path) -> int:
        # f_bavail, not f_bfree: what is reserved for root is not ours.
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, directory: Path) -> int:
        status = os.statvfs(directory)
        return status.f_blocks * status.f_frsize

    def device(self, directory: Path) -> int:
        return directory.stat().st_dev
