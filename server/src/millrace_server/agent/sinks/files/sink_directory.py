"""The directory of a sink of type `files` for its own state: its lock, its identity, and its receipts.

A receipt lists the events in a finished file. It is deleted once the channel has settled these events.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from millrace_server.agent.supervision import ComponentError, ComponentFailedError
from millrace_server.files import make_directories, write_atomically

_TOKEN_BYTES = 6
_VERSION = 1
_PREPARED_SUFFIX = ".promised.json"
_CONFIRMED_SUFFIX = ".kept.json"


class SinkDirectory:
    """A directory that only one run of a sink uses at a time.

    A run whose file system hangs may still be writing its last file long after the next run has begun; the lock
    excludes this.
    """

    def __init__(self, path: Path, sink_name: str) -> None:
        self.path = path
        self._sink_name = sink_name
        self._lock: int | None = None

    def open(self) -> str:
        """Locks the directory until `close`; returns the identity of the sink, which is unique and never changes.

        Raises ComponentError if an earlier run is still active.
        """
        make_directories(self.path)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                raise ComponentError("an earlier run still waits for a file system that does not respond") from None
            raise
        self._lock = lock
        return f"{self._sink_name}-{self._token()}"

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _token(self) -> str:
        path = self.path / "owner"
        try:
            return path.read_text()
        except FileNotFoundError:
            token = secrets.token_hex(_TOKEN_BYTES)
            write_atomically(path, token.encode())
            return token


class FileReceipt(NamedTuple):
    """The events in a file."""

    path: str
    file_bytes: int
    channel_id: str
    ranges: Sequence[tuple[int, int]]
    """The events' sequences, as ranges with both ends included."""

    @property
    def last_sequence(self) -> int:
        return max(last for _, last in self.ranges)


class ReceiptStore:
    """The receipts of one sink, one file each.

    A receipt is PREPARED before its file gets its final name, and CONFIRMED afterwards. If a crash left it prepared, it
    counts as confirmed if its file exists. A confirmed receipt remains valid even if its file is moved away later.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next_number = 1

    def open(self) -> "list[tuple[Path, FileReceipt, bool]]":
        """Reads the receipts; returns the path of each, its content, and whether it is confirmed."""
        make_directories(self._directory)
        for begun in self._directory.glob("*.tmp"):
            begun.unlink()
        found = []
        for path in sorted(self._directory.glob("*.json")):
            number, _, _ = path.name.partition(".")
            self._next_number = max(self._next_number, int(number) + 1)
            found.append((path, _read(path), path.name.endswith(_CONFIRMED_SUFFIX)))
        return found

    def prepare(self, receipt: FileReceipt) -> Path:
        path = self._directory / f"{self._next_number:012d}{_PREPARED_SUFFIX}"
        self._next_number += 1
        document = {"version": _VERSION, **receipt._asdict()}
        write_atomically(path, json.dumps(document, separators=(",", ":")).encode())
        return path

    def confirm(self, path: Path) -> Path:
        # Not fsynced: after a power failure, `open` comes to the same result because the file exists.
        return path.rename(path.with_name(path.name.removesuffix(_PREPARED_SUFFIX) + _CONFIRMED_SUFFIX))

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)


def _read(path: Path) -> FileReceipt:
    try:
        document = json.loads(path.read_bytes())
        version = document["version"]
        if version != _VERSION:
            raise ComponentFailedError(
                f"{path} has version {version}, which this server does not support; use a later one"
            )
        ranges = [(int(first), int(last)) for first, last in document["ranges"]]
        return FileReceipt(str(document["path"]), int(document["file_bytes"]), str(document["channel_id"]), ranges)
    except (KeyError, TypeError, ValueError) as error:
        raise ComponentFailedError(
            f"{path} is damaged ({error}); remove it to continue: events of one finished file may then be stored twice"
        ) from None
