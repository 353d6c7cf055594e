"""What all targets do."""

from pathlib import Path
from typing import Protocol

STAGING_DIRECTORY = ".millrace"
"""Holds what is unfinished, in the directory that all files of a sink have in common; readers pass over such names."""


class FileTarget(Protocol):
    """Takes finished files. All of it may block, and may raise OSError."""

    staging: Path
    """The directory of this machine in which files are written."""

    def open(self) -> None:
        """Gets ready, and removes what an earlier run of the same sink has left unfinished."""

    def publish(self, staged: Path, path: str) -> None:
        """Gives a file that is written and synced its final name; once this returns, it survives a crash.

        Nobody sees a part of the file under that name.

        Args:
            staged: The file, in `staging`.
            path: Its final name; there was no file of that name just now.

        Raises:
            FileExistsError: There is one now, and nothing was changed. Not every file system can tell.
        """

    def size_of(self, path: str) -> int | None:
        """The size of the file of that name in bytes; None where there is none."""

    def close(self) -> None:
        """Removes its directory for unfinished files where nothing is in it."""
