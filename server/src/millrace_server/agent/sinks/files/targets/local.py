"""Files on a file system of this machine."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from millrace_server.agent.sinks.files.targets.target import STAGING_DIRECTORY
from millrace_server.files import make_directories, sync_directory

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
