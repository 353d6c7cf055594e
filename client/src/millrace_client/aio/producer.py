"""The producer for asyncio."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import grpc

from millrace_client._forks import FORKS, forked_error
from millrace_client._settings import check_endpoints, new_txn_id
from millrace_client.errors import BadArgumentError, BufferFullError, ProducerClosedError
from millrace_client.events import Event
from millrace_client.producer import CLOSE_SECONDS
from millrace_client.producing.callbacks import Job, run_guarded
from millrace_client.producing.config import Overflow, ProducerConfig
from millrace_client.producing.engine import Engine, EngineSettings
from millrace_client.producing.intake import Intake
from millrace_client.producing.lanes import Gathering
from millrace_client.producing.looking import metrics_of
from millrace_client.producing.metrics import ProducerHooks, ProducerMetrics, Tally
from millrace_client.producing.pages import AsyncSendFuture, Page
from millrace_client.producing.results import Callback
from millrace_client.producing.sending import parts_of, refuse_body, refuse_key
from millrace_client.producing.servers import Credentials
from millrace_client.producing.threaded import ProducerCloseReport


class AsyncProducer:
    """Sends events to one or several servers, for the tasks of one event loop; see `millrace_client.Producer`.

        async with AsyncProducer("127.0.0.1:7070", channel="orders") as producer:
            future = await producer.send(b"one", key="customer-1")
            print((await future).sequence)

    It promises what `Producer` promises, by the same engine, without a thread: the event loop of the first `send` is
    its own from then on. Callbacks and hooks run on that loop, apart from each other, and must not block it.
    """

    def __init__(  # noqa: PLR0913 - all but the first have defaults
        self,
        endpoints: str | Sequence[str],
        channel: str = "",
        *,
        config: ProducerConfig | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        options: tuple[tuple[str, str | int], ...] = (),
        hooks: ProducerHooks | None = None,
    ) -> None:
        self._config = config or ProducerConfig()
        self._channel = channel
        self._producer_id = self._config.producer_id or new_txn_id()
        self._tally = Tally()
        self._intake = Intake(self._config, self._producer_id, self._tally)
        self._settings = EngineSettings(
            endpoints=check_endpoints(endpoints),
            how=Credentials(credentials=credentials, options=tuple(options)),
            config=self._config,
            hooks=hooks,
        )
        self._callbacks = _LoopCallbacks(self._tally)
        self._engine: Engine | None = None
        self._ending: asyncio.Task[None] | None = None
        self._gatherings: dict[str, Gathering] = {}
        self._process_id = os.getpid()

    @property
    def producer_id(self) -> str:
        """Names this producer in the headers of the context, and in its stamps where the configuration names it."""
        return self._producer_id

    @property
    def config(self) -> ProducerConfig:
        """The limits."""
        return self._config

    @property
    def is_busy(self) -> bool:
        """Whether gRPC works for it: a thread of grpc.aio polls for all connections."""
        return self._engine is not None and not (self._ending is not None and self._ending.done())

    async def send(
        self,
        event: Event | bytes | str,
        key: str | bytes | None = None,
        channel: str = "",
        callback: Callback | None = None,
    ) -> AsyncSendFuture:
        """Takes an event to be stored, and returns what will tell of it; see `millrace_client.Producer.send`.

        Waits only where the buffer is full and the policy is to wait. Cancelled while it waits, it has taken nothing.
        """
        try:
            return self.send_nowait(event, key, channel, callback)
        except BufferFullError:
            if self._config.overflow is not Overflow.BLOCK:
                raise
        return await self._send_when_there_is_room(event, key, channel, callback)

    async def _send_when_there_is_room(
        self, event: Event | bytes | str, key: str | bytes | None, channel: str, callback: Callback | None
    ) -> AsyncSendFuture:
        loop = asyncio.get_running_loop()
        began = loop.time()
        give_up = began + self._config.max_block_seconds
        try:
            while True:
                freed = self._intake.room_freed()
                await asyncio.wait((freed,), timeout=max(give_up - loop.time(), 0.0))
                with suppress(BufferFullError):
                    return self.send_nowait(event, key, channel, callback)
                if loop.time() >= give_up:
                    return self.send_nowait(event, key, channel, callback)
        finally:
            self._tally.blocked_seconds += loop.time() - began

    def send_nowait(
        self,
        event: Event | bytes | str,
        key: str | bytes | None = None,
        channel: str = "",
        callback: Callback | None = None,
    ) -> AsyncSendFuture:
        """The same without ever waiting.

        Raises:
            BufferFullError: The buffer is full.
        """
        headers: Mapping[str, str]
        if isinstance(event, Event):
            body, headers = event.body, event.headers
            if body.__class__ is not bytes:
                refuse_body(body)
        else:
            body, headers = parts_of(event)
        if key is not None and key.__class__ is not str:
            refuse_key(key)
        gathering = self._gatherings.get(channel) or self._open_gathering(channel)
        page, index = self._intake.put(gathering, key, body, headers, callback, False)
        return AsyncSendFuture(page, index)

    def _open_gathering(self, channel: str) -> Gathering:
        self._refuse_other_process()
        name = channel or self._channel
        if not name:
            raise BadArgumentError("channel: is empty; name one here, or when making the producer")
        if self._engine is None and self._intake.refusal is None:
            FORKS.refuse_if_spoiled()
            FORKS.watch(self)
            loop = asyncio.get_running_loop()
            self._callbacks.loop = loop
            self._engine = engine = Engine(self._settings, self._intake, self._tally, self._callbacks)
            self._intake.wake = lambda: _call_soon(loop, engine)
            engine.start()
        gathering = self._gatherings[channel] = self._intake.gathering(name)
        return gathering

    async def flush(self, timeout_seconds: float | None = None) -> int:
        """Sends what has gathered at once, and waits until all that was sent before is settled.

        Returns:
            How many of these events are not settled after that time; 0 where all are.
        """
        self._refuse_other_process()
        return await self._wait_settled(self._intake.close_pages(), timeout_seconds)

    async def _wait_settled(self, pages: set[Page], timeout_seconds: float | None) -> int:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                for page in pages:
                    while page.open_count:
                        await page.next_settled()
        return sum(page.open_count for page in pages)

    async def close(self, timeout_seconds: float = CLOSE_SECONDS) -> ProducerCloseReport:
        """Settles all that was sent and disconnects; see `millrace_client.Producer.close`."""
        self._intake.refuse(ProducerClosedError("the producer is closed"))
        engine = self._engine
        if engine is None or self._process_id != os.getpid():
            return ProducerCloseReport(0, 0)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        pages = self._intake.close_pages()
        engine.give_up_at(deadline)
        if self._ending is None:
            self._ending = loop.create_task(_end(engine))
        events_left = await self._wait_settled(pages, max(deadline - loop.time(), 0.0))
        await asyncio.wait((self._ending,), timeout=max(deadline - loop.time(), 0.0))
        # Callbacks of the last batch run in the loop's next turn.
        await asyncio.sleep(0)
        return ProducerCloseReport(max(events_left, engine.given_up_count), self._callbacks.waiting_count)

    def metrics(self) -> ProducerMetrics:
        """How the producer stands, and what it has done."""
        return metrics_of(self._intake, self._tally, self._engine, self._callbacks)

    def _refuse_other_process(self) -> None:
        if self._process_id != os.getpid():
            raise forked_error(self._process_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncProducer of {', '.join(self._settings.endpoints)}>"


class _LoopCallbacks:
    """Runs callbacks on the event loop, each in a turn of its own."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
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
        run_guarded(job, self._tally)


def _call_soon(loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
    loop.call_soon(engine.look)


async def _end(engine: Engine) -> None:
    await engine.drained.wait()
    engine.end()
