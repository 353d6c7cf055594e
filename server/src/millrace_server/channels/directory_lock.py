"""The lock that keeps a channel's directory to one channel of one process."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from millrace_server.channels.channel_file import DirectoryError, why_refused

LOCK_FILE = "lock"

_PROCESS_ID_DIGITS_MAX = 20


class DirectoryInUseError(DirectoryError):
    """Returned when another process, or another channel of this one, uses the directory."""


def lock_directory(path: Path) -> int:
    """Keeps others out of a channel's directory until the descriptor that this returns is closed.

    The lock is the kernel's: it ends with the process, however that ends.

    Raises:
        DirectoryInUseError: Somebody else has it.
        DirectoryError: It cannot be had.
    """
    lock = path / LOCK_FILE
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DirectoryError(f"cannot use {lock}: {why_refused(error)}") from error
    try:
        _lock(descriptor, path)
    except DirectoryError:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DirectoryInUseError(
            f"cannot use {path}: another channel or server{_owner(descriptor)} uses it; stop that one, or give this "
            "one a directory of its own"
        ) from None
    except OSError as error:
        raise DirectoryError(f"cannot lock {path}: {error.strerror}") from error
    if not os.fstat(descriptor).st_nlink:
        # Whoever removed the file had the lock of it; the next one to come makes another file, and locks that.
        raise DirectoryInUseError(f"cannot use {path}: it was being removed; try again")
    # Only for the sentence above; the lock itself does not depend on it, so a full disk may refuse it.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _owner(descriptor: int) -> str:
    content = os.pread(descriptor, _PROCESS_ID_DIGITS_MAX, 0).strip()
    return f" (process {content.decode()})" if content.isdigit() else ""
