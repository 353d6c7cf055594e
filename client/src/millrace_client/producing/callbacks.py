"""Runs callbacks apart from all I/O, those of successes apart from those of failures."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from millrace_client.producing.metrics import ProducerCounters

_log = logging.getLogger("millrace_client.producer")

Job: TypeAlias = Callable[[], object]


class CallbackRunner(Protocol):
    """Runs callbacks and hooks."""

    def submit(self, job: Job, *, is_success: bool, is_counted: bool = True) -> None:
        """Runs a job soon, after the earlier jobs of its kind. For any thread; does not wait."""

    @property
    def waiting_count(self) -> int:
        """Counted jobs that have not ended."""


class CallbackThreads:
    """Two threads, each started with its first job. A job that raises is logged and counted, and the next one runs."""

    def __init__(self, counters: ProducerCounters) -> None:
        self._threads = {
            is_success: _JobThread(is_success=is_success, counters=counters) for is_success in (True, False)
        }

    def submit(self, job: Job, *, is_success: bool, is_counted: bool = True) -> None:
        self._threads[is_success].submit(job, is_counted=is_counted)

    @property
    def waiting_count(self) -> int:
        return sum(thread.waiting_count for thread in self._threads.values())

    @property
    def left_count(self) -> int:
        """The same, without the job that calls this."""
        return self.waiting_count - any(thread.is_current for thread in self._threads.values())

    def end(self) -> None:
        """Ends the threads once the submitted jobs have run."""
        for thread in self._threads.values():
            thread.end()

    def join(self, deadline: float) -> None:
        """Waits for the end of the threads until a time of the monotonic clock, but not for the calling thread."""
        for thread in self._threads.values():
            thread.join(deadline)


class _JobThread:
    def __init__(self, *, is_success: bool, counters: ProducerCounters) -> None:
        self._name = f"millrace-producer-{'successes' if is_success else 'failures'}"
        self._counters = counters
        # Guards the rest. A thread ends under the lock and only with no job left, so that no job is lost.
        self._changed = threading.Condition(threading.Lock())
        self._jobs: deque[tuple[Job, bool]] = deque()
        self._thread: threading.Thread | None = None
        self._is_over = False
        """Whether the thread takes no more jobs; it is about to end."""
        self.waiting_count = 0
        """Counted jobs that have not ended."""
        self._is_ending = False

    @property
    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def submit(self, job: Job, *, is_counted: bool) -> None:
        with self._changed:
            self._jobs.append((job, is_counted))
            self.waiting_count += is_counted
            if self._thread is None or self._is_over:
                self._is_over = False
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
            run_guarded(job, self._counters)
            # Drops all references to the job while the thread waits for the next one.
            del job, next_job
            with self._changed:
                self.waiting_count -= is_counted

    def _next(self) -> tuple[Job, bool] | None:
        with self._changed:
            while not self._jobs:
                if self._is_ending:
                    self._is_over = True
                    return None
                self._changed.wait()
            return self._jobs.popleft()


def run_guarded(job: Job, counters: ProducerCounters) -> None:
    """Runs a job; logs and counts whatever it raises, also exceptions that would end a program."""
    try:
        job()
    except BaseException:  # noqa: BLE001 - whatever it is, it comes from the callback
        counters.callback_errors += 1
        _log.exception("a producer's callback raised")
