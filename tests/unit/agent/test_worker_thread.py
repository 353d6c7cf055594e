import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from millrace_server.agent.worker_thread import WorkerThread
from tests.waiting import WAIT_SECONDS_MAX, until

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
        go.wait()

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
    subprocess.run([sys.executable, "-c", _EVER_RUNNING], check=True)


async def test_shutdown_completes_queued_calls_and_the_next_call_starts_another_thread() -> None:
    """Calls queued before are completed."""
    thread = WorkerThread("ending")
    last = thread.submit(threading.current_thread)
    thread.shutdown()
    former = await last
    await asyncio.to_thread(former.join, WAIT_SECONDS_MAX)
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


async def test_end_with_a_call_behind_one_that_hangs_returns_in_time() -> None:
    """The last call still runs once the one before it ends."""
    thread, go, has_ended = WorkerThread("app"), threading.Event(), threading.Event()
    hanging = thread.submit(go.wait)
    await thread.end_with(has_ended.set, 0.05)
    assert not has_ended.is_set()
    go.set()
    assert await hanging
    assert await asyncio.to_thread(has_ended.wait, WAIT_SECONDS_MAX)


async def test_submit_cancelled_after_its_start_reports_no_error() -> None:
    """A call that has started is completed, and its error is not reported as unretrieved."""
    thread, has_begun, go, problems = WorkerThread("app"), threading.Event(), threading.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))

    def fail() -> None:
        has_begun.set()
        go.wait()
        raise OSError

    failing = thread.submit(fail)
    assert await asyncio.to_thread(has_begun.wait, WAIT_SECONDS_MAX)
    failing.cancel()
    go.set()
    assert await thread.submit(lambda: 7) == 7
    assert problems == []


def test_submit_of_a_function_that_ends_after_its_loop_is_closed_raises_nothing() -> None:
    """A file system that responds after the server has ended raises nothing."""
    go = threading.Event()

    async def begin() -> threading.Thread:
        worker = WorkerThread("slow files")
        _ = worker.submit(go.wait)
        await worker.end_with(lambda: None, 0.01)
        return next(thread for thread in threading.enumerate() if thread.name == "slow files")

    thread = asyncio.run(begin())
    go.set()
    thread.join(WAIT_SECONDS_MAX)
    assert not thread.is_alive()
