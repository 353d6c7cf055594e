"""Where callbacks run: apart from all input and output, those of successes apart from those of failures."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from millrace_client.producing.metrics import Tally

_log = logging.getLogger("millrace_client.producer")

Job: TypeAlias = Callable[[], object]


class CallbackRunner(Protocol):
    """Runs what users want to be called."""

    def submit(self, job: Job, *, is_success: bool, is_counted: bool = True) -> None:
        """Has a job run, behind those before it of its kind. May be called by any thread; waits for nothing."""

    @property
    def waiting_count(self) -> int:
        """Jobs that count and have not ended."""


class CallbackThreads:
    """Two threads, each begun with its first job. A job that raises is logged and counted, and the next one runs."""

    def __init__(self, tally: Tally) -> None:
        self._threads = {is_success: _JobThread(is_success=is_success, tally=tally) for is_success in (True, False)}

    def submit(self, job: Job, *, is_success: bool, is_counted: bool = True) -> None:
        self._threads[is_success].submit(job, is_counted=is_counted)

    @property
    def waiting_count(self) -> int:
        return sum(thread.waiting_count for thread in self._threads.values())

    @property
    def left_count(self) -> int:
        """The same, without the job that asks."""
        return self.waiting_count - any(thread.is_current for thread in self._threads.values())

    def end(self) -> None:
        """Ends the threads once the jobs that are there have run."""
        for thread in self._threads.values():
            thread.end()

    def join(self, deadline: float) -> None:
        """Waits for their end until a time of the monotonic clock, but not for the thread that calls this."""
        for thread in self._threads.values():
            thread.join(deadline)


class _JobThread:
    def __init__(self, *, is_success: bool, tally: Tally) -> None:
        self._name = f"millrace-producer-{'successes' if is_success else 'failures'}"
        self._tally = tally
        # Guards the rest. A thread ends only with no job left, under the lock: so no job is left behind.
        self._changed = threading.Condition(threading.Lock())
        self._jobs: deque[tuple[Job, bool]] = deque()
        self._thread: threading.Thread | None = None
        self.waiting_count = 0
        """Jobs that count and have not ended."""
        self._is_ending = False

    @property
    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def submit(self, job: Job, *, is_counted: bool) -> None:
        with self._changed:
            self._jobs.append((job, is_counted))
            self.waiting_count += is_counted
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify()

    def join(self, deadline: float) -> None:
        with self._changed:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _run(self) -> None:
        while (next_job := self._next()) is not None:
            job, is_counted = next_job
            run_guarded(job, self._tally)
            # Nothing of it is to live on while the thread waits for the next one.
            del job, next_job
            with self._changed:
                self.waiting_count -= is_counted

    def _next(self) -> tuple[Job, bool] | None:
        with self._changed:
            while not self._jobs:
                if self._is_ending:
                    self._thread = None
                    return None
                self._changed.wait()
            return self._jobs.popleft()


def run_guarded(job: Job, tally: Tally) -> None:
    """Runs a job; what it raises is logged and counted, even where it would end a program: it is not the program's."""
    try:
        job()
    except BaseException:  # noqa: BLE001 - whatever it is, it is the callback's own
        tally.callback_errors += 1
        _log.exception("a producer's callback raised")
