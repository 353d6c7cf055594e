"""The directory in which a sink of type `files` keeps what it must remember."""

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


class SinkDirectory:
    """A directory that one run of a sink has for itself at a time.

    A run whose file system hung may still be at its last file, long after the sink has begun anew; what it does then
    must not come between.

    Args:
        path: Made where it is missing.
        sink_name: Whose it is.
    """

    def __init__(self, path: Path, sink_name: str) -> None:
        self.path = path
        self._sink_name = sink_name
        self._lock: int | None = None

    def open(self) -> str:
        """Keeps other runs out until `close`; returns what names this sink among all there are, and stays the same.

        Raises:
            ComponentError: Another run is still at work.
            OSError: The directory cannot be used.
        """
        make_directories(self.path)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ComponentError("an earlier run still waits for a file system that does not answer") from None
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        return f"{self._sink_name}-{self._token()}"

    def close(self) -> None:
        """Lets others in."""
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


_VERSION = 1
_PROMISED = ".promised.json"
_KEPT = ".kept.json"


class FileReceipt(NamedTuple):
    """Which events a file holds."""

    path: str
    """The file's final name."""
    file_bytes: int
    """Its size."""
    channel_id: str
    """Of the channel that the events are from."""
    ranges: Sequence[tuple[int, int]]
    """The events' sequences, as ranges with both ends included."""

    @property
    def last_sequence(self) -> int:
        """The highest of the sequences."""
        return max(last for _, last in self.ranges)


class ReceiptBook:
    """The receipts of one sink, in a directory.

    A receipt is PROMISED before its file gets its final name, and KEPT afterwards. One that a crash left promised was
    kept if the file is there. What was kept stays true even where somebody has taken the file away since.

    Args:
        directory: The sink's own; made where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next_number = 1

    def open(self) -> "list[tuple[Path, FileReceipt, bool]]":
        """Makes the book ready for more; returns each receipt in it with its place, and whether it was kept.

        Raises:
            OSError: It cannot be read or written.
            ComponentFailedError: A receipt is damaged, or of a later version.
        """
        make_directories(self._directory)
        for begun in self._directory.glob("*.tmp"):
            begun.unlink()
        found = []
        for place in sorted(self._directory.glob("*.json")):
            number, _, _ = place.name.partition(".")
            self._next_number = max(self._next_number, int(number) + 1)
            found.append((place, _read(place), place.name.endswith(_KEPT)))
        return found

    def promise(self, receipt: FileReceipt) -> Path:
        """Writes a receipt down for good; returns its place."""
        place = self._directory / f"{self._next_number:012d}{_PROMISED}"
        self._next_number += 1
        document = {"version": _VERSION, **receipt._asdict()}
        write_atomically(place, json.dumps(document, separators=(",", ":")).encode())
        return place

    def keep(self, place: Path) -> Path:
        """Notes that a receipt's file has its final name; returns the receipt's new place."""
        # Not synced: after a power cut the file itself tells the same.
        return place.rename(place.with_name(place.name.removesuffix(_PROMISED) + _KEPT))

    def drop(self, place: Path) -> None:
        """Removes a receipt that nobody needs any more."""
        place.unlink(missing_ok=True)


def _read(place: Path) -> FileReceipt:
    try:
        document = json.loads(place.read_bytes())
        version = document["version"]
        if version != _VERSION:
            raise ComponentFailedError(
                f"{place} is of version {version}, which this server does not know; use a later one"
            )
        ranges = [(int(first), int(last)) for first, last in document["ranges"]]
        return FileReceipt(str(document["path"]), int(document["file_bytes"]), str(document["channel_id"]), ranges)
    except (KeyError, TypeError, ValueError) as error:
        raise ComponentFailedError(
            f"{place} is damaged ({error}); remove it to go on: events of one finished file may then come twice"
        ) from None
