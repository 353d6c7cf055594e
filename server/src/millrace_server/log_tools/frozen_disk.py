"""A channel's files as they were at one moment, while a server goes on writing and removing them."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Never

from millrace_server.wal.disk import Directory, File, Piece

_BLOCK_BYTES = 4096

ReadBytes = Callable[[int, int], bytes]
"""Reads so many bytes from an offset on, fewer only at the end."""


class FrozenFile:
    """A file up to a length, which can only be read. What the disk does not give back reads as zeros.

    Args:
        read: Reads it.
        length: What lies behind is not there.
    """

    def __init__(self, read: ReadBytes, length: int) -> None:
        self._read = read
        self._length = length

    @classmethod
    def of(cls, content: bytes) -> "FrozenFile":
        """A file with a content that is known."""
        return cls(lambda length, offset: content[offset : offset + length], len(content))

    def cut(self, length: int) -> "FrozenFile":
        """The same up to a length."""
        return FrozenFile(self.read, min(length, self._length))

    def with_head(self, head: bytes) -> "FrozenFile":
        """The same with other bytes at its beginning."""

        def read(length: int, offset: int) -> bytes:
            content = self.read(length, offset)
            return head[offset : offset + length] + content[max(0, len(head) - offset) :]

        return FrozenFile(read, self._length)

    def read(self, length: int, offset: int) -> bytes:
        length = max(0, min(length, self._length - offset))
        try:
            return self._read(length, offset)
        except OSError:
            # Somewhere in it is a block that the disk has lost; the others are wanted.
            return self._read_around_errors(length, offset)

    def _read_around_errors(self, length: int, offset: int) -> bytes:
        content = bytearray()
        for start in range(offset, offset + length, _BLOCK_BYTES):
            wanted = min(_BLOCK_BYTES, offset + length - start)
            try:
                block = self._read(wanted, start)
            except OSError:
                block = b""
            content += block + bytes(wanted - len(block))
        return bytes(content)

    def read_cached(self, length: int, offset: int) -> bytes:
        return self.read(length, offset)

    def size(self) -> int:
        return self._length

    def close(self) -> None:
        """Whoever froze it closes it."""

    def write(self, _pieces: Sequence[Piece], _offset: int) -> Never:
        _refuse()

    def reserve(self, _offset: int, _length: int) -> Never:
        _refuse()

    def truncate(self, _length: int) -> Never:
        _refuse()

    def sync(self) -> Never:
        _refuse()


class FrozenDisk:
    """Files that can only be read, by their paths; keeps what `Disk` promises to readers."""

    def __init__(self, files: Mapping[Path, FrozenFile]) -> None:
        self._files = dict(files)

    def without(self, paths: Iterable[Path]) -> "FrozenDisk":
        """The same without some files."""
        left_out = set(paths)
        return FrozenDisk({path: file for path, file in self._files.items() if path not in left_out})

    def with_files(self, files: Mapping[Path, FrozenFile]) -> "FrozenDisk":
        """The same with some more."""
        return FrozenDisk({**self._files, **files})

    def open(self, path: Path, *, writable: bool = False) -> FrozenFile:
        if writable:
            _refuse()
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._files[path]

    def list(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self._files if path.parent == directory)

    def free_bytes(self, _directory: Path) -> int:
        return 0

    def create(self, _path: Path) -> File:
        _refuse()

    def rename(self, _source: Path, _target: Path) -> None:
        _refuse()

    def unlink(self, _path: Path) -> None:
        _refuse()

    def open_directory(self, _directory: Path) -> Directory:
        _refuse()

    def sync_directory(self, _directory: Path) -> None:
        _refuse()


def _refuse() -> Never:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
