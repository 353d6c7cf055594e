"""One program at a time works on a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_spark.errors import MillraceSparkError
from millrace_spark.landing.places import WorkFolder, is_local


class FolderBusyError(MillraceSparkError):
    """Returned when another program works on a folder."""


@contextmanager
def folder_lock(work: WorkFolder) -> Iterator[None]:
    """Holds a folder for as long as the block runs; the operating system gives it back whatever happens.

    Only of this machine: other file systems have no such locks. There a second landing ends the first one's claim.

    Raises:
        FolderBusyError: Another program holds it.
        MillraceSparkError: The folder cannot be made.
    """
    if not is_local(work.path):
        yield
        return
    try:
        Path(work.path).mkdir(parents=True, exist_ok=True)
        lock = os.open(work.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise MillraceSparkError(
            f"{work.path}: cannot be used: {error.strerror}; name another folder as target.work_path"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise FolderBusyError(
                f"{work.path}: another millrace-spark works here, process {holder}; stop it, or wait until it ends"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)
