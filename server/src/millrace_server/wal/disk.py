"""Every call to the operating system that the log makes, in one place, so that tests can take the disk's part.

A write is on the disk only after `sync` of the file; a name that was made, changed or removed only after `sync` of the
directory. Until then a crash may keep any part of it, in any order. FORMAT.md, "What is assumed of the disk", has all.
"""

import errno
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

_IOV_MAX = 1024

Piece = bytes | memoryview
"""A part of what is written."""


class File(Protocol):
    """An open file."""

    def write(self, pieces: Sequence[Piece], offset: int) -> None:
        """Writes all pieces one after the other from an offset on.

        Raises:
            OSError: Any part of it may have been written.
        """

    def read(self, length: int, offset: int) -> bytes:
        """Reads so many bytes, fewer only at the file's end."""

    def read_cached(self, length: int, offset: int) -> bytes | bytearray | None:
        """Like `read`, but None where it would have to wait for the disk, as far as the system can tell."""

    def reserve(self, offset: int, length: int) -> None:
        """Has the disk set space aside, which reads as zeros, so that a later sync need not note where it is."""

    def truncate(self, length: int) -> None:
        """Cuts the file."""

    def sync(self) -> None:
        """Once this returns, what was written survives a power cut."""

    def size(self) -> int:
        """The file's length in bytes."""

    def close(self) -> None:
        """Closes the file, without a sync."""


class Directory(Protocol):
    """An open directory."""

    def sync(self) -> None:
        """Once this returns, the directory's names survive a power cut."""

    def close(self) -> None:
        """Closes the directory, without a sync."""


class Disk(Protocol):
    """Files and their names."""

    def create(self, path: Path) -> File:
        """Makes a file that must not exist."""

    def open(self, path: Path, *, writable: bool = False) -> File:
        """Opens a file that must exist."""

    def rename(self, source: Path, target: Path) -> None:
        """Gives a file another name, in place of the file that had it."""

    def unlink(self, path: Path) -> None:
        """Removes a name."""

    def list(self, directory: Path) -> list[str]:
        """The names in a directory, sorted."""

    def open_directory(self, directory: Path) -> Directory:
        """Opens a directory, for who must not run out of descriptors later on."""

    def sync_directory(self, directory: Path) -> None:
        """Once this returns, the directory's names survive a power cut."""

    def free_bytes(self, directory: Path) -> int:
        """Space that the directory's file system has left for us."""


class OsFile:
    """A file of the operating system's, which closes itself once nobody reads it any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        self.close()

    def write(self, pieces: Sequence[Piece], offset: int) -> None:
        for start in range(0, len(pieces), _IOV_MAX):
            some = pieces[start : start + _IOV_MAX]
            length = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, offset)
            if written < length:
                self._write_rest(b"".join(some)[written:], offset + written)
            offset += length

    def _write_rest(self, rest: bytes, offset: int) -> None:
        """Goes on after a short write: the next one tells why it was short, or succeeds."""
        while rest:
            written = os.pwrite(self._descriptor, rest, offset)
            if not written:
                raise OSError(errno.EIO, "the disk took no bytes and gave no reason")
            rest = rest[written:]
            offset += written

    def read(self, length: int, offset: int) -> bytes:
        content = os.pread(self._descriptor, length, offset)
        while len(content) < length and (
            more := os.pread(self._descriptor, length - len(content), offset + len(content))
        ):
            content += more
        return content

    def read_cached(self, length: int, offset: int) -> bytes | bytearray | None:
        buffer = bytearray(length)
        try:
            count = os.preadv(self._descriptor, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except (AttributeError, NotImplementedError, ValueError):
            # The system has no such call. It is not known then what would wait.
            return self.read(length, offset)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # Nor has this file system.
            return self.read(length, offset)
        # The rest of a short read is on the disk, or behind the file's end.
        return buffer if count == length else None

    def reserve(self, offset: int, length: int) -> None:
        os.posix_fallocate(self._descriptor, offset, length)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsDirectory:
    """A directory of the operating system's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def sync(self) -> None:
        # Not fdatasync: a directory's names count as metadata.
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class OsDisk:
    """The operating system's files."""

    def create(self, path: Path) -> OsFile:
        return OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def open(self, path: Path, *, writable: bool = False) -> OsFile:
        return OsFile(os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC))

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def list(self, directory: Path) -> list[str]:
        return sorted(path.name for path in directory.iterdir())

    def open_directory(self, directory: Path) -> OsDirectory:
        return OsDirectory(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def sync_directory(self, directory: Path) -> None:
        with closing(self.open_directory(directory)) as opened:
            opened.sync()

    def free_bytes(self, directory: Path) -> int:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize
