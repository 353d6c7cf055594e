"""Handlers, and the tasks that call them."""

import asyncio
from collections.abc import Awaitable, Callable

from millrace_client.consuming.tasks import ConsumerDelivery, TaskEngine

Handler = Callable[[ConsumerDelivery], Awaitable[object]]


class TaskHandling:
    """One run of a handler."""

    def __init__(self, engine: TaskEngine, handler: Handler, *, ordered: bool) -> None:
        self._engine = engine
        self._handle = self._handle_in_order if ordered else self._handle_once
        self._handler = handler

    async def run(self, workers: int) -> None:
        """Works until the engine stops.

        Raises:
            BaseException: What stopped it: a channel that was given up, or what is no Exception out of a handler.
        """
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._work(), name=f"millrace-worker-{number}") for number in range(1, workers + 1)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            # Where one has failed the others finish what is in hand.
            self._engine.stop()
            await asyncio.wait(tasks)
        finally:
            # Whoever cancels the run cancels its handlers; what they had in hand returns.
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end

    async def _work(self) -> None:
        me = asyncio.current_task()
        while (delivery := await self._engine.take()) is not None:
            delivery.taken_by = me
            try:
                await self._handle(delivery)
            finally:
                # The handler may have been cancelled, or have raised what is no Exception.
                if not delivery.is_settled:
                    await delivery.nack()

    async def _handle_once(self, delivery: ConsumerDelivery) -> None:
        try:
            await self._handler(delivery)
        except Exception as error:  # noqa: BLE001 - a handler may raise what it likes; the engine tells of it
            await self._engine.fail(delivery, error)
        else:
            await delivery.ack()

    async def _handle_in_order(self, delivery: ConsumerDelivery) -> None:
        while not delivery.is_settled:
            try:
                await self._handler(delivery)
            except Exception as error:  # noqa: BLE001 - as above
                if await self._engine.wait_for_stop(self._engine.note_failure(delivery, error)):
                    return
            else:
                await delivery.ack()
