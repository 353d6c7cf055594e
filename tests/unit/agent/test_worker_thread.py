import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from millrace_server.agent.worker_thread import WorkerThread
from tests.waiting import until

_EVER_RUNNING = """
import asyncio, time
from millrace_server.agent.worker_thread import WorkerThread

async def main():
    thread = WorkerThread("app")
    await thread.submit(lambda: None)
    asyncio.ensure_future(thread.submit(lambda: time.sleep(1000)))
    await asyncio.sleep(0.05)

asyncio.run(main())
"""


async def test_submit_returns_the_result_or_the_error_of_the_function() -> None:
    """The thread is the same each time."""
    thread = WorkerThread("app")
    names = {await thread.submit(lambda: threading.current_thread().name) for _ in range(3)}
    assert names == {"app"}
    with pytest.raises(ZeroDivisionError):
        await thread.submit(lambda: 1 // 0)
    assert await thread.submit(lambda: 5) == 5


async def test_submit_of_several_functions_runs_them_one_after_another() -> None:
    """The functions run in the order of the calls."""
    thread, seen, is_busy = WorkerThread("app"), [], threading.Lock()

    def note(number: int) -> None:
        assert is_busy.acquire(blocking=False)
        seen.append(number)
        is_busy.release()

    await asyncio.gather(*(thread.submit(partial(note, number)) for number in range(50)))
    assert seen == list(range(50))


async def test_submit_cancelled_before_its_start_is_skipped() -> None:
    """A call that has started continues."""
    thread, go, seen = WorkerThread("app"), threading.Event(), []

    def begin() -> None:
        seen.append("begun")
        go.wait(20)

    begun = asyncio.ensure_future(thread.submit(begin))
    await until(lambda: seen == ["begun"])
    waiting = asyncio.ensure_future(thread.submit(lambda: seen.append("waiting")))
    await asyncio.sleep(0)
    for call in (begun, waiting):
        call.cancel()
    await asyncio.wait({begun, waiting})
    go.set()
    await thread.submit(lambda: seen.append("last"))
    assert seen == ["begun", "last"]


async def test_thread_without_references_ends() -> None:
    """A restarted source leaves no thread behind."""
    thread = WorkerThread("gone")
    await thread.submit(lambda: None)
    del thread
    await until(lambda: all(each.name != "gone" for each in threading.enumerate()))


def test_function_that_never_ends_keeps_no_program_from_ending() -> None:
    """A user's own function may block without end."""
    subprocess.run([sys.executable, "-c", _EVER_RUNNING], check=True, timeout=30)


async def test_shutdown_completes_queued_calls_and_the_next_call_starts_another_thread() -> None:
    """Calls queued before are completed."""
    thread = WorkerThread("ending")
    last = thread.submit(threading.current_thread)
    thread.shutdown()
    former = await last
    await asyncio.to_thread(former.join, 20)
    assert not former.is_alive()
    assert await thread.submit(threading.current_thread) is not former


async def test_submit_of_a_function_that_stops_an_iteration_raises() -> None:
    """A future cannot hold StopIteration, and the caller must not wait without end."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        await WorkerThread("steps").submit(lambda: next(iter(())))


async def test_submit_of_a_function_that_exits_raises_and_continues() -> None:
    """A user's sys.exit ends neither the thread nor its caller."""
    thread = WorkerThread("steps")
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await thread.submit(lambda: sys.exit(3))
    assert await thread.submit(lambda: 7) == 7
