"""Chooses which of several servers gets the events."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from millrace_server.files import make_directories, write_atomically

_log = structlog.stdlib.get_logger(__name__)

FILE_NAME = "endpoint"
"""The file with the current server, in the sink's directory."""

_FILE_BYTES_MAX = 1_024


class Endpoints:
    """The servers of a sink, one of which is current.

    A server may have stored events that it never answered for, and only the same server drops them when they are sent
    again. So the sink stays with its server as long as it can, also across restarts.

    Args:
        endpoints: All servers, in order.
        failover_seconds: How long a server must have failed before the sink moves to the next one.
        directory: Where the current server is remembered.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, endpoints: Sequence[str], failover_seconds: float, directory: Path, clock: Callable[[], float]
    ) -> None:
        self._endpoints = endpoints
        self._failover_seconds = failover_seconds
        self._path = directory / FILE_NAME
        self._clock = clock
        self._current: str | None = None
        self._failing_since: float | None = None

    async def current(self) -> str:
        """Returns the current server; moves to the next one if it has failed for too long."""
        if self._current is None:
            remembered = await asyncio.to_thread(self._read) if len(self._endpoints) > 1 else ""
            self._current = remembered if remembered in self._endpoints else self._endpoints[0]
        if self._must_move():
            await self._move(self._endpoints[(self._endpoints.index(self._current) + 1) % len(self._endpoints)])
        return self._current

    def note_success(self) -> None:
        """Notes that the current server has stored events."""
        self._failing_since = None

    def note_failure(self, silent_seconds: float = 0.0) -> None:
        """Notes that the current server has failed, and has not answered for so long."""
        if self._failing_since is None:
            self._failing_since = self._clock() - silent_seconds

    def _must_move(self) -> bool:
        if len(self._endpoints) == 1 or self._failing_since is None:
            return False
        return self._clock() - self._failing_since >= self._failover_seconds

    async def _move(self, target: str) -> None:
        _log.warning("goes on with the next server", former=self._current, endpoint=target)
        # Written before anything is sent there.
        await asyncio.to_thread(self._write, target)
        self._current = target
        self._failing_since = None

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(_FILE_BYTES_MAX).decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def _write(self, endpoint: str) -> None:
        make_directories(self._path.parent)
        write_atomically(self._path, f"{endpoint}\n".encode())
