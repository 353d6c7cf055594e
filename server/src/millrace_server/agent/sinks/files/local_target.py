"""The target on this machine: a directory that is never created, and never mistaken for another one."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from millrace_server.agent.sinks.files.targets import STAGING_DIRECTORY

_FILE_MODE = 0o666
_DIRECTORY_MODE = 0o777
"""The files are meant for other users too; the process's umask applies."""

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class LocalTarget:
    """Publishes files on this machine by renaming them on the same file system.

    The root, the common directory of all files, must exist and remain the one that was opened first. If its disk is
    unmounted, or it is renamed, nothing must be written into its mount point, or into a new directory with its name. So
    each operation opens it, checks its identity, and works relative to its descriptor. The descriptor is not kept open,
    since the disk could then not be unmounted.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._identity: tuple[int, int] | None = None

    def open(self, owner: str) -> None:
        self.staging = self._root / STAGING_DIRECTORY / owner
        with self._opened_root() as root:
            _make_directories(root, self._relative(self.staging))
        for left in self.staging.iterdir():
            left.unlink()

    def create(self, staged: Path) -> BinaryIO:
        with self._opened_root() as root:
            return open(self._relative(staged), "xb", opener=partial(os.open, mode=_FILE_MODE, dir_fd=root))

    def publish(self, staged: Path, path: str) -> None:
        with self._opened_root() as root:
            final = self._relative(path)
            _make_directories(root, final.parent)
            _rename_to_new(self._relative(staged), final, root)
            _sync(final.parent, root)

    def size_of(self, path: str) -> int | None:
        with self._opened_root() as root:
            try:
                return os.stat(self._relative(path), dir_fd=root).st_size
            except FileNotFoundError:
                return None

    def close(self) -> None:
        with suppress(OSError):
            self.staging.rmdir()
            self.staging.parent.rmdir()

    @contextmanager
    def _opened_root(self) -> Iterator[int]:
        if not self._root.is_dir():
            raise self._refusal("is not a directory; create it, or mount its file system")
        with _opened(self._root) as root:
            status = os.fstat(root)
            self._identity = self._identity or (status.st_dev, status.st_ino)
            if self._identity != (status.st_dev, status.st_ino):
                raise self._refusal("is no longer the same directory; restore the original, or restart the server")
            yield root

    def _refusal(self, what: str) -> OSError:
        return NotADirectoryError(errno.ENOTDIR, what, str(self._root))

    def _relative(self, path: Path | str) -> Path:
        """Returns a path relative to the root; an absolute path if an earlier configuration had another root."""
        path = Path(path)
        return path.relative_to(self._root) if path.is_relative_to(self._root) else path.absolute()


@contextmanager
def _opened(path: Path, root: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(directory: Path, root: int) -> None:
    with _opened(directory, root) as descriptor:
        os.fsync(descriptor)


def _make_directories(root: int, path: Path) -> None:
    """Creates a directory below the root, and its missing parents, durably."""
    for directory in reversed([path, *path.parents][:-1]):
        with suppress(FileExistsError):
            os.mkdir(directory, _DIRECTORY_MODE, dir_fd=root)
            _sync(directory.parent, root)


def _rename_to_new(staged: Path, final: Path, root: int) -> None:
    """Renames a file, but never replaces another one."""
    try:
        # Unlike a rename, a link fails if the name exists, even if it was created just now.
        os.link(staged, final, src_dir_fd=root, dst_dir_fd=root)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        os.unlink(staged, dir_fd=root)
        return
    if os.access(final, os.F_OK, dir_fd=root):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final))
    os.rename(staged, final, src_dir_fd=root, dst_dir_fd=root)
