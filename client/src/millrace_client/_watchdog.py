"""Deadlines for single answers of a stream, which gRPC does not have in its synchronous face."""

import math
import threading
import time
from collections.abc import Callable

_IDLE_SECONDS = 60.0


class Watch:
    """One wait at a time. Disarming and closing take no lock, so that they may run in a finalizer."""

    __slots__ = ("_alarm", "_watchdog", "deadline", "has_fired", "is_closed")

    def __init__(self, watchdog: "Watchdog", alarm: Callable[[], object]) -> None:
        self._watchdog = watchdog
        self._alarm = alarm
        self.deadline = math.inf
        self.has_fired = False
        self.is_closed = False

    def arm(self, seconds: float) -> None:
        """Lets the alarm go off after so long, unless it is disarmed or armed anew before."""
        self.deadline = time.monotonic() + seconds
        self._watchdog.wake_for(self.deadline)

    def disarm(self) -> None:
        """Ends the wait."""
        self.deadline = math.inf

    def close(self) -> None:
        """Ends the watch for good."""
        self.deadline = math.inf
        self.is_closed = True

    def fire(self) -> None:
        """Raises the alarm."""
        self.deadline = math.inf
        self.has_fired = True
        self._alarm()


class Watchdog:
    """Raises alarms from a thread of its own, which lives while there is anything to watch. Threads may share it."""

    def __init__(self) -> None:
        # Guards the list and the thread. Alarms go off without it.
        self._changed = threading.Condition(threading.Lock())
        self._watches: list[Watch] = []
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    def watch(self, alarm: Callable[[], object]) -> Watch:
        """A new watch, not armed yet. The alarm runs on the watchdog's thread and must not block."""
        watch = Watch(self, alarm)
        with self._changed:
            self._watches = [*self._open_watches(), watch]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="millrace-watchdog", daemon=True)
                self._thread.start()
        return watch

    def wake_for(self, deadline: float) -> None:
        """Makes sure that the thread looks at this deadline in time."""
        if deadline < self._wakes_at:
            with self._changed:
                self._changed.notify()

    def _run(self) -> None:
        while self._sleep_until_due():
            for watch in self._open_watches():
                if watch.deadline <= time.monotonic():
                    watch.fire()

    def _sleep_until_due(self) -> bool:
        """Returns when a deadline has passed; with False, and the thread signed off, where nothing is left to watch."""
        with self._changed:
            while self._watches:
                # Whoever arms from here on waits for the lock, so that no deadline is missed.
                self._wakes_at = math.inf
                now = time.monotonic()
                next_deadline = min((watch.deadline for watch in self._watches), default=math.inf)
                if next_deadline <= now:
                    return True
                self._wakes_at = min(next_deadline, now + _IDLE_SECONDS)
                self._changed.wait(self._wakes_at - now)
                self._watches = self._open_watches()
            self._thread = None
            return False

    def _open_watches(self) -> list[Watch]:
        return [watch for watch in self._watches if not watch.is_closed]
