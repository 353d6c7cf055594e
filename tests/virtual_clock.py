"""An event loop with a virtual clock, so that tests do not wait in real time.

While any callback is ready the clock stands still; when none is, it jumps to the next timer. So tests of leases, waits
and keep-alives are quick and deterministic.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from selectors import SelectorKey
from typing import Any, Generic, TypeVar

ResponseT = TypeVar("ResponseT")

# A loop that runs more callbacks without a pause counts as broken.
_TURNS_MAX = 100_000


class StuckError(Exception):
    """Raised when everything waits, and for no timer: otherwise the test would hang."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own, which begins at 0."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        return self._now

    def _jump(self, seconds: float) -> None:
        self._now += seconds

    async def settle(self) -> None:
        """Runs all ready callbacks and those that they make ready; the clock does not advance."""
        for _ in range(_TURNS_MAX):
            await asyncio.sleep(0)
            if not self._ready:
                return
        raise StuckError(f"there was still something to run after {_TURNS_MAX} turns")


class _JumpingSelector(selectors.PollSelector):
    """Never waits: advances the clock by the time that it would have waited."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is None:
            raise StuckError("everything waits, and for no timer")
        if not events and timeout:
            self._jump(timeout)
        return events


def _loop() -> VirtualClockLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop), loop
    return loop


def now() -> float:
    """Seconds on the virtual clock."""
    return _loop().time()


async def settle() -> None:
    """Runs all ready callbacks and those that they make ready; the clock does not advance."""
    await _loop().settle()


async def at_once(function: Callable[..., ResponseT], *arguments: Any, **options: Any) -> ResponseT:
    """Replaces `asyncio.to_thread`; calls the function on the loop's thread."""
    return function(*arguments, **options)


class Call(Generic[ResponseT]):
    """A call that runs concurrently with the test."""

    def __init__(self, coroutine: Coroutine[Any, Any, ResponseT]) -> None:
        self._task = asyncio.get_running_loop().create_task(coroutine)

    @property
    def is_done(self) -> bool:
        """Whether it has responded, failed, or was cancelled."""
        return self._task.done()

    @property
    def is_cancelled(self) -> bool:
        """Whether it ended because it was cancelled."""
        return self._task.cancelled()

    def cancel(self) -> None:
        """Cancels the call in the loop's next turn."""
        self._task.cancel()

    async def result(self) -> ResponseT:
        """Waits for its result, and returns it; raises its error."""
        return await self._task


async def started(coroutine: Coroutine[Any, Any, ResponseT]) -> Call[ResponseT]:
    """Starts a call and runs it up to its first wait."""
    call = Call(coroutine)
    await settle()
    return call


class WallClock:
    """A clock in nanoseconds, like `time.time_ns`, that stands until it is set."""

    def __init__(self, micros: int = 0) -> None:
        self.micros = micros

    def __call__(self) -> int:
        return self.micros * 1000
