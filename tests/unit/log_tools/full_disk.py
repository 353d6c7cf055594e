"""A real disk on which a write finds no space, or which returns other bytes than were written."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from millrace_server.wal.disk import OsDisk, OsFile, Piece


class FullDisk(OsDisk):
    """Refuses the nth write, sync or creation of a file, and all later ones.

    Args:
        nth: The number of the call; 0 for none.
        is_lying: Whether written bytes are changed.
    """

    def __init__(self, nth: int, *, is_lying: bool = False) -> None:
        self._nth = nth
        self._count = 0
        self.is_lying = is_lying

    def error(self) -> OSError:
        """The error of a full disk."""
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def call(self) -> None:
        """Counts a call, and refuses it if it is due."""
        self._count += 1
        if self._nth and self._count >= self._nth:
            raise self.error()

    def create(self, path: Path) -> OsFile:
        self.call()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        return _FullFile(descriptor, self)


class _FullFile(OsFile):
    def __init__(self, descriptor: int, disk: FullDisk) -> None:
        super().__init__(descriptor)
        self._disk = disk

    def write(self, pieces: Sequence[Piece], offset: int) -> None:
        self._disk.call()
        super().write([b"lies" + piece[4:] for piece in pieces] if self._disk.is_lying else pieces, offset)

    def sync(self) -> None:
        self._disk.call()
        super().sync()
