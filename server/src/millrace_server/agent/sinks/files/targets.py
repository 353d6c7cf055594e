"""Targets of finished files, on this machine or in another file system."""

import errno
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from millrace_server.files import make_directories

STAGING_DIRECTORY = ".millrace"
"""The directory of unfinished files below the common directory of a sink's files; readers ignore hidden names."""


class FileTarget(Protocol):
    """Publishes finished files. All methods may block, and may raise OSError."""

    staging: Path
    """The directory on this machine in which unfinished files are written."""

    def open(self, owner: str) -> None:
        """Prepares the target, and removes unfinished files of an earlier run of the same owner, which is a sink."""

    def create(self, staged: Path) -> BinaryIO:
        """Creates a file in `staging`, and opens it for writing."""

    def publish(self, staged: Path, path: str) -> None:
        """Gives an fsynced file in `staging` its final name, durably. No reader sees a partial file under that name.

        Raises FileExistsError, without a change, if the name is in use. Not every file system detects this.
        """

    def size_of(self, path: str) -> int | None:
        """Returns the size of a file in bytes; None if it does not exist."""

    def close(self) -> None:
        """Removes its directory of unfinished files if it is empty."""


_COPY_BYTES = 8 << 20
_S3 = "s3://"

ResultT = TypeVar("ResultT")


class FileSystem(NamedTuple):
    """An fsspec file system."""

    files: Any
    path_of: Callable[[str], str]
    """Returns its path for a URL."""


def open_file_system(url: str, options: Mapping[str, Any]) -> FileSystem:
    """Opens the file system of a URL, below which all files will be.

    HDFS and S3 use pyarrow, which needs no further libraries except for Hadoop's own.
    """
    import fsspec

    if not url.startswith(_S3):
        files, root = fsspec.url_to_fs(url, **options)

        def path_of(wanted: str) -> str:
            # Below the root, a path contains headers, and `?` in a header does not begin a query.
            if wanted.startswith(url):
                return f"{root.rstrip('/')}{wanted.removeprefix(url)}"
            return str(files._strip_protocol(wanted))  # noqa: SLF001 - all of fsspec's file systems have it

        return FileSystem(files, path_of)
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import S3FileSystem

    return FileSystem(ArrowFSWrapper(S3FileSystem(**options)), lambda url: url.removeprefix(_S3))


class RemoteTarget:
    """Publishes files in another file system: HDFS, S3, or any other that fsspec supports.

    Files are written on this machine and uploaded as a whole. An upload to S3 becomes visible when it is complete, so
    it uses the final name directly. Uploads to other file systems use a hidden name, and are then renamed.
    """

    def __init__(self, make: Callable[[], FileSystem], root: str, staging: Path) -> None:
        self._make = make
        self._files: Any = None
        self._path_of: Callable[[str], str] = str
        self._is_put_atomic = root.startswith(_S3)
        self._root = root
        self.staging = staging

    def open(self, owner: str) -> None:
        self._parts = f"{self._root}/{STAGING_DIRECTORY}/{owner}"
        if self.staging.is_dir():
            shutil.rmtree(self.staging)
        make_directories(self.staging)
        self._call(self._open)

    def _open(self) -> None:
        self._files, self._path_of = self._make()
        if self._is_put_atomic:
            # Only checks that it responds: S3 needs no directories, and has no partial files to remove.
            self._files.exists(self._path_of(self._root))
            return
        parts = self._path_of(self._parts)
        self._files.makedirs(parts, exist_ok=True)
        for left in self._files.ls(parts, detail=False):
            self._files.rm_file(left)

    def create(self, staged: Path) -> BinaryIO:
        return staged.open("xb")

    def publish(self, staged: Path, path: str) -> None:
        self._call(lambda: self._put(staged, path) if self._is_put_atomic else self._put_and_rename(staged, path))
        staged.unlink()

    def _put_and_rename(self, staged: Path, path: str) -> None:
        part = f"{self._parts}/{staged.name}"
        self._put(staged, part)
        self._files.makedirs(self._path_of(path.rpartition("/")[0]), exist_ok=True)
        self._files.mv(self._path_of(part), self._path_of(path))

    def _put(self, staged: Path, path: str) -> None:
        final = self._path_of(path)
        try:
            with staged.open("rb") as source, self._files.open(final, "wb") as copy:
                shutil.copyfileobj(source, copy, _COPY_BYTES)
        except BaseException:
            # If reading failed, a partial file was published when the copy was closed.
            with suppress(Exception):
                self._files.rm_file(final)
            raise

    def size_of(self, path: str) -> int | None:
        return self._call(lambda: self._size_of(self._path_of(path)))

    def _size_of(self, path: str) -> int | None:
        self._files.invalidate_cache()
        try:
            return int(self._files.info(path)["size"])
        except FileNotFoundError:
            return None

    def close(self) -> None:
        with suppress(OSError):
            shutil.rmtree(self.staging)

    def _call(self, work: Callable[[], ResultT]) -> ResultT:
        """Calls the file system, whose errors may have any type, and raises OSError instead."""
        try:
            return work()
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
