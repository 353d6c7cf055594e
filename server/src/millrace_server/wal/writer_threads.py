"""The threads that the logs of one disk share."""

import threading
from collections import deque
from collections.abc import Callable

THREADS_MAX = 32
"""Logs that may write at the same time; a disk that does not respond occupies one for each log that waits for it."""

IDLE_SECONDS = 5.0
"""How long a thread without work waits for some before it ends."""

Work = Callable[[], None]


class WriterThreads:
    """Runs the writers of logs, each on a thread that it has until it returns.

    Threads start when they are needed and end when they are idle. So one whose disk does not respond delays no other,
    up to `threads_max` of them; then the others wait for a thread. All methods may be called on any thread.
    """

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads_max = threads_max
        self._thread_count = 0
        self._lingering_count = 0
        # Guards all of it. Never held while work runs, nor while another lock is taken.
        self._lock = threading.Lock()
        self._urgent: deque[Work] = deque()
        self._deferred: dict[Work, None] = {}  # Each once, in order.
        # One held lock for each idle thread, which waits for its release. The last one to become idle, whose caches
        # are warm, is the first to be woken.
        self._idle: list[threading.Lock] = []

    def run(self, work: Work, *, is_urgent: bool = True) -> None:
        """Runs work on a thread: at once, or once one is free and nothing urgent waits."""
        with self._lock:
            if is_urgent:
                self._urgent.append(work)
            else:
                self._deferred[work] = None
            if self._idle:
                self._idle.pop().release()
                return
            if self._thread_count == self._threads_max:
                return
            self._thread_count += 1
        try:
            # Daemon threads: an interpreter that exits without closing its logs must not hang on them; replay handles
            # the rest.
            threading.Thread(target=self._work, name="log-writer", daemon=True).start()
        except RuntimeError:
            # The system has none left. The work waits for one of the others, or for the next call.
            with self._lock:
                self._thread_count -= 1

    def may_linger(self) -> bool:
        """Whether work that is done may keep its thread a while for what comes next; then call `end_lingering`."""
        with self._lock:
            is_crowded = self._urgent and self._thread_count == self._threads_max and not self._idle
            # Some threads are left to those that have something to do.
            may_linger = not is_crowded and self._lingering_count < self._threads_max // 2
            self._lingering_count += may_linger
        return may_linger

    def end_lingering(self) -> None:
        """Ends what `may_linger` has allowed."""
        with self._lock:
            self._lingering_count -= 1

    def _work(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Work | None:
        """Waits for the next work; returns None, and the thread must end, where there is none for a while."""
        while True:
            with self._lock:
                if self._urgent:
                    return self._urgent.popleft()
                if self._deferred:
                    work = next(iter(self._deferred))
                    del self._deferred[work]
                    return work
                woken = threading.Lock()
                woken.acquire()
                self._idle.append(woken)
            if woken.acquire(timeout=IDLE_SECONDS):
                continue
            with self._lock:
                # Unless it was woken between the timeout and the lock.
                if woken in self._idle:
                    self._idle.remove(woken)
                    self._thread_count -= 1
                    return None
