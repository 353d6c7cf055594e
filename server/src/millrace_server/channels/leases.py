"""How long a transaction or claim lives without a call."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Lease:
    """A countdown that each call restarts, and that does not run while a call waits; endless where infinite.

    It runs on the event loop's monotonic clock: the time of day may jump.
    """

    def __init__(self, seconds: float, on_expired: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds = seconds
        self._on_expired = on_expired
        self.waiting_calls = 0
        self._is_cancelled = False
        self._deadline = self._loop.time() + seconds
        self._timer = None if seconds == math.inf else self._loop.call_at(self._deadline, self._look)

    @property
    def remaining_seconds(self) -> float:
        if self.waiting_calls:
            return self.seconds
        return max(self._deadline - self._loop.time(), 0.0)

    def renew(self, seconds: float | None = None) -> None:
        if seconds is not None:
            self.seconds = seconds
        self._deadline = self._loop.time() + self.seconds
        # A deadline that moved back is found when the timer looks; one that moved ahead of the timer needs a new one.
        if self._timer is not None and not self._is_cancelled and self._deadline < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._look)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        """Pauses the countdown until `resume` was called as often."""
        self.waiting_calls += 1

    def resume(self) -> None:
        self.waiting_calls -= 1
        self.renew()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._timer is not None:
            self._timer.cancel()
        # What it would call holds the lease, and a good deal more: without the ring it goes at once.
        self._on_expired = lambda: None

    def _look(self) -> None:
        if self.waiting_calls:
            self._deadline = self._loop.time() + self.seconds
        if self._deadline > self._loop.time():
            self._timer = self._loop.call_at(self._deadline, self._look)
        else:
            self._on_expired()
