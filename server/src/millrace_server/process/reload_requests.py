"""SIGHUP, as requests to read the configuration anew."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

_log = structlog.stdlib.get_logger(__name__)


class ReloadRequests:
    """Any number of requests that come while nobody waits are one: the newest file counts."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._is_closed = False

    def add(self) -> None:
        """Takes one request."""
        if self._is_closed:
            _log.info("SIGHUP is ignored, for the server stops")
        self._asked.set()

    async def wait(self) -> None:
        """Returns as soon as there was a request since the last return."""
        await self._asked.wait()
        self._asked.clear()

    def close(self) -> None:
        """Nobody is going to wait any more."""
        self._is_closed = True

    @contextmanager
    def from_signals(self) -> Iterator[None]:
        """Takes each SIGHUP of the process as a request. For the main thread's event loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.add)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
