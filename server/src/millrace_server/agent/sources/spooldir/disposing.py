"""What becomes of files: done ones, and bad ones."""

import errno
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from millrace_server.agent.sources.spooldir.config import (
    QUARANTINED_SUFFIX,
    REASON_SUFFIX,
    DeleteDone,
    MoveDone,
    RenameDone,
    SpooldirSourceConfig,
)
from millrace_server.agent.sources.spooldir.looking import Found
from millrace_server.agent.supervision import ComponentError

_NAMES_MAX = 1_000


class Disposal:
    """Takes files away once they are done or known to be bad, and never in the place of another file.

    All of it blocks on the filesystem.
    """

    def __init__(self, config: SpooldirSourceConfig) -> None:
        self._config = config

    def prepare(self) -> None:
        """Makes sure that files can be taken away, before the first of them is read.

        Raises:
            ComponentError: They cannot be; says why.
        """
        directory, done = self._config.directory, self._config.done
        target = done.directory if isinstance(done, MoveDone) else directory
        if not directory.is_dir():
            raise ComponentError(f"there is no directory {directory}; make it, or name another one in `directory`")
        # With a dot, so that no other source takes it for a file.
        trial = directory / f".millrace-{secrets.token_hex(8)}"
        try:
            if target != directory:
                target.mkdir(parents=True, exist_ok=True)
            trial.touch(exist_ok=False)
        except OSError as error:
            place = directory if error.filename == str(trial) else error.filename
            raise ComponentError(f"{place} cannot be written to: {error.strerror}") from None
        moved = target / f"{trial.name}-moved"
        try:
            trial.rename(moved)
        except OSError as error:
            trial.unlink()
            raise ComponentError(f"done files cannot be taken from {directory} to {target}: {error.strerror}") from None
        moved.unlink()

    def finish(self, found: Found) -> None:
        """Takes a file away all of which is stored. Does nothing where it has gone, or another has its name now.

        Raises:
            OSError: It cannot be taken away.
        """
        path, done = found.path, self._config.done
        if not _is_there(found):
            return
        match done:
            case RenameDone():
                _rename_apart(path, path.parent, done.suffix)
            case DeleteDone():
                path.unlink()
            case MoveDone():
                _rename_apart(path, self._below(done.directory, path), "")

    def quarantine(self, found: Found, reason: str) -> Path:
        """Takes a bad file away, and leaves a file with the reason beside it.

        Args:
            found: The file.
            reason: Why it is bad, for people.

        Returns:
            Where it is now: where it was, if it has gone or another has its name.

        Raises:
            OSError: It cannot be taken away.
        """
        path = found.path
        if not _is_there(found):
            return path
        try:
            moved = _rename_apart(path, self._below(self._config.quarantine, path), "")
        except OSError:
            moved = _rename_apart(path, path.parent, QUARANTINED_SUFFIX)
        # The log has the reason too; a full disk must not make more of this.
        with suppress(OSError):
            _write_apart(moved.parent, moved.name + REASON_SUFFIX, reason)
        return moved

    def _below(self, target: Path, path: Path) -> Path:
        """The directory that stands below a target as a file's directory stands below the source's."""
        directory = target / path.parent.relative_to(self._config.directory)
        directory.mkdir(parents=True, exist_ok=True)
        return directory


def _is_there(found: Found) -> bool:
    try:
        return found.path.lstat().st_ino == found.shape.inode
    except FileNotFoundError:
        return False


def _rename_apart(path: Path, directory: Path, suffix: str) -> Path:
    """Renames a file to a name that nobody has."""
    for target in _free_names(directory, path.name, suffix):
        # Renaming takes the place of what has the name; so the name is taken first, as an empty file of our own.
        try:
            target.touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            return path.rename(target)
        except BaseException:
            target.unlink()
            raise
    raise FileExistsError(errno.EEXIST, "all names that it could have are taken", str(path))


def _write_apart(directory: Path, name: str, text: str) -> None:
    for target in _free_names(directory, name, ""):
        with suppress(FileExistsError), target.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            return


def _free_names(directory: Path, name: str, suffix: str) -> Iterator[Path]:
    """Names to try, the plain one first."""
    yield directory / f"{name}{suffix}"
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    yield directory / f"{name}.{moment}{suffix}"
    for number in range(2, _NAMES_MAX):
        yield directory / f"{name}.{moment}-{number}{suffix}"
