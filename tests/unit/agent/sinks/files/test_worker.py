"""The thread for work on files."""

import asyncio
import sys
import threading

import pytest

from millrace_server.agent.sinks.files.worker import FileWorker
from millrace_server.agent.supervision import ComponentError


async def test_do_runs_jobs_one_after_the_other_on_one_thread() -> None:
    """Jobs share nothing with the event loop, and never run beside each other."""
    worker = FileWorker("test", 10.0, "stalled")
    threads = await asyncio.gather(*(worker.do(threading.get_ident) for _ in range(5)))
    await worker.close(lambda: None, 10.0)
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_do_of_a_job_that_fails_raises_what_it_raised() -> None:
    """A failure is the caller's, and the thread lives on."""
    worker = FileWorker("test", 10.0, "stalled")
    with pytest.raises(ZeroDivisionError):
        await worker.do(lambda: 1 // 0)
    assert await worker.do(lambda: 7) == 7
    await worker.close(lambda: None, 10.0)


async def test_do_of_a_job_that_exits_raises_and_goes_on() -> None:
    """A library that calls sys.exit leaves nobody waiting for a thread that has gone."""
    worker = FileWorker("test", 10.0, "stalled")
    with pytest.raises(RuntimeError, match="SystemExit"):
        await worker.do(sys.exit)
    assert await worker.do(lambda: 7) == 7
    await worker.close(lambda: None, 10.0)


async def test_do_of_a_job_that_hangs_says_so_and_does_the_rest_later() -> None:
    """Nobody waits for a job that does not end; what comes behind it waits for its end."""
    answers = threading.Event()
    worker = FileWorker("test", 0.05, "does not answer")
    with pytest.raises(ComponentError, match="does not answer"):
        await worker.do(answers.wait)
    closed = threading.Event()
    await worker.close(closed.set, 0.05)
    assert not closed.is_set()
    answers.set()
    assert await asyncio.to_thread(closed.wait, 10.0)


async def test_do_cancelled_lets_the_job_go_on() -> None:
    """A job that was begun is not torn apart, and an error that nobody waits for disturbs nobody."""
    goes_on = threading.Event()
    worker = FileWorker("test", 10.0, "stalled")

    def fail() -> None:
        goes_on.wait(10.0)
        raise OSError

    doing = asyncio.create_task(worker.do(fail))
    await asyncio.sleep(0)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    goes_on.set()
    assert await worker.do(lambda: 7) == 7
    await worker.close(lambda: None, 10.0)


def test_job_that_ends_after_its_loop_is_gone_ends_in_silence() -> None:
    """A file system that answers after the server has ended raises nothing."""
    answers = threading.Event()

    async def begin() -> threading.Thread:
        worker = FileWorker("slow files", 0.01, "stalled")
        with pytest.raises(ComponentError):
            await worker.do(answers.wait)
        await worker.close(lambda: None, 0.01)
        return next(thread for thread in threading.enumerate() if thread.name == "slow files")

    thread = asyncio.run(begin())
    answers.set()
    thread.join(10.0)
    assert not thread.is_alive()
