"""Servers of the job's own: processes on free ports, which can be killed and come back."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_MILLRACED = Path(sys.executable).with_name("millraced")
_FREE_PORT = "127.0.0.1:0"
_START_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 15.0
_POLL_SECONDS = 0.01

T = TypeVar("T")


class ServerError(Exception):
    """Returned when the server does not start or does not stop cleanly; its message is for the user."""


@dataclass(frozen=True, kw_only=True)
class Comeback:
    """What a server that was killed brought back."""

    event_count: int
    """Events that it found in the channel's log."""
    replay_seconds: float
    """How long it read the channel's checkpoint and log."""
    seconds: float
    """From the kill until the channel could be used again, the start of the process included."""


class LocalServer:
    """A server process, made by `local_server`. One thread at a time may use it."""

    def __init__(self, config: Path, channel: str, scratch: Path, log: Path) -> None:
        self._channel = channel
        self._log = log
        self._address_file = scratch / "address.json"
        paths = ["--config", config, "--address-file", self._address_file, "--data-dir", scratch / "data"]
        self._command = [str(_MILLRACED), "serve", *map(str, paths)]
        self._process = self._start({"grpc": _FREE_PORT, "http": _FREE_PORT})
        try:
            self._addresses: dict[str, str] = self._wait_for(self._read_addresses)
            self._wait_for(lambda: self._find_opened(0))
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def name(self) -> str:
        """What it is called: as its log, without the suffix."""
        return self._log.stem

    @property
    def endpoint(self) -> str:
        """Where it listens for gRPC, `host:port`; the same after it came back."""
        return self._addresses["grpc"]

    def kill_and_start(self) -> Comeback:
        """Ends the server as a crash would, starts it on the same data and addresses, and waits for the channel.

        Raises:
            ServerError: It did not come back.
        """
        begun = time.monotonic()
        self._process.kill()
        self._process.wait()
        # A killed server leaves this file, and it would look as if the next one listened already.
        self._address_file.unlink()
        log_bytes = self._log.stat().st_size
        self._process = self._start(self._addresses)
        self._wait_for(self._read_addresses)
        opened = self._wait_for(lambda: self._find_opened(log_bytes))
        return Comeback(
            event_count=opened["events"], replay_seconds=opened["seconds"], seconds=time.monotonic() - begun
        )

    def stop(self) -> None:
        """Stops it gracefully.

        Raises:
            ServerError: It did not stop by itself, or ended with an error.
        """
        self._process.terminate()
        try:
            code = self._process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            told = f"the {self.name} did not stop within {_STOP_SECONDS_MAX:.0f} s; {self._log} tells more"
            raise ServerError(told) from None
        # An error that ends the block says more than that the server, too, ended with one.
        if code and sys.exception() is None:
            raise ServerError(f"the {self.name} ended with code {code}; {self._log} tells why")

    def _start(self, addresses: dict[str, str]) -> "subprocess.Popen[bytes]":
        listen = ["--listen", addresses["grpc"], "--http-listen", addresses["http"]]
        with self._log.open("ab") as log_file:
            # In a session of its own, so that Ctrl-C reaches this program alone, which then stops the server.
            return subprocess.Popen(
                [*self._command, *listen],
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

    def _read_addresses(self) -> dict[str, str] | None:
        try:
            addresses: dict[str, str] = json.loads(self._address_file.read_text())
        except FileNotFoundError:
            return None
        return addresses

    def _find_opened(self, log_bytes: int) -> dict[str, Any] | None:
        """What the server logged about the channel's opening, behind what its log held before."""
        with self._log.open("rb") as log_file:
            log_file.seek(log_bytes)
            # The last line may not be whole yet.
            lines = log_file.read().rpartition(b"\n")[0].splitlines()
        openings: Iterator[dict[str, Any]] = (json.loads(line) for line in lines if b'"channel opened"' in line)
        return next((opening for opening in openings if opening["channel"] == self._channel), None)


@contextmanager
def local_server(config_toml: str, channel: str, log: Path) -> Iterator[LocalServer]:
    """Runs a server for as long as the block runs.

    Args:
        config_toml: Its configuration, but where it listens and keeps its data.
        channel: A file channel in it.
        log: Where its log is written. Its data is kept beside it, and removed in the end.

    Yields:
        The server, once it listens and the channel is open.

    Raises:
        ServerError: It did not start, or did not stop by itself.
    """
    log.write_bytes(b"")
    # Not in the folder for temporary files, which may be in memory: there, no sync would reach a disk.
    with tempfile.TemporaryDirectory(prefix=f"{log.stem}-", dir=log.parent) as scratch:
        config = Path(scratch) / "millrace.toml"
        config.write_text(config_toml)
        server = LocalServer(config, channel, Path(scratch), log)
        try:
            yield server
        finally:
            server.stop()
