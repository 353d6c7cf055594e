"""The asyncio consumer."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Self

from millrace_client._settings import check_endpoints
from millrace_client.aio.consumer_tasks import ConsumerDelivery, HandlerTasks, TaskEngine
from millrace_client.consuming.config import ConsumerConfig, checked_workers
from millrace_client.consuming.core import BaseConsumer, ConsumerCloseReport
from millrace_client.events import Event

_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ConsumedEvent(Event):
    """An event with its delivery."""

    delivery: ConsumerDelivery | None = None
    """Names the channel and the server; its `ack` and `nack` settle all its events."""


class AsyncConsumer(BaseConsumer[TaskEngine]):
    """Takes events from channels of one or several servers; see `millrace_client.Consumer`. For one event loop.

        async with aio.AsyncConsumer(["localhost:7070"], ["orders"]) as consumer:
            async for delivery in consumer:
                for event in delivery:
                    await work_on(event)

    Python closes an asynchronous generator late if its loop is left by `break` or by an error; so the delivery of such
    a loop returns a little later, at the latest when the consumer is closed.
    """

    def __init__(
        self, endpoints: str | Iterable[str], channels: str | Iterable[str], config: ConsumerConfig | None = None
    ) -> None:
        """Makes no call; see `millrace_client.Consumer`."""
        self._engine = TaskEngine(check_endpoints(endpoints), channels, config or ConsumerConfig())
        self._finalizer = weakref.finalize(self, _end_in_background, self._engine)
        self._finalizer.atexit = False

    async def receive(self, timeout_seconds: float | None = None) -> ConsumerDelivery | None:
        """Waits for one delivery, which the caller settles; see `millrace_client.Consumer.receive`."""
        return await self._engine.take(timeout_seconds)

    def __aiter__(self) -> AsyncIterator[ConsumerDelivery]:
        """Yields deliveries as they arrive; see the class."""
        return self._deliveries()

    async def _deliveries(self) -> AsyncGenerator[ConsumerDelivery]:
        engine = self._engine
        is_automatic = engine.config.auto_ack
        while (delivery := await engine.take_for_loop()) is not None:
            if is_automatic:
                delivery.taken_by = asyncio.current_task()
            try:
                yield delivery
            except GeneratorExit:
                # Left by break or by an error; Python does not say by which.
                if is_automatic:
                    engine.drop(delivery)
                raise
            if is_automatic:
                await delivery.ack()

    async def events(self) -> AsyncGenerator[ConsumedEvent]:
        """Yields events as they arrive, one by one; see `millrace_client.Consumer.events`."""
        async with aclosing(self._deliveries()) as deliveries:
            async for delivery in deliveries:
                for event in delivery:
                    if delivery.is_settled:
                        # Returned or lost: its other events will be delivered again.
                        break
                    yield ConsumedEvent(event.body, event.headers, event.sequence, event.commit_time, delivery)

    async def run(
        self, handler: Callable[[ConsumerDelivery], Awaitable[object]], workers: int = 1, *, ordered: bool = False
    ) -> ConsumerCloseReport:
        """Calls a coroutine function with each delivery, in tasks; see `millrace_client.Consumer.run`."""
        tasks = HandlerTasks(self._engine, handler, ordered=ordered)
        try:
            await tasks.run(checked_workers(workers, ordered=ordered))
        finally:
            report = await self.close()
        return report

    def stop(self) -> None:
        """Ends loops and `run` once deliveries in hand are finished. Does not wait; may be called from any thread."""
        self._engine.stop()

    async def close(self, timeout_seconds: float | None = None) -> ConsumerCloseReport:
        """Closes cleanly, within the timeout; see `millrace_client.Consumer.close`."""
        seconds = self.config.close_seconds if timeout_seconds is None else max(timeout_seconds, 0.0)
        self._finalizer.detach()
        return await self._engine.close(seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._finalizer.detach()
        await self._engine.close(self.config.close_seconds, after_error=error is not None)


def _end_in_background(engine: TaskEngine) -> None:
    """Closes the engine of an abandoned consumer. A finalizer may run in any thread and cannot await."""
    # A closed loop has ended its tasks.
    with contextlib.suppress(RuntimeError):
        engine.close_soon(_END_SECONDS)


__all__ = ["AsyncConsumer", "ConsumedEvent"]
