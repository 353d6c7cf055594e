"""The memory of a producer's buffer, and the senders that wait for a part of it."""

import asyncio
import threading
from collections.abc import Callable

from millrace_client.errors import MillraceError, ProducerClosedError
from millrace_client.producing.config import Overflow, ProducerConfig
from millrace_client.producing.metrics import ProducerCounters


class BufferMemory:
    """Accounts for the bytes of all events that are not settled.

    Attributes:
        lock: Guards everything here, and everything in `Accumulator`.
    """

    def __init__(self, config: ProducerConfig, counters: ProducerCounters, clock: Callable[[], float]) -> None:
        self.lock = threading.Lock()
        self.bytes_max = config.buffer_bytes_max
        self.held_bytes = 0
        """Bytes that the events that are not settled take."""
        self.refusal: MillraceError | None = None
        """Why no more events are accepted; None while they are."""
        self._config = config
        self._counters = counters
        self._clock = clock
        self._has_space = threading.Condition(self.lock)
        self._space_waiters: list[asyncio.Future[None]] = []

    def wait_for_space(self, held: int) -> bool:
        """Waits for space if the overflow policy is to block; returns False once the time for waiting has passed."""
        if self._config.overflow is not Overflow.BLOCK or not self.bytes_max - self.held_bytes < held <= self.bytes_max:
            return True
        with self.lock:
            return self._wait_for_space(held)

    def _wait_for_space(self, held: int) -> bool:
        """Waits as long as a send may; returns whether there is space, or no more events are accepted."""
        began = self._clock()
        has_ended = self._has_space.wait_for(
            lambda: self.refusal is not None or self.held_bytes + held <= self.bytes_max,
            self._config.max_block_seconds,
        )
        self._counters.blocked_seconds += self._clock() - began
        return has_ended

    def space_freed(self) -> "asyncio.Future[None]":
        """Returns a future that is done when memory was released, for a task of the engine's event loop."""
        waiter = asyncio.get_running_loop().create_future()
        self._space_waiters.append(waiter)
        return waiter

    def release(self, held_bytes: int) -> None:
        with self.lock:
            self.held_bytes -= held_bytes
            self._notify_space()

    def _notify_space(self) -> None:
        self._has_space.notify_all()
        for waiter in self._space_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._space_waiters.clear()

    def refuse_behind(self, error: MillraceError) -> bool:
        """Accepts no more events after one has failed, if the producer must leave no gap; returns whether it must."""
        if self._config.is_resumable and self.refusal is None:
            self.refuse(stopped_error(error))
        return self._config.is_resumable

    def refuse(self, refusal: MillraceError) -> None:
        """Accepts no more events; wakes the senders that wait for space."""
        with self.lock:
            self.refusal = refusal
            self._notify_space()


def stopped_error(error: MillraceError) -> ProducerClosedError:
    """Returns the error of events after one that failed."""
    return ProducerClosedError(f"the producer has stopped at an event before this one: {error.message}")
