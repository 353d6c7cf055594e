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


class StepThread:
    """A thread on which the interceptors of one source run, and its selector where that is a user's own.

    They look at each event, and users' own may wait for anything; nobody else is to wait for that. The thread begins
    with its first call, and ends once nobody has the object any more. A call that never ends keeps no program from
    ending, which those of executors do.

    Args:
        source_name: Names the thread.
    """

    def __init__(self, source_name: str) -> None:
        self._name = f"interceptors-{source_name}"
        self._calls: SimpleQueue[_Call | None] | None = None

    async def run(self, function: Callable[[], AnswerT]) -> AnswerT:
        """Runs a function behind those before it, and raises what it raises.

        Where the caller is cancelled, a function that has begun goes on for nobody.
        """
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
            weakref.finalize(self, self._calls.put, None)
        answer: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(function, answer))
        return await answer


def _work(calls: "SimpleQueue[_Call | None]") -> None:
    while (call := calls.get()) is not None:
        if call.answer.cancelled():
            continue
        try:
            result = call.function()
        except Exception as error:  # noqa: BLE001 - it is the caller's
            _answer(call.answer, call.answer.set_exception, error)
        except BaseException as error:  # noqa: BLE001 - sys.exit in a user's part ends neither this thread nor the loop
            _answer(call.answer, call.answer.set_exception, RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            _answer(call.answer, call.answer.set_result, result)


def _answer(answer: "asyncio.Future[Any]", give: Callable[[Any], None], what: object) -> None:
    def give_if_wanted() -> None:
        if not answer.done():
            give(what)

    # The loop may have ended meanwhile.
    with suppress(RuntimeError):
        answer.get_loop().call_soon_threadsafe(give_if_wanted)
