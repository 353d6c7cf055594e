"""A thread for calls that must not block the event loop, and reading ahead on it."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

ResultT = TypeVar("ResultT")
ChunkT = TypeVar("ChunkT")


class _Call(NamedTuple):
    function: Callable[[], Any]
    result: "asyncio.Future[Any]"


class WorkerThread:
    """Calls one function after another on its own thread.

    For calls that may block for any time, such as those of a file system that hangs or of a user-defined interceptor.
    The thread starts with the first call; it ends after `shutdown`, or once the object is no longer referenced. Unlike
    an executor's thread it is a daemon: a call that never returns does not keep the program from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] | None = None

    def submit(self, function: Callable[[], ResultT]) -> "asyncio.Future[ResultT]":
        """Queues a call, and returns the future of its result.

        If the future is cancelled, a call that has not started is skipped; one that has started continues.
        """
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
            weakref.finalize(self, self._calls.put, None)
        result: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(function, result))
        return result

    async def end_with(self, last: Callable[[], None], timeout_seconds: float) -> None:
        """Queues a last call and ends the thread after it; waits for that up to a timeout."""
        result = self.submit(last)
        self.shutdown()
        await asyncio.wait({result}, timeout=timeout_seconds)

    def shutdown(self) -> None:
        """Ends the thread after the queued calls."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


class ReadAhead(Generic[ChunkT]):
    """Reads the next chunk on a thread while the current one is processed; `read` returns None at the end."""

    def __init__(self, read: Callable[[], ChunkT | None], thread: WorkerThread) -> None:
        self._read = read
        self._thread = thread
        self._reading = thread.submit(read)

    async def next(self) -> ChunkT | None:
        """Returns the next chunk, or None at the end; raises any error of the read. May be cancelled and repeated."""
        # Shielded, since the thread continues even if the caller is cancelled.
        chunk = await asyncio.shield(self._reading)
        if chunk is not None:
            self._reading = self._thread.submit(self._read)
        return chunk

    async def close(self) -> None:
        """Waits until the current read has ended, and discards its result."""
        await asyncio.wait({self._reading})


def _work(calls: "SimpleQueue[_Call | None]") -> None:
    while (call := calls.get()) is not None:
        if call.result.cancelled():
            continue
        try:
            result = call.function()
        except BaseException as error:  # noqa: BLE001 - it is passed to the caller, which must not wait forever
            _set(call.result, call.result.set_exception, _as_exception(error))
        else:
            _set(call.result, call.result.set_result, result)
        # Keeps no reference to a call while the thread waits for the next one.
        del call


def _as_exception(error: BaseException) -> Exception:
    """Returns an error that a future accepts, and that does not end the event loop as SystemExit does."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _set(future: "asyncio.Future[Any]", setter: Callable[[Any], None], value: object) -> None:
    def set_unless_done() -> None:
        if not future.done():
            setter(value)
            # Marks an exception as retrieved: asyncio must not log it if the caller was cancelled.
            future.exception()

    # The loop may have been closed before a slow file system responds.
    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(set_unless_done)
