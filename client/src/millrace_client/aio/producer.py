"""The producer for asyncio."""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Self

from millrace_client._forks import FORKS, forked_error
from millrace_client.errors import BufferFullError, ProducerClosedError
from millrace_client.events import Event
from millrace_client.producer import CLOSE_SECONDS, BaseProducer
from millrace_client.producing.callbacks import Job, run_guarded
from millrace_client.producing.channel_buffer import ChannelBuffer
from millrace_client.producing.config import Overflow
from millrace_client.producing.engine import Engine, metrics_of
from millrace_client.producing.metrics import ProducerCounters, ProducerMetrics
from millrace_client.producing.pages import AsyncSendFuture, Page
from millrace_client.producing.results import Callback
from millrace_client.producing.sending import check_body, check_key, parts_of
from millrace_client.producing.threaded import ProducerCloseReport


class AsyncProducer(BaseProducer):
    """Sends events to one or several servers, for the tasks of one event loop; see `millrace_client.Producer`.

        async with AsyncProducer("127.0.0.1:7070", channel="orders") as producer:
            future = await producer.send(b"one", key="customer-1")
            print((await future).sequence)

    It gives the guarantees of `Producer`, by the same engine, on the event loop of the first `send`. Callbacks and
    hooks run on that loop, each in its own call, and must not block it.
    """

    def _prepare_engine(self) -> None:
        self._callbacks = _LoopCallbacks(self._counters)
        self._engine: Engine | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a thread may be inside gRPC."""
        return self._engine is not None and not (self._ending is not None and self._ending.done())

    async def send(
        self,
        event: Event | bytes | str,
        key: str | bytes | None = None,
        channel: str = "",
        callback: Callback | None = None,
    ) -> AsyncSendFuture:
        """Accepts an event to be stored and returns its future; see `millrace_client.Producer.send`.

        Waits only if the buffer is full and the policy is to block. If it is cancelled while it waits, the event is not
        accepted.
        """
        try:
            return self.send_nowait(event, key, channel, callback)
        except BufferFullError:
            if self._config.overflow is not Overflow.BLOCK:
                raise
        return await self._send_when_there_is_space(event, key, channel, callback)

    async def _send_when_there_is_space(
        self, event: Event | bytes | str, key: str | bytes | None, channel: str, callback: Callback | None
    ) -> AsyncSendFuture:
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + self._config.max_block_seconds
        try:
            while True:
                freed = self._accumulator.space_freed()
                await asyncio.wait((freed,), timeout=max(deadline - loop.time(), 0.0))
                with suppress(BufferFullError):
                    return self.send_nowait(event, key, channel, callback)
                if loop.time() >= deadline:
                    return self.send_nowait(event, key, channel, callback)
        finally:
            self._counters.blocked_seconds += loop.time() - began

    def send_nowait(
        self,
        event: Event | bytes | str,
        key: str | bytes | None = None,
        channel: str = "",
        callback: Callback | None = None,
    ) -> AsyncSendFuture:
        """Does the same as `send`, but never waits: raises BufferFullError if the buffer is full."""
        headers: Mapping[str, str]
        if isinstance(event, Event):
            body, headers = event.body, event.headers
            if body.__class__ is not bytes:
                check_body(body)
        else:
            body, headers = parts_of(event)
        if key is not None and key.__class__ is not str:
            check_key(key)
        buffer = self._buffers.get(channel) or self._open_buffer(channel)
        page, index = self._accumulator.put(buffer, key, body, headers, callback, False)
        return AsyncSendFuture(page, index)

    def _open_buffer(self, channel: str) -> ChannelBuffer:
        self._check_process()
        name = self._channel_name(channel)
        if self._engine is None and self._accumulator.refusal is None:
            FORKS.check_usable()
            FORKS.watch(self)
            loop = asyncio.get_running_loop()
            self._callbacks.loop = loop
            self._engine = engine = Engine(self._settings, self._accumulator, self._counters, self._callbacks)
            self._accumulator.wake = partial(loop.call_soon, engine.run_once)
            engine.start()
        buffer = self._buffers[channel] = self._accumulator.buffer(name)
        return buffer

    async def flush(self, timeout_seconds: float | None = None) -> int:
        """Sends buffered events, and waits until they are settled; see `millrace_client.Producer.flush`."""
        self._check_process()
        return await self._wait_settled(self._accumulator.close_pages(), timeout_seconds)

    async def _wait_settled(self, pages: set[Page], timeout_seconds: float | None) -> int:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                for page in pages:
                    while page.open_count:
                        await page.next_settled()
        return sum(page.open_count for page in pages)

    async def close(self, timeout_seconds: float = CLOSE_SECONDS) -> ProducerCloseReport:
        """Settles all accepted events and disconnects; see `millrace_client.Producer.close`."""
        self._accumulator.refuse(ProducerClosedError("the producer is closed"))
        engine = self._engine
        if engine is None or self._process_id != os.getpid():
            return ProducerCloseReport(0, 0)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        pages = self._accumulator.close_pages()
        engine.close_by(deadline)
        if self._ending is None:
            self._ending = loop.create_task(_end(engine))
        events_left = await self._wait_settled(pages, max(deadline - loop.time(), 0.0))
        await asyncio.wait((self._ending,), timeout=max(deadline - loop.time(), 0.0))
        # Callbacks of the last batch run in the next iteration of the loop.
        await asyncio.sleep(0)
        return ProducerCloseReport(max(events_left, engine.abandoned_count), self._callbacks.waiting_count)

    def metrics(self) -> ProducerMetrics:
        return metrics_of(self._accumulator, self._counters, self._engine, self._callbacks, time.monotonic())

    def _check_process(self) -> None:
        if self._process_id != os.getpid():
            raise forked_error(self._process_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


class _LoopCallbacks:
    """Runs callbacks on the event loop, each in its own call."""

    def __init__(self, counters: ProducerCounters) -> None:
        self._counters = counters
        self._waiting_count = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting_count(self) -> int:
        return self._waiting_count

    def submit(self, job: Job, *, is_success: bool, is_counted: bool = True) -> None:  # noqa: ARG002 - one loop for both
        assert self.loop is not None, "the producer has begun"
        self._waiting_count += is_counted
        self.loop.call_soon(self._run, job, is_counted)

    def _run(self, job: Job, is_counted: bool) -> None:  # noqa: FBT001 - as call_soon passes it
        self._waiting_count -= is_counted
        run_guarded(job, self._counters)


async def _end(engine: Engine) -> None:
    await engine.drained.wait()
    engine.end()
