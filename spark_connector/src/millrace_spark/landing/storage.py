"""The file system interface of landing and compaction.

There are two implementations: local files, which are synced to disk, and Hadoop's file systems (HDFS, object stores).
Exactly-once landing relies on three guarantees: `write` shows a whole text or none, `rename` shows a whole file or none
under the new name, and synced files survive a crash.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from py4j.protocol import Py4JJavaError


class StoredFile(NamedTuple):
    """A file in a listing."""

    path: str
    size_bytes: int
    modified_seconds: float
    """The time of the last write, in seconds since 1970."""


class Storage(Protocol):
    """A file system. Paths are absolute, with slashes."""

    def files(self, folder: str) -> list[StoredFile]:
        """Returns all files in a folder and its subfolders, ordered by path; none if the folder does not exist."""

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""

    def size_bytes(self, path: str) -> int | None:
        """Returns the size of a file; None if it does not exist."""

    def read(self, path: str) -> str:
        """Returns the text of a file.

        Raises:
            StorageError: The file does not exist, or cannot be read.
        """

    def write(self, path: str, text: str) -> None:
        """Writes a small file atomically and durably, with its parent folders; replaces an existing file."""

    def create(self, path: str, text: str) -> bool:
        """Writes a small file like `write`, unless it exists; returns whether it was written.

        Of several concurrent calls one succeeds: locally, under the folder's lock; on HDFS, always; on object stores,
        unless they come within the time of one small copy.
        """

    def rename(self, source: str, target: str) -> None:
        """Renames a file, and creates the parent folders of the new name.

        The file appears whole under its new name. Object stores copy the file, then remove it under the old name; a
        crash in between leaves both.
        """

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with its contents, if it exists."""

    def sync(self, paths: Iterable[str]) -> None:
        """Makes files and their names durable, if the file system does not do so itself."""


class StorageError(Exception):
    """Raised when a file system fails; the message is a sentence."""


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Raises errors of Python and of Hadoop as a `StorageError` that names the path."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    except Py4JJavaError as error:
        raise StorageError(f"{path}: {error.java_exception.toString()}") from error


def move_into_place(storage: Storage, source: str, target: str) -> None:
    """Renames a file, unless it was renamed before; on an object store, the old name may still have to be removed."""
    source_bytes = storage.size_bytes(source)
    if source_bytes is None:
        return
    if source_bytes == storage.size_bytes(target):
        # The copy is complete. It stays, since readers may have found it.
        storage.remove(source)
        return
    storage.remove(target)
    storage.rename(source, target)


def joined(folder: str, *names: str) -> str:
    """Returns the path of a name in a folder."""
    return "/".join((folder.rstrip("/"), *names))


def relative_to(path: str, folder: str) -> str:
    """Returns a path relative to a folder."""
    beginning = folder.rstrip("/") + "/"
    assert path.startswith(beginning), (path, folder)
    return path.removeprefix(beginning)
