"""What all targets do."""

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from millrace_server.files import make_directories, sync_directory

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


_DIRECTORY_MODE = 0o777
"""Less the process's umask: what is written is meant for others to read."""

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class LocalTarget:
    """Files are written beside where they will be, and renamed.

    Args:
        root: The directory that all files have in common. It must be there: where a disk is not mounted, nothing is to
            be written into the directory below.
        owner: Names the sink among all that use the directory.
    """

    def __init__(self, root: Path, owner: str) -> None:
        self._root = root
        self.staging = root / STAGING_DIRECTORY / owner

    def open(self) -> None:
        if not self._root.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, "is no directory; make it, or mount what belongs there", str(self._root)
            )
        make_directories(self.staging, mode=_DIRECTORY_MODE)
        for left in self.staging.iterdir():
            left.unlink()

    def publish(self, staged: Path, path: str) -> None:
        final = Path(path)
        make_directories(final.parent, mode=_DIRECTORY_MODE)
        _rename_to_new(staged, final)
        sync_directory(final.parent)

    def size_of(self, path: str) -> int | None:
        try:
            return Path(path).stat().st_size
        except FileNotFoundError:
            return None

    def close(self) -> None:
        with suppress(OSError):
            self.staging.rmdir()
            self.staging.parent.rmdir()


def _rename_to_new(staged: Path, final: Path) -> None:
    """Renames, but never in the place of another file."""
    try:
        # Unlike a rename, a link fails where there is such a name, whoever has made it meanwhile.
        os.link(staged, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        staged.unlink()
        return
    if final.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final))
    staged.rename(final)


_COPY_BYTES = 8 << 20
_S3 = "s3://"

ResultT = TypeVar("ResultT")


class FileSystem(NamedTuple):
    """A file system as fsspec has them."""

    files: Any
    """What does the work."""
    place_of: Callable[[str], str]
    """What it calls the file of an address."""


def open_file_system(url: str, options: Mapping[str, Any]) -> FileSystem:
    """The file system of an address.

    HDFS and S3 are pyarrow's, which brings all that they need but Hadoop itself.
    """
    import fsspec

    if not url.startswith(_S3):
        files, _ = fsspec.url_to_fs(url, **options)
        return FileSystem(files, files._strip_protocol)  # noqa: SLF001 - fsspec's own name for what all of them have
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import S3FileSystem

    return FileSystem(ArrowFSWrapper(S3FileSystem(**options)), lambda url: url.removeprefix(_S3))


class RemoteTarget:
    """Files are written on this machine, and sent as a whole.

    An upload to S3 is seen when it is complete, so it goes to the final name at once. Elsewhere it goes to a hidden
    name, and is renamed.

    Args:
        make: Makes the file system.
        root: The address of the directory that all files have in common, as `s3://bucket/events`.
        owner: Names the sink among all that use the directory.
        staging: A directory of this machine for files that are not complete.
    """

    def __init__(self, make: Callable[[], FileSystem], root: str, owner: str, staging: Path) -> None:
        self._make = make
        self._system: FileSystem | None = None
        self._is_put_atomic = root.startswith(_S3)
        self._root = root
        self._parts = f"{root}/{STAGING_DIRECTORY}/{owner}"
        self.staging = staging

    def open(self) -> None:
        if self.staging.is_dir():
            shutil.rmtree(self.staging)
        make_directories(self.staging)
        self._call(self._open)

    def _open(self) -> None:
        self._system = self._make()
        if self._is_put_atomic:
            # To see whether it answers; there are no directories to be made, and no parts to be removed.
            self._files.exists(self._place(self._root))
            return
        parts = self._place(self._parts)
        self._files.makedirs(parts, exist_ok=True)
        for left in self._files.ls(parts, detail=False):
            self._files.rm_file(left)

    def publish(self, staged: Path, path: str) -> None:
        self._call(lambda: self._put(staged, path) if self._is_put_atomic else self._put_and_rename(staged, path))
        staged.unlink()

    def _put_and_rename(self, staged: Path, path: str) -> None:
        part = f"{self._parts}/{staged.name}"
        self._put(staged, part)
        self._files.makedirs(self._place(path.rpartition("/")[0]), exist_ok=True)
        self._files.mv(self._place(part), self._place(path))

    def _put(self, staged: Path, path: str) -> None:
        place = self._place(path)
        try:
            with staged.open("rb") as source, self._files.open(place, "wb") as copy:
                shutil.copyfileobj(source, copy, _COPY_BYTES)
        except BaseException:
            # Where reading fails, closing the copy has completed a part.
            with suppress(Exception):
                self._files.rm_file(place)
            raise

    def size_of(self, path: str) -> int | None:
        return self._call(lambda: self._size_of(self._place(path)))

    def _size_of(self, place: str) -> int | None:
        self._files.invalidate_cache()
        try:
            return int(self._files.info(place)["size"])
        except FileNotFoundError:
            return None

    def close(self) -> None:
        with suppress(OSError):
            shutil.rmtree(self.staging)

    @property
    def _files(self) -> Any:
        assert self._system is not None, "it is open"
        return self._system.files

    def _place(self, url: str) -> str:
        assert self._system is not None, "it is open"
        return self._system.place_of(url)

    def _call(self, work: Callable[[], ResultT]) -> ResultT:
        """Does something with the file system, whose errors may be of any type."""
        try:
            return work()
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
