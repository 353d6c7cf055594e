"""The consumer, for asyncio."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from millrace_client._settings import check_endpoints
from millrace_client.consuming.config import ConsumerConfig, checked_workers
from millrace_client.consuming.core import ConsumerCloseReport
from millrace_client.consuming.metrics import ConsumerMetrics
from millrace_client.consuming.task_handling import TaskHandling
from millrace_client.consuming.tasks import ConsumerDelivery, TaskEngine
from millrace_client.events import Event

_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ConsumedEvent(Event):
    """An event, and the delivery that it came with."""

    delivery: ConsumerDelivery | None = None
    """Tells the channel and the server; to `ack` or `nack` it settles all of its events."""


class AsyncConsumer:
    """Takes events from channels of one server or of many; see `millrace_client.Consumer`. For the tasks of one loop.

    async with aio.AsyncConsumer(["localhost:7070"], ["orders"]) as consumer:
        async for delivery in consumer:
            for event in delivery:
                await work_on(event)

    Python ends asynchronous loops late where they are left by `break` or by an error; so a delivery whose body was left
    returns a little later, at the latest when the consumer is closed.
    """

    def __init__(
        self, endpoints: str | Iterable[str], channels: str | Iterable[str], config: ConsumerConfig | None = None
    ) -> None:
        """Makes no call; see `millrace_client.Consumer`."""
        self._engine = TaskEngine(check_endpoints(endpoints), channels, config or ConsumerConfig())
        self._finalizer = weakref.finalize(self, _end_in_background, self._engine)
        self._finalizer.atexit = False

    @property
    def config(self) -> ConsumerConfig:
        """Its limits."""
        return self._engine.config

    async def receive(self, timeout_seconds: float | None = None) -> ConsumerDelivery | None:
        """Waits for one delivery, which is the caller's to settle; see `millrace_client.Consumer.receive`."""
        return await self._engine.take(timeout_seconds)

    def __aiter__(self) -> AsyncIterator[ConsumerDelivery]:
        """Deliveries as they come; see the class."""
        return self._deliveries()

    async def _deliveries(self) -> AsyncGenerator[ConsumerDelivery]:
        engine = self._engine
        is_automatic = engine.config.auto_ack
        while (delivery := await engine.take(engine.config.idle_seconds)) is not None:
            if is_automatic:
                delivery.taken_by = asyncio.current_task()
            try:
                yield delivery
            except GeneratorExit:
                # Left by break or by an error; which of them, Python does not tell.
                if is_automatic:
                    engine.drop(delivery)
                raise
            if is_automatic:
                await delivery.ack()

    async def events(self) -> AsyncGenerator[ConsumedEvent]:
        """Events as they come, one by one; see `millrace_client.Consumer.events`."""
        async with aclosing(self._deliveries()) as deliveries:
            async for delivery in deliveries:
                for event in delivery:
                    if delivery.is_settled:
                        # Returned, or lost: the rest of it comes again.
                        break
                    yield ConsumedEvent(event.body, event.headers, event.sequence, delivery)

    async def run(
        self, handler: Callable[[ConsumerDelivery], Awaitable[object]], workers: int = 1, *, ordered: bool = False
    ) -> ConsumerCloseReport:
        """Has a coroutine function work on deliveries until `stop`, then closes; see `millrace_client.Consumer.run`.

        Args:
            handler: Works on one delivery. With many workers it is called by many tasks at once.
            workers: How many tasks.
            ordered: With one worker: where the handler raises it is called again with the same delivery.

        Raises:
            MillraceError: A channel at a server was given up; the others' deliveries in hand were finished before.
            BadArgumentError: Not so many workers.
        """
        handling = TaskHandling(self._engine, handler, ordered=ordered)
        try:
            await handling.run(checked_workers(workers, ordered=ordered))
        finally:
            report = await self.close()
        return report

    def stop(self) -> None:
        """Ends loops and `run` as soon as what is in hand is done. Does not wait, and may be called from anywhere."""
        self._engine.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether it was stopped or closed."""
        return self._engine.is_stopping

    async def close(self, timeout_seconds: float | None = None) -> ConsumerCloseReport:
        """Ends in order, within so long; see `millrace_client.Consumer.close`."""
        seconds = self.config.close_seconds if timeout_seconds is None else max(timeout_seconds, 0.0)
        self._finalizer.detach()
        return await self._engine.close(seconds)

    def metrics(self) -> ConsumerMetrics:
        """What it has done, and what it holds."""
        return self._engine.metrics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._finalizer.detach()
        await self._engine.close(self.config.close_seconds, after_error=error is not None)

    def __repr__(self) -> str:
        return f"<AsyncConsumer of {', '.join(lane.name for lane in self._engine.lanes)}>"


def _end_in_background(engine: TaskEngine) -> None:
    """Closes what nobody keeps any more. A finalizer may run anywhere, and cannot await."""
    # A loop that is closed has ended its tasks.
    with contextlib.suppress(RuntimeError):
        engine.close_soon(_END_SECONDS)


__all__ = ["AsyncConsumer", "ConsumedEvent"]
