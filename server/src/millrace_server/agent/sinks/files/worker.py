"""A thread for work on files, which may take long, or never end."""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from millrace_server.agent.supervision import ComponentError

ResultT = TypeVar("ResultT")


class FileWorker:
    """Does one job after the other on a thread of its own.

    A daemon thread: a file system that hangs must not keep the server from ending. What it was at is unfinished then,
    as after a crash.

    Args:
        name: The thread's name.
        stall_seconds: A job that takes longer is not waited for.
        stalled: Says what does not answer, for the component's state.
    """

    def __init__(self, name: str, stall_seconds: float, stalled: str) -> None:
        self._stall_seconds = stall_seconds
        self._stalled = stalled
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def do(self, job: Callable[[], ResultT]) -> ResultT:
        """Does a job; returns what it returns, or raises what it raises.

        Raises:
            ComponentError: It takes too long. It goes on nevertheless, and what was asked for next waits for its end.
        """
        done: asyncio.Future[ResultT] = self._loop.create_future()
        self._jobs.put((job, done))
        await asyncio.wait({done}, timeout=self._stall_seconds)
        if not done.done():
            raise ComponentError(self._stalled)
        return done.result()

    async def close(self, last: Callable[[], None], timeout_seconds: float) -> None:
        """Ends the thread after a last job, and after that which it is at; waits for it, but not too long."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((last, done))
        self._jobs.put(None)
        await asyncio.wait({done}, timeout=timeout_seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, done = job
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the job
                self._tell(done.set_exception, error, done)
            else:
                self._tell(done.set_result, result, done)

    def _tell(self, tell: Callable[[Any], None], outcome: object, done: "asyncio.Future[Any]") -> None:
        def tell_once() -> None:
            if not done.done():
                tell(outcome)
                # Where nobody waits any more, nobody is to be told of an error that nobody looked at.
                if isinstance(outcome, Exception):
                    done.exception()

        # The loop may be gone when a hung file system answers at last.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell_once)
