"""SIGTERM and SIGINT, as events that a server awaits."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequests:
    """The first asks for a graceful stop, the second for one at once; more change nothing."""

    def __init__(self) -> None:
        self._first = asyncio.Event()
        self._second = asyncio.Event()

    @property
    def is_urgent(self) -> bool:
        """Whether there was a second request."""
        return self._second.is_set()

    def add(self) -> None:
        """Takes one request."""
        (self._second if self._first.is_set() else self._first).set()

    async def wait(self) -> None:
        """Returns at the first request."""
        await self._first.wait()

    async def wait_until_urgent(self) -> None:
        """Returns at the second request."""
        await self._second.wait()

    @contextmanager
    def from_signals(self) -> Iterator[None]:
        """Takes each SIGTERM and SIGINT of the process as a request. For the main thread's event loop."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.add)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
