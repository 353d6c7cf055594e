"""A thread for what must not hold up the event loop."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

AnswerT = TypeVar("AnswerT")


class _Call(NamedTuple):
    function: Callable[[], Any]
    answer: "asyncio.Future[Any]"


class WorkThread:
    """A thread that does one thing after the other.

    For what may wait for anything, and nobody else is to wait for that: a file system that hangs, an interceptor of a
    user's own. The thread begins with its first call, and ends when it is told to, or once nobody has the object any
    more. A call that never ends keeps no program from ending, which those of executors do; what it was at is unfinished
    then, as after a crash.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] | None = None

    def do(self, function: Callable[[], AnswerT]) -> "asyncio.Future[AnswerT]":
        """Has the thread call a function, behind those before it.

        Returns:
            What the function returns or raises. Cancelled, a function that has not begun is left out, and one that has
            goes on for nobody.
        """
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
            weakref.finalize(self, self._calls.put, None)
        answer: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(function, answer))
        return answer

    def end(self) -> None:
        """Has the thread end behind what it was given."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _work(calls: "SimpleQueue[_Call | None]") -> None:
    while (call := calls.get()) is not None:
        if call.answer.cancelled():
            continue
        try:
            result = call.function()
        except BaseException as error:  # noqa: BLE001 - it is the caller's, who must not wait for ever
            _answer(call.answer, call.answer.set_exception, _bearable(error))
        else:
            _answer(call.answer, call.answer.set_result, result)
        # Nothing of a call is kept while the thread waits for the next one.
        del call


def _bearable(error: BaseException) -> Exception:
    """An error that a future can hold, and that does not end the loop, as that of sys.exit does."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _answer(answer: "asyncio.Future[Any]", give: Callable[[Any], None], what: object) -> None:
    def give_if_wanted() -> None:
        if not answer.done():
            give(what)
            # Where nobody waits any more, nobody is to be told of an error that nobody looked at.
            answer.exception()

    # The loop may have ended meanwhile, before a file system answers at last.
    with suppress(RuntimeError):
        answer.get_loop().call_soon_threadsafe(give_if_wanted)
