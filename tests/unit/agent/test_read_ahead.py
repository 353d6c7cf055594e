import asyncio
import threading

import pytest

from millrace_server.agent.worker_thread import ReadAhead, WorkerThread
from tests.waiting import until


class Chunks:
    """Numbers that can be read once the test allows it."""

    def __init__(self, count: int) -> None:
        self.may_read = threading.Semaphore(0)
        self.begun_count = 0
        self._left = list(range(count))

    def read(self) -> int | None:
        self.begun_count += 1
        self.may_read.acquire()
        return self._left.pop(0) if self._left else None


async def test_next_reads_only_one_chunk_ahead() -> None:
    """While one chunk is in use, the next one is read; no further chunk is in memory."""
    chunks = Chunks(3)
    chunks.may_read.release(10)
    reading = ReadAhead(chunks.read, WorkerThread("test"))
    assert await reading.next() == 0
    await until(lambda: chunks.begun_count == 2)
    assert [await reading.next() for _ in range(4)] == [1, 2, None, None]
    assert chunks.begun_count == 4
    await reading.close()


async def test_next_that_is_cancelled_leaves_the_chunk_to_the_next_call() -> None:
    """The thread continues to read, and its chunk is not lost."""
    chunks = Chunks(2)
    reading = ReadAhead(chunks.read, WorkerThread("test"))
    waiting = asyncio.create_task(reading.next())
    await until(lambda: chunks.begun_count == 1)
    waiting.cancel()
    await asyncio.wait({waiting})
    chunks.may_read.release(3)
    assert [await reading.next(), await reading.next()] == [0, 1]
    await reading.close()


async def test_close_while_something_is_read_waits_for_it() -> None:
    """After the close no thread uses the file any more."""
    chunks = Chunks(1)
    reading = ReadAhead(chunks.read, WorkerThread("test"))
    closing = asyncio.create_task(reading.close())
    await until(lambda: chunks.begun_count == 1)
    assert not closing.done()
    chunks.may_read.release()
    await closing


async def test_next_after_an_error_raises_it_again() -> None:
    """The close does not raise an error that was never returned."""

    def fail() -> None:
        raise OSError(5, "Input/output error")

    reading = ReadAhead[None](fail, WorkerThread("test"))
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            await reading.next()
    unseen = ReadAhead[None](fail, WorkerThread("test"))
    await unseen.close()
