"""Servers as local processes on free ports, which can be killed and restarted."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from examples.access_log.interruptions import scratch_folder, uninterrupted
from examples.free_ports import free_ports

_MILLRACED = Path(sys.executable).with_name("millraced")
_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 30.0
_POLL_SECONDS = 0.01

_OPENINGS = (b'"channel opened"', b'"channel taken over"')
"""In the log's entries about channels that are open now: that of a file, and of a replicated one."""

T = TypeVar("T")


class ServerError(Exception):
    """Raised when a server does not start or stop cleanly; the message is for the user."""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The restart of a server that was killed."""

    event_count: int
    """The events that it recovered from the channel's log."""
    replay_seconds: float
    """The time for the replay of the channel's checkpoint and log."""
    seconds: float
    """The time from the kill until the channel was open, including the start of the process."""


class LocalServer:
    """A server process, created by `local_server`, for one thread at a time.

    Attributes:
        endpoint: The address for gRPC, `host:port`, which a restart keeps.
    """

    def __init__(self, config: Path, channel: str, scratch: Path, log: Path) -> None:
        self._channel = channel
        self._log = log
        self._address_file = scratch / "address.json"
        paths = ["--config", config, "--address-file", self._address_file, "--data-dir", scratch / "data"]
        self.endpoint, http_address = (f"127.0.0.1:{port}" for port in free_ports(2))
        listen = ["--listen", self.endpoint, "--http-listen", http_address]
        self._command = [str(_MILLRACED), "serve", *map(str, paths), *listen]
        self._process = self._start()

    @property
    def name(self) -> str:
        """The name of the log, without the suffix."""
        return self._log.stem

    def wait_until_listening(self) -> None:
        """Waits until the server listens.

        Raises:
            ServerError: It did not start.
        """
        # The server creates the file then.
        self._wait_for(lambda: self._address_file.exists() or None)

    def kill_and_restart(self) -> Restart:
        """Kills the server, starts it with the same data and addresses, and waits for the channel.

        Raises:
            ServerError: It did not start again.
        """
        begun = time.monotonic()
        self.kill()
        log_bytes = self.log_bytes
        self.start_again()
        opened = self.wait_for_opening(log_bytes)
        return Restart(event_count=opened["events"], replay_seconds=opened["seconds"], seconds=time.monotonic() - begun)

    def kill(self) -> None:
        """Kills the server; `start_again` or `stop` follows."""
        self._process.kill()
        self._process.wait()
        # A killed server leaves this file, which would look as if the next one already listened.
        self._address_file.unlink()

    def start_again(self) -> None:
        """Starts the server after `kill` with the same data and addresses, and waits until it listens.

        Raises:
            ServerError: It did not start.
        """
        with uninterrupted():
            self._process = self._start()
        self.wait_until_listening()

    @property
    def log_bytes(self) -> int:
        """The size of the server's log: where its next entry begins."""
        return self._log.stat().st_size

    def wait_for_opening(self, log_bytes: int) -> dict[str, Any]:
        """Waits for an entry about the opening of the channel after a position in the log, and returns it.

        Raises:
            ServerError: There was none in time.
        """
        return self._wait_for(lambda: self._find_opened(log_bytes))

    def stop(self) -> None:
        """Stops the server gracefully.

        Raises:
            ServerError: It did not stop in time, or ended with an error.
        """
        self._process.terminate()
        try:
            code = self._process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            told = f"the {self.name} did not stop within {_STOP_SECONDS_MAX:.0f} s; {self._log} tells more"
            raise ServerError(told) from None
        # An exception from the block says more than the exit code of the server.
        if code and sys.exception() is None:
            raise ServerError(f"the {self.name} ended with code {code}; {self._log} tells why")

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log_file:
            # In its own session, so that Ctrl-C reaches only this program, which then stops the server.
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
            )

    def _wait_for(self, find: Callable[[], T | None]) -> T:
        give_up = time.monotonic() + _START_SECONDS_MAX
        while (found := find()) is None:
            if self._process.poll() is not None:
                raise ServerError(f"the {self.name} did not start; {self._log} tells why")
            if time.monotonic() > give_up:
                raise ServerError(
                    f"the {self.name} was not ready within {_START_SECONDS_MAX:.0f} s; {self._log} tells more"
                )
            time.sleep(_POLL_SECONDS)
        return found

    def _find_opened(self, log_bytes: int) -> dict[str, Any] | None:
        """Returns the log entry about the opening of the channel, after a position in the log."""
        with self._log.open("rb") as log_file:
            log_file.seek(log_bytes)
            # The last line may be incomplete.
            lines = log_file.read().rpartition(b"\n")[0].splitlines()
        openings: Iterator[dict[str, Any]] = (json.loads(line) for line in lines if any(map(line.count, _OPENINGS)))
        return next((opening for opening in openings if opening["channel"] == self._channel), None)


@contextmanager
def local_server(config_toml: str, channel: str, log: Path, *, stands_by: bool = False) -> Iterator[LocalServer]:
    """Runs a server while the block runs.

    Args:
        config_toml: The configuration, without addresses and data folder.
        channel: One of its channels.
        log: The path of its log. Its data is beside the log, and is removed at the end.
        stands_by: Whether another server owns the channel, so that this one does not open it.

    Yields:
        The server, which listens and has opened the channel, unless it stands by.

    Raises:
        ServerError: It did not start, or did not stop in time.
    """
    log.write_bytes(b"")
    # Not in the folder for temporary files, which may be in memory.
    with scratch_folder(f"{log.stem}-", log.parent) as scratch:
        config = scratch / "millrace.toml"
        config.write_text(config_toml)
        server: LocalServer | None = None
        try:
            with uninterrupted():
                server = LocalServer(config, channel, scratch, log)
            server.wait_until_listening()
            if not stands_by:
                server.wait_for_opening(0)
            yield server
        finally:
            if server is not None:
                with uninterrupted():
                    server.stop()
