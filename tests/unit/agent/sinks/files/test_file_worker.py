"""The thread on which a sink of type `files` calls the file system."""

import asyncio
import sys
import threading

import pytest

from millrace_server.agent.sinks.files.sink import FileWorker
from millrace_server.agent.supervision import ComponentError


async def test_call_runs_jobs_one_after_the_other_on_one_thread() -> None:
    """Jobs share nothing with the event loop, and never run concurrently."""
    worker = FileWorker("test", 10.0, "stalled")
    threads = await asyncio.gather(*(worker.call(threading.get_ident) for _ in range(5)))
    await worker.close(lambda: None, 10.0)
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_call_of_a_job_that_fails_raises_what_it_raised() -> None:
    """An error is the caller's, and the thread survives it."""
    worker = FileWorker("test", 10.0, "stalled")
    with pytest.raises(ZeroDivisionError):
        await worker.call(lambda: 1 // 0)
    assert await worker.call(lambda: 7) == 7
    await worker.close(lambda: None, 10.0)


async def test_call_of_a_job_that_exits_raises_and_continues() -> None:
    """A library that calls sys.exit does not end the thread."""
    worker = FileWorker("test", 10.0, "stalled")
    with pytest.raises(RuntimeError, match="SystemExit"):
        await worker.call(sys.exit)
    assert await worker.call(lambda: 7) == 7
    await worker.close(lambda: None, 10.0)


async def test_call_of_a_job_that_hangs_raises_and_completes_the_rest_later() -> None:
    """The caller does not wait for a call that hangs; later calls wait for its end."""
    responses = threading.Event()
    worker = FileWorker("test", 0.05, "does not respond")
    with pytest.raises(ComponentError, match="does not respond"):
        await worker.call(responses.wait)
    closed = threading.Event()
    await worker.close(closed.set, 0.05)
    assert not closed.is_set()
    responses.set()
    assert await asyncio.to_thread(closed.wait, 10.0)


async def test_call_cancelled_lets_the_job_continue() -> None:
    """A call that has begun is completed, and its error is not reported as unretrieved."""
    goes_on = threading.Event()
    worker = FileWorker("test", 10.0, "stalled")

    def fail() -> None:
        goes_on.wait(10.0)
        raise OSError

    doing = asyncio.create_task(worker.call(fail))
    await asyncio.sleep(0)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    goes_on.set()
    assert await worker.call(lambda: 7) == 7
    await worker.close(lambda: None, 10.0)


def test_call_that_ends_after_its_loop_is_closed_raises_nothing() -> None:
    """A file system that responds after the server has ended raises nothing."""
    responses = threading.Event()

    async def begin() -> threading.Thread:
        worker = FileWorker("slow files", 0.01, "stalled")
        with pytest.raises(ComponentError):
            await worker.call(responses.wait)
        await worker.close(lambda: None, 0.01)
        return next(thread for thread in threading.enumerate() if thread.name == "slow files")

    thread = asyncio.run(begin())
    responses.set()
    thread.join(10.0)
    assert not thread.is_alive()
