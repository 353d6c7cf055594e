"""Runs the engine on its own thread, for programs without an event loop."""

import asyncio
import atexit
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from millrace_client._forks import FORKS
from millrace_client.errors import MillraceError, ProducerClosedError
from millrace_client.producing.accumulator import Accumulator
from millrace_client.producing.callbacks import CallbackThreads
from millrace_client.producing.engine import Engine, EngineSettings, metrics_of
from millrace_client.producing.metrics import ProducerCounters, ProducerMetrics
from millrace_client.producing.targets import call_in_loop

EXIT_SECONDS = 10.0
"""How long a program that exits without closing its producer waits for its events."""

_JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ProducerCloseReport:
    """What was left when the time for closing had run out."""

    events_left: int
    """Events that were not settled in time; their futures fail."""
    callbacks_left: int
    """Callbacks that had not ended; they still run."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left."""
        return not (self.events_left or self.callbacks_left)


class ThreadedEngine:
    """Runs an engine from `open` to `close`. All methods are for any thread."""

    def __init__(self, settings: EngineSettings, accumulator: Accumulator, counters: ProducerCounters) -> None:
        self._settings = settings
        self._accumulator = accumulator
        self._counters = counters
        self.callbacks = CallbackThreads(counters)
        # Guards opening and closing.
        self._changing = threading.Lock()
        self._is_closing = False
        self._running: _Running | None = None
        self._error: BaseException | None = None
        # The engine has started, or failed to.
        self._started = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a thread may be inside gRPC."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def engine(self) -> Engine | None:
        """The engine; None before it was opened."""
        return None if self._running is None else self._running.engine

    def open(self) -> None:
        """Starts the engine, if it is not running yet."""
        with self._changing:
            if self._is_closing:
                raise _closed()
            if self._thread is None:
                FORKS.check_usable()
                FORKS.watch(self)
                self._started.clear()
                atexit.register(self.close, EXIT_SECONDS)
                self._thread = threading.Thread(target=self._run, name="millrace-producer", daemon=True)
                self._thread.start()
            # If Ctrl-C ends this wait, the next call continues it.
            self._started.wait()
            if self._error is not None:
                self._thread = None
                error, self._error = self._error, None
                raise error

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
            if self.engine is not None:
                self.engine.join(_JOIN_SECONDS)
        finally:
            self.callbacks.end()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            engine = Engine(self._settings, self._accumulator, self._counters, self.callbacks)
            self._accumulator.wake = lambda: call_in_loop(loop, engine.run_once)
            engine.start()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that opens
            self._error = error
            return
        else:
            self._running = _Running(loop, engine)
        finally:
            self._started.set()
        await engine.drained.wait()
        engine.end()

    def close(self, timeout_seconds: float) -> ProducerCloseReport:
        """Settles all events, runs the callbacks and ends the threads; returns after the timeout in any case."""
        deadline = time.monotonic() + timeout_seconds
        with self._changing:
            self._is_closing = True
            self._accumulator.refuse(_closed())
            if self._thread is not None:
                # An interrupted `open` may have returned before the thread was ready.
                self._started.wait(_seconds_to(deadline))
            running = self._running
        if running is None:
            return ProducerCloseReport(0, 0)
        atexit.unregister(self.close)
        pages = self._accumulator.close_pages()
        call_in_loop(running.loop, running.engine.close_by, deadline)
        events_left = self._accumulator.wait_settled(pages, _seconds_to(deadline))
        if self._thread is not None:
            self._thread.join(_seconds_to(deadline))
        self.callbacks.join(deadline)
        # Late events may have failed just before the look above: the engine has the same deadline.
        return ProducerCloseReport(max(events_left, running.engine.abandoned_count), self.callbacks.left_count)

    def metrics(self) -> ProducerMetrics:
        return metrics_of(self._accumulator, self._counters, self.engine, self.callbacks, time.monotonic())

    def close_in_background(self) -> None:
        """Closes without waiting. For a finalizer."""
        if self._running is not None and self.is_busy:
            threading.Thread(target=self.close, args=(EXIT_SECONDS,), name="millrace-producer-end").start()


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    engine: Engine


def _seconds_to(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _closed() -> MillraceError:
    return ProducerClosedError("the producer is closed")
