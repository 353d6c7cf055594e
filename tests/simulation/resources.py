"""A virtual clock for millions of callbacks, and what they compete for: cores, disks and threads."""

import heapq
from collections import deque
from collections.abc import Callable

Then = Callable[[], None]


class Clock:
    """Runs callbacks in the order of their times; equal times run in the order in which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, Then]] = []
        self._count = 0

    def after(self, seconds: float, then: Then) -> None:
        """Runs a callback this many seconds from now."""
        self._count += 1
        heapq.heappush(self._timers, (self.now + seconds, self._count, then))

    def run(self, until_seconds: float) -> None:
        """Runs every callback that is due by then."""
        while self._timers and self._timers[0][0] <= until_seconds:
            self.now, _, then = heapq.heappop(self._timers)
            then()
        self.now = until_seconds


class Resource:
    """Equal units, such as the cores of a machine, each of which does one job at a time; first come, first served."""

    def __init__(self, clock: Clock, units: int = 1) -> None:
        self.clock = clock
        self._free = units
        self._waiting: deque[tuple[float, Then]] = deque()

    def use(self, seconds: float, then: Then) -> None:
        """Runs a callback once a unit has worked for so long."""
        if self._free:
            self._free -= 1
            self._work(seconds, then)
        else:
            self._waiting.append((seconds, then))

    def _work(self, seconds: float, then: Then) -> None:
        def done() -> None:
            if self._waiting:
                self._work(*self._waiting.popleft())
            else:
                self._free += 1
            then()

        self.clock.after(seconds, done)


class Process:
    """Does one job at a time, on any core of its machine, since the threads of Python take turns."""

    def __init__(self, cores: Resource) -> None:
        self._cores = cores
        self._jobs: deque[tuple[float, float, Then]] = deque()
        self._is_busy = False

    def run(self, seconds: float, then: Then, stall_seconds: float = 0.0) -> None:
        """Runs a callback after this much processor time, and so long in which it waits without a core."""
        self._jobs.append((seconds, stall_seconds, then))
        if not self._is_busy:
            self._begin()

    def end(self) -> None:
        """Forgets what has not begun."""
        self._jobs.clear()

    def _begin(self) -> None:
        self._is_busy = True
        seconds, stall_seconds, then = self._jobs.popleft()

        def done() -> None:
            then()
            if self._jobs:
                self._begin()
            else:
                self._is_busy = False

        self._cores.use(seconds, lambda: self._cores.clock.after(stall_seconds, done))
