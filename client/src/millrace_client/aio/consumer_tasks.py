"""The engine of the asyncio consumer."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, Self

from millrace.v1 import channel_service_pb2 as pb
from millrace_client._deliveries import Settlement
from millrace_client.aio._connection import Connection
from millrace_client.aio.consume import ConsumeStream
from millrace_client.consuming.config import ConsumerConfig, checked_delay
from millrace_client.consuming.core import ConsumerCloseReport, ConsumerCore, ConsumerEngine, work_seconds_of
from millrace_client.consuming.subscription import DeliveryState, Subscription, SubscriptionState, TrackedDelivery
from millrace_client.errors import CancelledError, StreamEndedError


class Stream(Protocol):
    """A Consume stream as the engine needs it; see `millrace_client.aio.consume.ConsumeStream`."""

    async def wait_for_server(self) -> bool:
        """Waits until the server has responded; returns False if the stream has ended."""

    async def next_response(self) -> pb.ConsumeResponse | None:
        """Waits for the next delivery; returns None at the end of the stream."""

    async def settle(self, settlement: Settlement) -> None:
        """Settles a delivery."""

    async def finish(self, timeout_seconds: float | None = None) -> None:
        """Ends the stream, by force after this long."""


class ConsumerDelivery(TrackedDelivery):
    """Events to process, then to `ack` or `nack` together; see `millrace_client.ConsumerDelivery`."""

    __slots__ = ()

    _engine: "TaskEngine"

    async def ack(self) -> bool:
        """Removes the events; see `millrace_client.ConsumerDelivery.ack`. Waits until that is sent."""
        return await self._engine.settle(self, DeliveryState.ACKED)

    async def nack(self, delay_seconds: float = 0.0) -> bool:
        """Returns the events; see `millrace_client.ConsumerDelivery.nack`."""
        return await self._engine.nack(self, checked_delay(delay_seconds))

    async def __aenter__(self) -> Self:
        self._enter_span()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._leave_span()
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self._engine.fail(self, error)
        else:
            await self.nack()


class Notifier:
    """Wakes waiting tasks, each of which checks its own condition. For one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify_all(self) -> None:
        for waiter in self._waiting:
            _wake(waiter)

    async def wait(self, deadline: float | None) -> bool:
        """Waits for the next notification; returns False once the deadline, on the loop's clock, has passed."""
        loop = asyncio.get_running_loop()
        if deadline is not None and deadline <= loop.time():
            return False
        waiter = loop.create_future()
        self._waiting.add(waiter)
        timer = None if deadline is None else loop.call_at(deadline, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
            if timer is not None:
                timer.cancel()
        return True


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class TaskEngine(ConsumerEngine[ConsumerDelivery]):
    """Reads each subscription in its own task, and hands out the deliveries. For the tasks of one event loop.

    The tasks refer to the engine, never to the consumer, so that an abandoned consumer can be finalized.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        channels: str | Iterable[str],
        config: ConsumerConfig,
        *,
        open_stream: "Callable[[Subscription[ConsumerDelivery]], Awaitable[Stream]] | None" = None,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(ConsumerCore(endpoints, channels, config, self._now, chance))
        self._open_stream = open_stream or self._opened_stream
        self._connections = {
            subscription.endpoint: Connection(config.connection(subscription.endpoint))
            for subscription in self.subscriptions
        }
        self._streams: dict[Subscription[ConsumerDelivery], Stream] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._settling: set[asyncio.Task[bool]] = set()
        self._held: dict[ConsumerDelivery, asyncio.TimerHandle] = {}
        self._notifier = Notifier()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Task[None] | None = None
        self._ends_streams = False

    async def take(self, timeout_seconds: float | None = None) -> ConsumerDelivery | None:
        """Waits for the next delivery; returns None after the timeout, or if the consumer is stopping."""
        loop = self._start()
        deadline = None if timeout_seconds is None else loop.time() + timeout_seconds
        while not self._core.is_stopping:
            if (delivery := self._core.take()) is not None:
                delivery.start_span()
                return delivery
            if not await self._notifier.wait(deadline):
                return None
        return None

    async def take_for_loop(self) -> ConsumerDelivery | None:
        """Waits for the next delivery of a loop; returns None at its end. See `ConsumerConfig.idle_seconds`."""
        delivery = await self.take(self.config.idle_seconds)
        if delivery is None:
            self._core.check_connected()
        return delivery

    async def settle(self, delivery: ConsumerDelivery, target: DeliveryState) -> bool:
        """Acknowledges or returns a delivery; returns whether it is in that state now."""
        self._check_process()
        if self._core.buffer.settle(delivery, target):
            await self._inform_server(delivery)
        self._notify()
        return delivery.state is target

    async def _inform_server(self, delivery: ConsumerDelivery) -> None:
        is_ack = delivery.state is DeliveryState.ACKED
        try:
            await delivery.stream.settle(Settlement(delivery.delivery_id, is_ack=is_ack))
        except StreamEndedError:
            self._core.buffer.note_lost(delivery)

    async def nack(self, delivery: ConsumerDelivery, delay_seconds: float) -> bool:
        """Returns a delivery, perhaps after a delay; returns whether it is in that state now."""
        if delay_seconds <= 0:
            return await self.settle(delivery, DeliveryState.NACKED)
        self._check_process()
        if self._core.buffer.settle(delivery, DeliveryState.HELD):
            self._held[delivery] = asyncio.get_running_loop().call_later(delay_seconds, self._end_hold, delivery)
        self._notify()
        return delivery.state is DeliveryState.HELD

    def _end_hold(self, delivery: ConsumerDelivery) -> None:
        if self._held.pop(delivery, None) is not None:
            self._settle_apart(delivery, DeliveryState.NACKED)

    def _settle_apart(self, delivery: ConsumerDelivery, target: DeliveryState) -> None:
        settling = asyncio.get_running_loop().create_task(self.settle(delivery, target))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    def drop(self, delivery: ConsumerDelivery) -> None:
        """Returns a delivery. For a finalizer, which may run in any thread and cannot await."""
        assert self._loop is not None, "the delivery came from a stream"
        # A closed loop has ended its streams.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle_apart, delivery, DeliveryState.NACKED)

    async def fail(self, delivery: ConsumerDelivery, error: Exception) -> None:
        """Returns a delivery after a failed handler, with a delay that grows with each failure."""
        await self.nack(delivery, self._core.note_handler_failure(delivery, error))

    def note_failure(self, delivery: ConsumerDelivery, error: Exception) -> float:
        """Counts a failed handler of a delivery that stays in hand; returns after how long to try again."""
        seconds = self._core.note_handler_failure(delivery, error)
        delivery.attempt += 1
        self._notify()
        return seconds

    async def wait_for_stop(self, seconds: float) -> bool:
        """Waits for this long, or until the consumer is stopped; returns whether it is stopped."""
        return await self._wait_until(lambda: self._core.is_stopping, self._now() + seconds)

    async def _wait_until(self, is_so: Callable[[], bool], deadline: float | None) -> bool:
        while not is_so():
            if not await self._notifier.wait(deadline):
                return is_so()
        return True

    def _notify(self) -> None:
        """Wakes all waiting tasks, and makes the deferred calls of hooks and the log."""
        self._notifier.notify_all()
        self._core.buffer.deferred.run()

    def stop(self) -> None:
        """Stops handing out deliveries. Does not wait; may be called from any thread, also from a signal handler."""
        self._core.is_stopping = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._notifier.notify_all)

    async def close(self, seconds: float, *, after_error: bool = False) -> ConsumerCloseReport:
        """Closes the engine; see `millrace_client.consuming.threads`."""
        if self._process_id not in (None, os.getpid()):
            # The parent's event loop does not run here.
            return ConsumerCloseReport(unsettled_deliveries=0, unsettled_events=0, errors=())
        self._core.is_stopping = True
        self._notify()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(
                self._end(seconds, asyncio.current_task(), takers_only=after_error)
            )
        # The caller may be cancelled; closing continues.
        await asyncio.wait((self._closing,))
        self._closing.result()
        return self._core.report()

    def close_soon(self, seconds: float) -> None:
        if self._loop is not None and self._process_id == os.getpid():
            self._loop.call_soon_threadsafe(self._close_apart, seconds)

    def _close_apart(self, seconds: float) -> None:
        if self._closing is None:
            self._core.is_stopping = True
            self._closing = asyncio.get_running_loop().create_task(self._end(seconds, None, takers_only=False))

    async def _end(self, seconds: float, closer: object, *, takers_only: bool) -> None:
        deadline = self._now() + seconds
        work_until = self._now() + work_seconds_of(seconds)
        if self._settling:
            await asyncio.wait(self._settling, timeout=work_seconds_of(seconds))
        await self._wait_until(lambda: not self._core.is_held_by_others(closer, takers_only=takers_only), work_until)
        self._core.note_unfinished()
        self._ends_streams = True
        for timer in self._held.values():
            # Deliveries that are held back return when their stream ends.
            timer.cancel()
        self._held.clear()
        seconds_left = max(deadline - self._now(), 0.0)
        endings = [asyncio.ensure_future(stream.finish(seconds_left)) for stream in self._streams.values()]
        # The task that reads a stream sees its failure to end, too.
        await asyncio.gather(*endings, return_exceptions=True)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=max(deadline - self._now(), 0.0))
            for task in late:
                # It settles its deliveries before it ends.
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in self._connections.values():
            await connection.close()
        self._notify()

    def _now(self) -> float:
        # Other threads read metrics, too.
        return time.monotonic() if self._loop is None else self._loop.time()

    def _start(self) -> asyncio.AbstractEventLoop:
        """Starts the tasks with the first `take`, in the event loop of the caller."""
        self._check_process()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._process_id = os.getpid()
            if not self._core.is_stopping:
                self._tasks = [
                    self._loop.create_task(self._run_subscription(subscription)) for subscription in self.subscriptions
                ]
        return self._loop

    async def _opened_stream(self, subscription: Subscription[ConsumerDelivery]) -> Stream:
        connection, channel = self._connections[subscription.endpoint], subscription.channel
        # A stream that ended because its server lost the channel is started again at the new owner.
        endpoint = connection.owners.next_endpoint(channel, subscription.error)
        stream = ConsumeStream(connection.at(endpoint), channel, None)
        await stream.start(self._core.starts[channel])
        return stream

    # In a subscription's task.

    async def _run_subscription(self, subscription: Subscription[ConsumerDelivery]) -> None:
        pause_seconds: float | None = 0.0
        while pause_seconds is not None and not await self.wait_for_stop(pause_seconds):
            pause_seconds = await self._run_stream(subscription)
        if not subscription.is_over:
            subscription.move(SubscriptionState.ENDED)

    async def _run_stream(self, subscription: Subscription[ConsumerDelivery]) -> float | None:
        """Reads one stream to its end; returns after how long to start the next one."""
        started_at = self._now()
        stream: Stream | None = None
        error: Exception | None = None
        subscription.move(SubscriptionState.READING)
        try:
            stream = self._streams[subscription] = await self._open_stream(subscription)
            if self._ends_streams:
                await stream.finish(0.0)
            await self._read(subscription, stream)
        except asyncio.CancelledError:
            # Either this task is cancelled, as a loop does with all tasks when it ends, or its stream was cancelled.
            error = CancelledError(
                f"the deliveries of {subscription.name} were cancelled", channel=subscription.channel
            )
        except Exception as broken:  # noqa: BLE001 - even a bug must reach the caller that waits for deliveries
            error = broken
        self._streams.pop(subscription, None)
        for delivery in [held for held in self._held if held.stream is stream]:
            self._held.pop(delivery).cancel()
        pause_seconds = self._core.note_stream_end(subscription, stream, error, self._now() - started_at)
        self._notify()
        if (task := asyncio.current_task()) and task.cancelling():
            raise asyncio.CancelledError
        return pause_seconds

    async def _read(self, subscription: Subscription[ConsumerDelivery], stream: Stream) -> None:
        subscription.is_connected = await stream.wait_for_server()
        while True:
            await self._wait_until(lambda: self._core.may_read(subscription), None)
            # While the consumer is stopping, deliveries are ignored; reading continues until the stream's end.
            if (response := await stream.next_response()) is None:
                return
            if self._core.accept(ConsumerDelivery(self, subscription, stream, response)):
                self._notify()


Handler = Callable[[ConsumerDelivery], Awaitable[object]]


class HandlerTasks:
    """Runs a handler in tasks."""

    def __init__(self, engine: TaskEngine, handler: Handler, *, ordered: bool) -> None:
        self._engine = engine
        self._handle = self._handle_in_order if ordered else self._handle_once
        self._handler = handler

    async def run(self, workers: int) -> None:
        """Runs the handler until the engine stops; raises what a channel or a handler raised."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._work(), name=f"millrace-worker-{number}") for number in range(1, workers + 1)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            # After a failure the other tasks finish their deliveries.
            self._engine.stop()
            await asyncio.wait(tasks)
        finally:
            # Cancelling the run cancels its handlers; their deliveries return.
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
                # The handler may have been cancelled, or have raised something other than an Exception.
                if not delivery.is_settled:
                    await delivery.nack()

    async def _handle_once(self, delivery: ConsumerDelivery) -> None:
        try:
            with delivery.in_span():
                await self._handler(delivery)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything; the engine reports it
            await self._engine.fail(delivery, error)
        else:
            await delivery.ack()

    async def _handle_in_order(self, delivery: ConsumerDelivery) -> None:
        while not delivery.is_settled:
            try:
                with delivery.in_span():
                    await self._handler(delivery)
            except Exception as error:  # noqa: BLE001 - as above
                if await self._engine.wait_for_stop(self._engine.note_failure(delivery, error)):
                    return
            else:
                await delivery.ack()
