"""Read-only snapshots of a channel's files, which a server may go on writing and removing."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Never

_BLOCK_BYTES = 4096

ReadBytes = Callable[[int, int], bytes]
"""Reads a number of bytes at an offset, fewer only at the end."""


def _refuse(*_: object, **__: object) -> Never:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class ReadOnlyFile:
    """A file up to a length. Blocks that the disk cannot read are returned as zeros, so checksums report them."""

    def __init__(self, read: ReadBytes, length: int) -> None:
        self._read = read
        self._length = length

    @classmethod
    def of(cls, content: bytes) -> "ReadOnlyFile":
        return cls(lambda length, offset: content[offset : offset + length], len(content))

    def read(self, length: int, offset: int) -> bytes:
        length = max(0, min(length, self._length - offset))
        try:
            return self._read(length, offset)
        except OSError:
            # The disk has lost a block in this range; the others are read one by one.
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

    read_cached = read

    def size(self) -> int:
        return self._length

    def close(self) -> None:
        """Does nothing: the file belongs to the caller that opened it."""

    write = reserve = truncate = sync = _refuse


class ReadOnlyDisk:
    """Read-only files by their paths, as a `Disk`."""

    def __init__(self, files: Mapping[Path, ReadOnlyFile]) -> None:
        self._files = dict(files)

    def without(self, paths: Iterable[Path]) -> "ReadOnlyDisk":
        left_out = set(paths)
        return ReadOnlyDisk({path: file for path, file in self._files.items() if path not in left_out})

    def open(self, path: Path, *, writable: bool = False) -> ReadOnlyFile:
        if writable:
            _refuse()
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._files[path]

    def list(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self._files if path.parent == directory)

    def free_bytes(self, _directory: Path) -> int:
        return 0

    def total_bytes(self, _directory: Path) -> int:
        return 0

    def device(self, _directory: Path) -> int:
        return 0

    create = rename = unlink = open_directory = sync_directory = _refuse
