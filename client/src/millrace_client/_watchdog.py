"""Deadlines for single responses of a stream, which gRPC's synchronous API does not have."""

import math
import threading
import time
from collections.abc import Callable

TIMEOUT_SECONDS = 20.0
"""How long a response may take by default."""

_IDLE_SECONDS = 60.0


class Watch:
    """A timer for one wait at a time. `disarm` and `close` take no lock, so that a finalizer may call them."""

    __slots__ = ("_alarm", "_watchdog", "deadline", "has_fired", "is_closed")

    def __init__(self, watchdog: "Watchdog", alarm: Callable[[], object]) -> None:
        self._watchdog = watchdog
        self._alarm = alarm
        self.deadline = math.inf
        self.has_fired = False
        self.is_closed = False

    def arm(self, seconds: float) -> None:
        """Calls the alarm after this long, unless it is disarmed or armed again before."""
        self.deadline = time.monotonic() + seconds
        self._watchdog.wake_for(self.deadline)

    def disarm(self) -> None:
        self.deadline = math.inf

    def close(self) -> None:
        self.deadline = math.inf
        self.is_closed = True

    def fire(self) -> None:
        self.deadline = math.inf
        self.has_fired = True
        self._alarm()


class Watchdog:
    """Calls alarms from its own thread, which lives while there are timers. Threads may share it."""

    def __init__(self) -> None:
        # Guards the list and the thread. Not held while alarms run.
        self._changed = threading.Condition(threading.Lock())
        self._watches: list[Watch] = []
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    def watch(self, alarm: Callable[[], object]) -> Watch:
        """Returns a new timer that is not armed. The alarm runs on the watchdog's thread and must not block."""
        watch = Watch(self, alarm)
        with self._changed:
            self._watches = [*self._open_watches(), watch]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="millrace-watchdog", daemon=True)
                self._thread.start()
        return watch

    def wake_for(self, deadline: float) -> None:
        """Wakes the thread if it would miss this deadline."""
        if deadline < self._wakes_at:
            with self._changed:
                self._changed.notify()

    def _run(self) -> None:
        while self._sleep_until_due():
            for watch in self._open_watches():
                if watch.deadline <= time.monotonic():
                    watch.fire()

    def _sleep_until_due(self) -> bool:
        """Waits for the next deadline. Returns False if no timer is left, and then the thread ends."""
        with self._changed:
            while self._watches:
                # A thread that arms a timer from here on waits for the lock, so that no deadline is missed.
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
