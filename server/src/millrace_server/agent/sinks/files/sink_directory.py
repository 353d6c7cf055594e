"""The directory in which a sink of type `files` keeps what it must remember."""

import fcntl
import os
import secrets
from pathlib import Path

from millrace_server.agent.supervision import ComponentError
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
