"""The directory that holds what outlives a server, and that one server at a time may use."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_server.errors import StartError
from millrace_server.files import make_directories

CATALOG_FILE = "catalog.json"
"""The channels that CreateChannel made."""

CHANNELS_DIRECTORY = "channels"
"""Below it, each file channel that does not say otherwise has a directory of its own."""

_LOCK_FILE = "lock"
_PROCESS_ID_DIGITS_MAX = 20


@contextmanager
def locked_data_dir(path: Path) -> Iterator[None]:
    """Keeps other servers out of a data directory, which is made where it is missing.

    The lock is the kernel's: it ends with the process, however that ends.

    Raises:
        StartError: Another server uses the directory, or it cannot be made or written to.
    """
    try:
        make_directories(path)
        descriptor = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartError(f"cannot use {path} (server.data_dir): {error.strerror}") from None
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StartError(
            f"cannot use {path} (server.data_dir): another server{_owner(descriptor)} uses it; "
            "stop that one, or give this one a directory of its own"
        ) from None
    except OSError as error:
        raise StartError(f"cannot lock {path} (server.data_dir): {error.strerror}") from None
    # Only for the sentence above; the lock itself does not depend on it, so a full disk may refuse it.
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        return


def _owner(descriptor: int) -> str:
    content = os.pread(descriptor, _PROCESS_ID_DIGITS_MAX, 0).strip()
    return f" (process {content.decode()})" if content.isdigit() else ""
