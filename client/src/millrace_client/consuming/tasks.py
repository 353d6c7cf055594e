"""The engine of the consumer for asyncio."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, Self

from millrace.v1 import channel_service_pb2 as pb
from millrace_client import _calls
from millrace_client._delivered import Settlement
from millrace_client._forks import forked_error
from millrace_client.aio._connection import Connection
from millrace_client.aio.consume import ConsumeStream
from millrace_client.consuming.bell import Bell
from millrace_client.consuming.config import ConsumerConfig, checked_delay
from millrace_client.consuming.core import ConsumerCloseReport, ConsumerCore, work_seconds_of
from millrace_client.consuming.lanes import Lane, LaneState
from millrace_client.consuming.metrics import ConsumerMetrics
from millrace_client.consuming.tracked import DeliveryState, TrackedDelivery
from millrace_client.errors import CancelledError, StreamEndedError


class Stream(Protocol):
    """What an engine needs of a Consume stream; see `millrace_client.aio.consume.ConsumeStream`."""

    async def next_answer(self) -> pb.ConsumeResponse | None:
        """Waits for the next delivery; None at the end."""

    async def settle(self, settlement: Settlement) -> None:
        """Tells what is to become of a delivery."""

    async def finish(self, timeout_seconds: float | None = None) -> None:
        """Ends it in order, or by force after so long."""


class ConsumerDelivery(TrackedDelivery):
    """Events to work on, then to `ack` or `nack` as a whole; see `millrace_client.ConsumerDelivery`."""

    __slots__ = ("_engine",)

    def __init__(
        self, engine: "TaskEngine", lane: "Lane[ConsumerDelivery]", stream: Stream, answer: pb.ConsumeResponse
    ) -> None:
        super().__init__(lane, stream, answer)
        self._engine = engine

    async def ack(self) -> bool:
        """Removes the events from the channel; waits until that is sent. Repeating it is harmless.

        Returns:
            False where it is too late: the delivery was returned before, or is lost (`is_lost`) because its stream
            broke; then its events come again.
        """
        return await self._engine.settle(self, DeliveryState.ACKED)

    async def nack(self, delay_seconds: float = 0.0) -> bool:
        """Returns the events to their places in the channel; they will be delivered again, here or elsewhere.

        Args:
            delay_seconds: How long this consumer keeps them back before. They count as out for so long: towards
                `prefetch`, and towards `prefetch_bytes_max`. They return at once where the stream ends before that.

        Returns:
            False where it is too late: the delivery was acknowledged before, or is lost.
        """
        return await self._engine.nack(self, checked_delay(delay_seconds))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self._engine.fail(self, error)
        else:
            await self.nack()


class TaskEngine:
    """Reads all lanes, each with a task of its own, and hands out what they bring. For the tasks of one event loop.

    The tasks know the engine, never the consumer, so that a consumer that nobody keeps can be found and closed.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        channels: str | Iterable[str],
        config: ConsumerConfig,
        *,
        open_stream: "Callable[[Lane[ConsumerDelivery]], Awaitable[Stream]] | None" = None,
        chance: random.Random | None = None,
    ) -> None:
        self._core: ConsumerCore[ConsumerDelivery] = ConsumerCore(endpoints, channels, config, self._now, chance)
        self._open_stream = open_stream or self._opened_stream
        self._connections = {lane.endpoint: Connection(config.connection(lane.endpoint)) for lane in self._core.lanes}
        self._starts = {
            lane.channel: _calls.consume_start(lane.channel, self._core.limits) for lane in self._core.lanes
        }
        self._streams: dict[Lane[ConsumerDelivery], Stream] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._settling: set[asyncio.Task[bool]] = set()
        self._held: dict[ConsumerDelivery, asyncio.TimerHandle] = {}
        self._bell = Bell()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process_id = 0
        self._closing: asyncio.Task[None] | None = None
        self._ends_streams = False

    @property
    def config(self) -> ConsumerConfig:
        """The consumer's limits."""
        return self._core.config

    @property
    def lanes(self) -> Sequence[Lane[ConsumerDelivery]]:
        """All channels at all servers."""
        return self._core.lanes

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more is handed out."""
        return self._core.is_stopping

    async def take(self, timeout_seconds: float | None = None) -> ConsumerDelivery | None:
        """Waits for the next delivery; None where none came in time, or none comes any more. May be cancelled.

        Raises:
            MillraceError: A channel at a server was given up.
            ClientForkedError: The consumer belongs to the process that this one was forked from.
        """
        loop = self._begin()
        give_up_at = None if timeout_seconds is None else loop.time() + timeout_seconds
        while not self._core.is_stopping:
            if (delivery := self._core.take()) is not None:
                return delivery
            if not await self._bell.wait(give_up_at):
                return None
        return None

    async def settle(self, delivery: ConsumerDelivery, target: DeliveryState) -> bool:
        """Acknowledges or returns a delivery; tells whether that is what became of it."""
        self._refuse_fork()
        if self._core.intake.settle(delivery, target):
            await self._tell_server(delivery)
        self._ring()
        return delivery.state is target

    async def _tell_server(self, delivery: ConsumerDelivery) -> None:
        is_ack = delivery.state is DeliveryState.ACKED
        try:
            await delivery.stream.settle(Settlement(delivery.delivery_id, is_ack=is_ack))
        except StreamEndedError:
            self._core.intake.note_lost(delivery)

    async def nack(self, delivery: ConsumerDelivery, delay_seconds: float) -> bool:
        """Returns a delivery, perhaps later; tells whether that is what becomes of it."""
        if delay_seconds <= 0:
            return await self.settle(delivery, DeliveryState.NACKED)
        self._refuse_fork()
        if self._core.intake.settle(delivery, DeliveryState.HELD):
            self._held[delivery] = asyncio.get_running_loop().call_later(delay_seconds, self._end_hold, delivery)
        self._ring()
        return delivery.state is DeliveryState.HELD

    def _end_hold(self, delivery: ConsumerDelivery) -> None:
        if self._held.pop(delivery, None) is not None:
            self._settle_apart(delivery, DeliveryState.NACKED)

    def _settle_apart(self, delivery: ConsumerDelivery, target: DeliveryState) -> None:
        settling = asyncio.get_running_loop().create_task(self.settle(delivery, target))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    def drop(self, delivery: ConsumerDelivery) -> None:
        """Returns a delivery from a finalizer, which may run anywhere and cannot await."""
        # A loop that is closed has ended its streams.
        assert self._loop is not None, "it came from one"
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle_apart, delivery, DeliveryState.NACKED)

    async def fail(self, delivery: ConsumerDelivery, error: Exception) -> None:
        """Returns a delivery on which work has failed, after a pause that grows with each time."""
        await self.nack(delivery, self._core.note_handler_failure(delivery, error))

    def note_failure(self, delivery: ConsumerDelivery, error: Exception) -> float:
        """Counts a failure on a delivery that stays in hand; returns after how long to try again."""
        seconds = self._core.note_handler_failure(delivery, error)
        delivery.attempt += 1
        self._ring()
        return seconds

    async def wait_for_stop(self, seconds: float) -> bool:
        """Waits for so long, unless it is stopped before; tells whether it is."""
        return await self._wait_until(lambda: self._core.is_stopping, self._now() + seconds)

    async def _wait_until(self, is_so: Callable[[], bool], give_up_at: float | None) -> bool:
        while not is_so():
            if not await self._bell.wait(give_up_at):
                return is_so()
        return True

    def _ring(self) -> None:
        """Lets all look again who wait for something; hooks and the log are told what happened."""
        self._bell.ring()
        self._core.intake.notes.pass_on()

    def metrics(self) -> ConsumerMetrics:
        """The figures as they are."""
        return self._core.metrics()

    def stop(self) -> None:
        """Hands out nothing more. Does not wait; may be called from anywhere, threads and signal handlers too."""
        self._core.is_stopping = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._bell.ring)

    async def close(self, seconds: float, *, after_error: bool = False) -> ConsumerCloseReport:
        """Ends everything, within so long; see `millrace_client.consuming.threads`."""
        if self._process_id not in (0, os.getpid()):
            # The parent's loop is not here.
            return ConsumerCloseReport(unsettled_deliveries=0, unsettled_events=0, errors=())
        self._core.is_stopping = True
        self._ring()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(
                self._end(seconds, asyncio.current_task(), takers_only=after_error)
            )
        # Whoever waits may be cancelled; the end goes on.
        await asyncio.wait((self._closing,))
        self._closing.result()
        return self._core.report()

    def close_soon(self, seconds: float) -> None:
        """Begins to close, from any thread."""
        if self._loop is not None and self._process_id == os.getpid():
            self._loop.call_soon_threadsafe(self._close_apart, seconds)

    def _close_apart(self, seconds: float) -> None:
        if self._closing is None:
            self._core.is_stopping = True
            self._closing = asyncio.get_running_loop().create_task(self._end(seconds, None, takers_only=False))

    async def _end(self, seconds: float, closer: object, *, takers_only: bool) -> None:
        give_up_at = self._now() + seconds
        work_until = self._now() + work_seconds_of(seconds)
        if self._settling:
            await asyncio.wait(self._settling, timeout=work_seconds_of(seconds))
        await self._wait_until(lambda: not self._core.in_others_hands(closer, takers_only=takers_only), work_until)
        self._core.note_left()
        self._ends_streams = True
        for timer in self._held.values():
            # What is held back returns with its stream.
            timer.cancel()
        self._held.clear()
        seconds_left = max(give_up_at - self._now(), 0.0)
        endings = [asyncio.ensure_future(stream.finish(seconds_left)) for stream in self._streams.values()]
        # A stream that fails to end tells so to the task that reads it, too.
        await asyncio.gather(*endings, return_exceptions=True)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=max(give_up_at - self._now(), 0.0))
            for task in late:
                # It sees to its deliveries before it ends.
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in self._connections.values():
            await connection.close()
        self._ring()

    def _now(self) -> float:
        # Figures are read by other threads, too.
        return time.monotonic() if self._loop is None else self._loop.time()

    def _begin(self) -> asyncio.AbstractEventLoop:
        """Starts the tasks, with the first delivery that is asked for, in the loop that asks."""
        self._refuse_fork()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._process_id = os.getpid()
            if not self._core.is_stopping:
                self._tasks = [self._loop.create_task(self._run_lane(lane)) for lane in self._core.lanes]
        return self._loop

    def _refuse_fork(self) -> None:
        if self._process_id not in (0, os.getpid()):
            raise forked_error(self._process_id)

    async def _opened_stream(self, lane: Lane[ConsumerDelivery]) -> Stream:
        stream = ConsumeStream(self._connections[lane.endpoint], lane.channel, None)
        await stream.start(self._starts[lane.channel])
        return stream

    # What a lane's task does.

    async def _run_lane(self, lane: Lane[ConsumerDelivery]) -> None:
        pause_seconds: float | None = 0.0
        while pause_seconds is not None and not await self.wait_for_stop(pause_seconds):
            pause_seconds = await self._run_stream(lane)
        if not lane.is_over:
            lane.move(LaneState.ENDED)

    async def _run_stream(self, lane: Lane[ConsumerDelivery]) -> float | None:
        """Reads one stream to its end; returns after how long to begin the next."""
        began_at = self._now()
        stream: Stream | None = None
        error: Exception | None = None
        lane.move(LaneState.READING)
        try:
            stream = self._streams[lane] = await self._open_stream(lane)
            if self._ends_streams:
                await stream.finish(0.0)
            await self._read(lane, stream)
        except asyncio.CancelledError:
            # Either this task is cancelled, as loops do with all tasks in the end, or its stream was cut off.
            error = CancelledError(f"the deliveries of {lane.name} were cut off", channel=lane.channel)
        except Exception as broken:  # noqa: BLE001 - where it is a bug, whoever waits for deliveries must hear of it
            error = broken
        self._streams.pop(lane, None)
        for delivery in [held for held in self._held if held.stream is stream]:
            self._held.pop(delivery).cancel()
        pause_seconds = self._core.broke(lane, stream, error, self._now() - began_at)
        self._ring()
        if (task := asyncio.current_task()) and task.cancelling():
            raise asyncio.CancelledError
        return pause_seconds

    async def _read(self, lane: Lane[ConsumerDelivery], stream: Stream) -> None:
        while True:
            await self._wait_until(lambda: self._core.may_read(lane), None)
            # While the consumer stops, what comes is left alone; reading goes on, to see the stream's end.
            if (answer := await stream.next_answer()) is None:
                return
            if self._core.took_in(ConsumerDelivery(self, lane, stream, answer)):
                self._ring()
