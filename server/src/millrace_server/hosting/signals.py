"""SIGTERM, SIGINT and SIGHUP as requests that the server awaits."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import structlog

_log = structlog.stdlib.get_logger(__name__)


class StopRequests:
    """The first request asks for a graceful stop, the second for an immediate one; more change nothing."""

    def __init__(self) -> None:
        self._first = asyncio.Event()
        self._second = asyncio.Event()

    @property
    def is_urgent(self) -> bool:
        return self._second.is_set()

    def add(self) -> None:
        (self._second if self._first.is_set() else self._first).set()

    async def wait(self) -> None:
        await self._first.wait()

    async def wait_until_urgent(self) -> None:
        await self._second.wait()

    def from_signals(self) -> AbstractContextManager[None]:
        """Adds a request for each SIGTERM and SIGINT. For the main thread's event loop."""
        return _handled(self.add, signal.SIGTERM, signal.SIGINT)


class ReloadRequests:
    """Requests to reload the configuration; those that arrive during a reload count as one."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._is_closed = False

    def add(self) -> None:
        if self._is_closed:
            _log.info("SIGHUP is ignored, since the server is stopping")
        self._requested.set()

    async def wait(self) -> None:
        """Returns once there was a request since the last return."""
        await self._requested.wait()
        self._requested.clear()

    def close(self) -> None:
        self._is_closed = True

    def from_signals(self) -> AbstractContextManager[None]:
        """Adds a request for each SIGHUP. For the main thread's event loop."""
        return _handled(self.add, signal.SIGHUP)


@contextmanager
def _handled(handler: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
