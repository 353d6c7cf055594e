"""Durable and atomic writes of files and directories, and files named by settings, which are watched for changes."""

import asyncio
import errno
import json
import os
import stat
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Never

import structlog
from pydantic import BeforeValidator

from millrace.setting_problems import shown_value

CHECK_SECONDS = 1.0
"""Changed files are noticed within this time."""

_TEMPORARY_SUFFIX = ".tmp"
_PROCESS_ID_DIGITS_MAX = 20

_log = structlog.stdlib.get_logger(__name__)


def checksum_of(document: object) -> str:
    """Returns the checksum of a JSON document, regardless of the order of its keys."""
    return format(zlib.crc32(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()), "08x")


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replaces a file atomically.

    Once this returns, the new content survives a crash. After a crash during the call, or an error, the file has
    either the old content or the new one.

    Args:
        path: The file. The same path with `.tmp` is overwritten; concurrent writers are not allowed.
        content: The new content.
        mode: The permissions of a new file, before the umask.

    Raises:
        OSError: The old content remains, unless only the fsync of the directory failed.
    """
    if not path.name:
        # The root, and the current directory.
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
    try:
        _write_new(temporary, content, mode)
        # The new content is fsynced first: the name must never refer to content that is not on the disk.
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Fsyncs a directory, so that its names survive a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Syncing:
    """The fsyncs of one directory: how many have begun, and how many have ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # Held during an fsync.
        self.begun = self.ended = 0


class SharedSyncs:
    """Fsyncs of directories; calls that wait for the same one share it. Thread-safe."""

    def __init__(self) -> None:
        self._syncing: defaultdict[Path, _Syncing] = defaultdict(_Syncing)

    def sync_directory(self, path: Path) -> None:
        """Fsyncs a directory like `sync_directory`, or waits for a later fsync by another call."""
        syncing = self._syncing[path]
        # An fsync that has already begun may miss the caller's change.
        needed = syncing.begun + 1
        with syncing.lock:
            if syncing.ended >= needed:
                return
            syncing.begun += 1
            sync_directory(path)
            syncing.ended = syncing.begun


def make_directories(path: Path, sync: Callable[[Path], None] = sync_directory) -> None:
    """Creates a directory and its missing parents durably."""
    missing = takewhile(lambda directory: not directory.exists(), (path, *path.parents))
    for directory in reversed(list(missing)):
        directory.mkdir(mode=0o700, exist_ok=True)
        sync(directory.parent)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    # A file left by a crash may be a link or have other permissions, so it is not reused.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


class FileWatch:
    """Detects whether files were changed or replaced."""

    def __init__(self, *paths: Path | None) -> None:
        self._paths = paths
        self._stamps = self._current()

    def has_changed(self) -> bool:
        """Whether a file has changed since the last call, or since the watch was created.

        Callers that then find an invalid file read it again when it changes again.
        """
        former, self._stamps = self._stamps, self._current()
        return self._stamps != former

    def _current(self) -> list[object]:
        return list(map(_stamp, self._paths))


async def follow(check: Callable[[], object], what: str, on_change: Callable[[], None] = lambda: None) -> Never:
    """Calls `check` on a thread every second, and `on_change` whenever it returns a true value, until it is cancelled.

    An error is logged with `what`, and the checks continue, since the cause may be fixed later.
    """
    while True:
        try:
            if await asyncio.to_thread(check):
                on_change()
        except Exception:  # noqa: BLE001 - as above
            _log.exception(f"checking {what} for changes failed")
        await asyncio.sleep(CHECK_SECONDS)


def _stamp(path: Path | None) -> object:
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return found and (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)


def read_named(path: Path, bytes_max: int, *, is_secret: bool = False) -> bytes:
    """Reads the file that a setting names; raises ValueError, with what is wrong, if that is not possible.

    A world-writable file is refused, and also a world-readable secret.
    """
    shown = json.dumps(str(path))
    try:
        # Without O_NONBLOCK, opening a pipe without a writer would block all later checks.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISFIFO(mode):
                raise ValueError(f"is {shown}, which is a pipe; it must be a file")
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise ValueError(f"is {shown}, which cannot be read: {error.strerror}") from None
    if len(content) > bytes_max:
        raise ValueError(f"is {shown}, which is larger than {bytes_max} bytes")
    if is_secret:
        _refuse_public(path, mode)
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        raise ValueError(f"is {shown}, which every user of this machine may change; run: chmod o-w {path}")
    return content


def refuse_public_secret(path: Path) -> None:
    """Raises ValueError if a secret is world-readable; a missing file is reported when it is read."""
    with suppress(OSError):
        _refuse_public(path, path.stat().st_mode)


def _refuse_public(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        shown = json.dumps(str(path))
        raise ValueError(f"is {shown}, which every user of this machine may read; run: chmod o-rwx {path}")


def write_lock_owner(descriptor: int) -> None:
    """Writes the process ID into a lock file that this process has locked, for `lock_owner`."""
    # Only for an error message: the lock itself does not depend on it, so a full disk may refuse it.
    with suppress(OSError):
        # Padded, over the previous owner: truncating the file would make the file system write it out.
        os.pwrite(descriptor, f"{os.getpid():<{_PROCESS_ID_DIGITS_MAX - 1}}\n".encode(), 0)


def lock_owner(descriptor: int) -> str:
    """Returns the process that wrote a lock file, for an error message: ` (process 17)`, or nothing if unknown."""
    content = os.pread(descriptor, _PROCESS_ID_DIGITS_MAX, 0).strip()
    return f" (process {content.decode()})" if content.isdigit() else ""


def _make_path(value: object) -> object:
    if not isinstance(value, str | Path):
        return value
    # An empty path would be the working directory, which is never intended.
    if Path(value) == Path() or "\0" in str(value):
        raise ValueError(f"is {shown_value(str(value))}; it must be the path of a file or directory")
    return Path(value)


NamedPath = Annotated[Path, BeforeValidator(_make_path)]
"""A setting that names a file or directory."""
