"""The engine on a thread of its own, for programs with plain threads."""

import asyncio
import atexit
import queue
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from millrace_client._forks import FORKS
from millrace_client.errors import MillraceError, ProducerClosedError
from millrace_client.producing.callbacks import CallbackThreads
from millrace_client.producing.engine import Engine, EngineSettings
from millrace_client.producing.intake import Intake
from millrace_client.producing.looking import metrics_of
from millrace_client.producing.loops import call_in
from millrace_client.producing.metrics import ProducerMetrics, Tally

EXIT_SECONDS = 10.0
"""How long a program that ends without closing its producer waits for what was sent."""

_JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ProducerCloseReport:
    """What was left when the time for closing had run out; nothing where it sufficed."""

    events_left: int
    """Events that were not settled in time. Their futures fail, or have failed."""
    callbacks_left: int
    """Callbacks that had not ended. They still run."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left."""
        return not (self.events_left or self.callbacks_left)


class ThreadedEngine:
    """Runs an engine from `open` to `close`. All methods may be called by any thread."""

    def __init__(self, settings: EngineSettings, intake: Intake, tally: Tally) -> None:
        self._settings = settings
        self._intake = intake
        self._tally = tally
        self.callbacks = CallbackThreads(tally)
        # Guards beginning and ending.
        self._changing = threading.Lock()
        self._is_closing = False
        self._running: _Running | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a thread is inside gRPC."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def engine(self) -> Engine | None:
        """The engine; None before the beginning."""
        return None if self._running is None else self._running.engine

    def open(self) -> None:
        """Begins, unless it has begun before.

        Raises:
            ClientForkedError: gRPC does not work in this process.
            ProducerClosedError: It is closed already.
        """
        with self._changing:
            if self._is_closing:
                raise _closed()
            if self._thread is not None:
                return
            FORKS.refuse_if_spoiled()
            FORKS.watch(self)
            beginning: queue.SimpleQueue[_Running | BaseException] = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._run, args=(beginning,), name="millrace-producer", daemon=True)
            self._thread.start()
            began = beginning.get()
            if isinstance(began, BaseException):
                self._thread = None
                raise began
            self._running = began
            atexit.register(self.close, EXIT_SECONDS)

    def _run(self, beginning: "queue.SimpleQueue[_Running | BaseException]") -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(beginning))
            if self.engine is not None:
                self.engine.join(_JOIN_SECONDS)
        finally:
            self.callbacks.end()

    async def _serve(self, beginning: "queue.SimpleQueue[_Running | BaseException]") -> None:
        loop = asyncio.get_running_loop()
        try:
            engine = Engine(self._settings, self._intake, self._tally, self.callbacks)
            self._intake.wake = lambda: call_in(loop, engine.look)
            engine.start()
        except BaseException as error:  # noqa: BLE001 - raised where the thread was begun
            beginning.put(error)
            return
        beginning.put(_Running(loop, engine))
        await engine.drained.wait()
        engine.end()

    def close(self, timeout_seconds: float) -> ProducerCloseReport:
        """Settles all that was sent, runs the callbacks, ends the threads; returns after that time all the same."""
        deadline = time.monotonic() + timeout_seconds
        with self._changing:
            self._is_closing = True
            self._intake.refuse(_closed())
            running = self._running
        if running is None:
            return ProducerCloseReport(0, 0)
        atexit.unregister(self.close)
        pages = self._intake.close_pages()
        call_in(running.loop, running.engine.give_up_at, deadline)
        events_left = self._intake.wait_settled(pages, _seconds_to(deadline))
        if self._thread is not None:
            self._thread.join(_seconds_to(deadline))
        self.callbacks.join(deadline)
        # Those that were late may have failed just before this looked: the engine has the same deadline.
        return ProducerCloseReport(max(events_left, running.engine.given_up_count), self.callbacks.left_count)

    def metrics(self) -> ProducerMetrics:
        """How things stand."""
        return metrics_of(self._intake, self._tally, self.engine, self.callbacks)

    def abandon(self) -> None:
        """Closes without waiting, from a finalizer."""
        if self._running is not None and self.is_busy:
            threading.Thread(target=self.close, args=(EXIT_SECONDS,), name="millrace-producer-end").start()


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    engine: Engine


def _seconds_to(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _closed() -> MillraceError:
    return ProducerClosedError("the producer is closed")
