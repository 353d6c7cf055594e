"""Where landed files lie: the few calls that landing and compaction need of a file system.

Two kinds answer them: this machine's files, which are synced to the disk as the server's log is, and whatever Hadoop
knows (HDFS, object stores). What is exact about landing rests on three of these promises alone: `write` shows a whole
text or none, `rename` shows a whole file or none under the new name, and what `sync` was asked for outlives a crash.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class StoredFile(NamedTuple):
    """A file that was found."""

    path: str
    """Whole, as the calls of the same storage take it."""
    size_bytes: int
    modified_seconds: float
    """When it was written last, in seconds since 1970."""


class Storage(Protocol):
    """A file system. Paths are whole ones, with slashes between their parts."""

    def files(self, folder: str) -> list[StoredFile]:
        """All files below a folder, ordered by path; none where there is no such folder."""

    def exists(self, path: str) -> bool:
        """Tells whether there is a file or a folder."""

    def size_bytes(self, path: str) -> int | None:
        """How large a file is; None where there is none."""

    def read(self, path: str) -> str:
        """A text that `write` wrote, or Spark.

        Raises:
            StorageError: There is no such file, or it cannot be read.
        """

    def write(self, path: str, text: str) -> None:
        """Writes a small file with all folders above it; it appears whole, is safe then, and replaces an older one."""

    def create(self, path: str, text: str) -> bool:
        """Writes a small file as `write` does, unless there is one: then does nothing, and says False.

        Of several that create it at the same time one succeeds: here, where they hold the folder's lock; on HDFS
        always; on object stores unless they come within the time of one small copy.
        """

    def rename(self, source: str, target: str) -> None:
        """Gives a file another name, with all folders above it.

        The file appears whole under its new name. On object stores the store copies it, then removes it under the old
        name: a crash between leaves both.
        """

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with all that is in it; nothing where there is none."""

    def sync(self, paths: Iterable[str]) -> None:
        """Makes files safe against a power cut, and their names; where a file system does so by itself, nothing."""


class StorageError(Exception):
    """Returned when a file system refuses; the message is a sentence."""


def move_into_place(storage: Storage, source: str, target: str) -> None:
    """Renames a file that may have been renamed already, wholly or, on an object store, but for the removal."""
    source_bytes = storage.size_bytes(source)
    if source_bytes is None:
        return
    if source_bytes == storage.size_bytes(target):
        # The copy is whole. It stays, since readers may have found it.
        storage.remove(source)
        return
    storage.remove(target)
    storage.rename(source, target)


def joined(folder: str, *names: str) -> str:
    """A path below a folder."""
    return "/".join((folder.rstrip("/"), *names))


def relative_to(path: str, folder: str) -> str:
    """What follows a folder in a path below it."""
    beginning = folder.rstrip("/") + "/"
    assert path.startswith(beginning), (path, folder)
    return path.removeprefix(beginning)
