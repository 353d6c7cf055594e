import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from millrace_server.agent.step_thread import StepThread
from tests.agent_parts import until

_EVER_RUNNING = """
import asyncio, time
from millrace_server.agent.step_thread import StepThread

async def main():
    thread = StepThread("app")
    await thread.run(lambda: None)
    asyncio.ensure_future(thread.run(lambda: time.sleep(1000)))
    await asyncio.sleep(0.05)

asyncio.run(main())
"""


async def test_run_gives_what_the_function_gives_or_raises() -> None:
    """On another thread, the same each time."""
    thread = StepThread("app")
    names = {await thread.run(lambda: threading.current_thread().name) for _ in range(3)}
    assert names == {"interceptors-app"}
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await thread.run(lambda: 5) == 5


async def test_run_of_several_functions_runs_them_one_after_the_other() -> None:
    """In the order in which they come."""
    thread, seen, is_busy = StepThread("app"), [], threading.Lock()

    def note(number: int) -> None:
        assert is_busy.acquire(blocking=False)
        seen.append(number)
        is_busy.release()

    await asyncio.gather(*(thread.run(partial(note, number)) for number in range(50)))
    assert seen == list(range(50))


async def test_run_whose_caller_leaves_does_not_begin_and_keeps_nobody_waiting() -> None:
    """What has begun goes on, what has not is left out."""
    thread, go, seen = StepThread("app"), threading.Event(), []

    def begin() -> None:
        seen.append("begun")
        go.wait(20)

    begun = asyncio.ensure_future(thread.run(begin))
    await until(lambda: seen == ["begun"])
    waiting = asyncio.ensure_future(thread.run(lambda: seen.append("waiting")))
    await asyncio.sleep(0)
    for call in (begun, waiting):
        call.cancel()
    await asyncio.wait({begun, waiting})
    go.set()
    await thread.run(lambda: seen.append("last"))
    assert seen == ["begun", "last"]


async def test_thread_that_nobody_has_any_more_ends() -> None:
    """A source that is made anew leaves no thread behind."""
    thread = StepThread("gone")
    await thread.run(lambda: None)
    del thread
    await until(lambda: all(each.name != "interceptors-gone" for each in threading.enumerate()))


def test_function_that_never_ends_keeps_no_program_from_ending() -> None:
    """A user's own may wait for ever."""
    subprocess.run([sys.executable, "-c", _EVER_RUNNING], check=True, timeout=30)


async def test_run_of_a_function_that_exits_raises_and_goes_on() -> None:
    """A user's part that calls sys.exit ends neither the thread nor whoever waits for it."""
    thread = StepThread("steps")
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await thread.run(lambda: sys.exit(3))
    assert await thread.run(lambda: 7) == 7
