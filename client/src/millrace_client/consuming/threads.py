"""The engine of the consumer for threads."""

import contextlib
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, Self

from millrace.v1 import channel_service_pb2 as pb
from millrace_client import _calls
from millrace_client._connection import Connection
from millrace_client._delivered import Settlement
from millrace_client._forks import forked_error
from millrace_client._watchdog import Watch, Watchdog
from millrace_client.consume import ConsumeStream
from millrace_client.consuming.config import ConsumerConfig, checked_delay
from millrace_client.consuming.core import ConsumerCloseReport, ConsumerCore, work_seconds_of
from millrace_client.consuming.lanes import Lane, LaneState
from millrace_client.consuming.metrics import ConsumerMetrics
from millrace_client.consuming.tracked import DeliveryState, TrackedDelivery
from millrace_client.errors import StreamEndedError

_LATE_SECONDS = 1.0
"""How long a stream has to end that was opened while the consumer closed."""


class Stream(Protocol):
    """What an engine needs of a Consume stream; see `ConsumeStream`."""

    def next_answer(self) -> pb.ConsumeResponse | None:
        """Waits for the next delivery; None at the end."""

    def settle(self, settlement: Settlement) -> None:
        """Tells what is to become of a delivery; does not wait."""

    def end_sending(self, seconds: float) -> None:
        """Ends it in order, or by force after so long; does not wait."""


class ConsumerDelivery(TrackedDelivery):
    """Events to work on, then to `ack` or `nack` as a whole. May be handed to another thread.

    Iterating gives `Event`s, oldest first; `bodies()` gives the bare bodies quicker. In a `with` statement it is
    acknowledged at the end of the block, and returned where that raises; then it comes again after a growing pause.

    Delivery is at least once: where the connection breaks, what was not acknowledged comes again, and so may what was
    acknowledged just then.

    Attributes:
        attempt: 1, and one more for each time that this consumer's handlers failed on the same first event.
    """

    __slots__ = ("_engine",)

    def __init__(
        self, engine: "ThreadedEngine", lane: "Lane[ConsumerDelivery]", stream: Stream, answer: pb.ConsumeResponse
    ) -> None:
        super().__init__(lane, stream, answer)
        self._engine = engine

    def ack(self) -> bool:
        """Removes the events from the channel. Returns at once; repeating it is harmless.

        Returns:
            False where it is too late: the delivery was returned before, or is lost (`is_lost`) because its stream
            broke; then its events come again.
        """
        return self._engine.settle(self, DeliveryState.ACKED)

    def nack(self, delay_seconds: float = 0.0) -> bool:
        """Returns the events to their places in the channel; they will be delivered again, here or elsewhere.

        Args:
            delay_seconds: How long this consumer keeps them back before. They count as out for so long: towards
                `prefetch`, and towards `prefetch_bytes_max`. They return at once where the stream ends before that.

        Returns:
            False where it is too late: the delivery was acknowledged before, or is lost.
        """
        return self._engine.nack(self, checked_delay(delay_seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self._engine.fail(self, error)
        else:
            self.nack()


class ThreadedEngine:
    """Reads all lanes, each with a thread of its own, and hands out what they bring. Threads may share it.

    The threads know the engine, never the consumer, so that a consumer that nobody keeps can be found and closed.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        channels: str | Iterable[str],
        config: ConsumerConfig,
        *,
        open_stream: "Callable[[Lane[ConsumerDelivery]], Stream] | None" = None,
        chance: random.Random | None = None,
    ) -> None:
        # Guards the core. Nobody does I/O, or calls strangers' code, while holding it.
        lock = threading.RLock()
        # Of one lock: for those that wait for deliveries, and for those that wait for anything else.
        self._arrived = threading.Condition(lock)
        self._changed = threading.Condition(lock)
        self._core: ConsumerCore[ConsumerDelivery] = ConsumerCore(endpoints, channels, config, time.monotonic, chance)
        self._open_stream = open_stream or self._opened_stream
        self._connections = {lane.endpoint: Connection(config.connection(lane.endpoint)) for lane in self._core.lanes}
        self._starts = {
            lane.channel: _calls.consume_start(lane.channel, self._core.limits) for lane in self._core.lanes
        }
        self._streams: dict[Lane[ConsumerDelivery], Stream] = {}
        self._threads: list[threading.Thread] = []
        self._watchdog = Watchdog()
        self._held: dict[ConsumerDelivery, Watch] = {}
        # What loops dropped. A finalizer may put into it, whatever locks are held around it.
        self._dropped: queue.SimpleQueue[ConsumerDelivery] = queue.SimpleQueue()
        self._process_id: int | None = None
        self._is_closing = False
        self._ends_streams = False
        self._closed = threading.Event()

    @property
    def config(self) -> ConsumerConfig:
        """The consumer's limits."""
        return self._core.config

    @property
    def lanes(self) -> "Sequence[Lane[ConsumerDelivery]]":
        """All channels at all servers."""
        return self._core.lanes

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more is handed out."""
        return self._core.is_stopping

    def take(self, timeout_seconds: float | None = None) -> ConsumerDelivery | None:
        """Waits for the next delivery; None where none came in time, or none comes any more.

        Raises:
            MillraceError: A channel at a server was given up.
            ClientForkedError: The consumer belongs to the process that this one was forked from.
        """
        self._begin()
        give_up_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._locked():
            while not self._core.is_stopping:
                self._return_dropped()
                if (delivery := self._core.take()) is not None:
                    return delivery
                remaining = None if give_up_at is None else give_up_at - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return None
                self._arrived.wait(remaining)
        return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock; afterwards hooks and the log are told what happened."""
        with self._changed:
            yield
        self._core.intake.notes.pass_on()

    def settle(self, delivery: ConsumerDelivery, target: DeliveryState) -> bool:
        """Acknowledges or returns a delivery; tells whether that is what became of it."""
        self._refuse_fork()
        with self._locked():
            return self._settle(delivery, target)

    def _settle(self, delivery: ConsumerDelivery, target: DeliveryState) -> bool:
        if self._core.intake.settle(delivery, target) and target is not DeliveryState.HELD:
            self._tell_server(delivery)
        # There may be room now, and somebody may wait for what is in hand.
        self._changed.notify_all()
        return delivery.state is target

    def _tell_server(self, delivery: ConsumerDelivery) -> None:
        is_ack = delivery.state is DeliveryState.ACKED
        try:
            delivery.stream.settle(Settlement(delivery.delivery_id, is_ack=is_ack))
        except StreamEndedError:
            self._core.intake.note_lost(delivery)

    def nack(self, delivery: ConsumerDelivery, delay_seconds: float) -> bool:
        """Returns a delivery, perhaps later; tells whether that is what becomes of it."""
        self._refuse_fork()
        with self._locked():
            return self._nack(delivery, delay_seconds)

    def _nack(self, delivery: ConsumerDelivery, delay_seconds: float) -> bool:
        if delay_seconds <= 0:
            return self._settle(delivery, DeliveryState.NACKED)
        was_held = delivery.state is DeliveryState.HELD
        is_held = self._settle(delivery, DeliveryState.HELD)
        if is_held and not was_held:
            watch = self._held[delivery] = self._watchdog.watch(lambda: self._end_hold(delivery))
            watch.arm(delay_seconds)
        return is_held

    def _end_hold(self, delivery: ConsumerDelivery) -> None:
        """Runs on the watchdog's thread."""
        with self._locked():
            if (watch := self._held.pop(delivery, None)) is not None:
                watch.close()
                self._settle(delivery, DeliveryState.NACKED)

    def fail(self, delivery: ConsumerDelivery, error: Exception) -> None:
        """Returns a delivery on which work has failed, after a pause that grows with each time."""
        self._refuse_fork()
        with self._locked():
            self._nack(delivery, self._core.note_handler_failure(delivery, error))

    def note_failure(self, delivery: ConsumerDelivery, error: Exception) -> float:
        """Counts a failure on a delivery that stays in hand; returns after how long to try again."""
        with self._locked():
            delivery.attempt += 1
            return self._core.note_handler_failure(delivery, error)

    def wait_for_stop(self, seconds: float) -> bool:
        """Waits for so long, unless it is stopped before; tells whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._core.is_stopping, seconds)

    def drop(self, delivery: ConsumerDelivery) -> None:
        """Returns a delivery from a finalizer, which may run anywhere and must not wait."""
        self._dropped.put(delivery)
        # All others may be waiting for just this delivery. At the program's end, closing sees to it.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._settle_dropped, name="millrace-consumer-drop", daemon=True).start()

    def _settle_dropped(self) -> None:
        with self._locked():
            self._return_dropped()

    def _return_dropped(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._settle(self._dropped.get_nowait(), DeliveryState.NACKED)

    def metrics(self) -> ConsumerMetrics:
        """The figures as they are."""
        with self._changed:
            return self._core.metrics()

    def stop(self) -> None:
        """Hands out nothing more. Does not wait; may be called from anywhere, signal handlers too."""
        self._core.is_stopping = True
        # A signal handler may run between another's look and its wait; only a thread that needs the lock is heard then.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._wake_all, name="millrace-consumer-stop", daemon=True).start()

    def _wake_all(self) -> None:
        with self._changed:
            self._arrived.notify_all()
            self._changed.notify_all()

    def close(self, seconds: float, *, after_error: bool = False) -> ConsumerCloseReport:
        """Ends everything, within so long; see `Consumer.close`.

        Args:
            seconds: How long that may take.
            after_error: Wait only for loops and handlers of others, not for what somebody received and may have left.
        """
        if self._process_id not in (None, os.getpid()):
            # The parent's threads are not here, and its locks may be held for ever.
            return ConsumerCloseReport(unsettled_deliveries=0, unsettled_events=0, errors=())
        give_up_at = time.monotonic() + seconds
        with self._changed:
            self._core.is_stopping = True
            self._wake_all()
            is_first, self._is_closing = not self._is_closing, True
        if is_first:
            self._end(seconds, give_up_at, takers_only=after_error)
        else:
            self._closed.wait(seconds)
        with self._changed:
            return self._core.report()

    def end_at_exit(self, seconds: float) -> None:
        """Closes where that was not done, as the program ends: nobody works on anything any more."""
        if self._process_id != os.getpid():
            return
        with self._changed:
            for delivery in self._core.intake.in_hand():
                delivery.taken_by = threading.current_thread()
        self.close(seconds)

    def _end(self, seconds: float, give_up_at: float, *, takers_only: bool) -> None:
        me = threading.current_thread()
        try:
            with self._locked():
                self._return_dropped()
                self._changed.wait_for(
                    lambda: not self._core.in_others_hands(me, takers_only=takers_only), work_seconds_of(seconds)
                )
            for stream in self._last_streams():
                stream.end_sending(max(give_up_at - time.monotonic(), 0.0))
            for thread in self._threads:
                if thread is not me:
                    thread.join(max(give_up_at - time.monotonic(), 0.0))
        finally:
            for connection in self._connections.values():
                # Cuts off what did not end in time.
                connection.close()
            self._closed.set()

    def _last_streams(self) -> list[Stream]:
        """The streams that are to be ended; those that a thread is just opening find it out for themselves."""
        with self._changed:
            self._core.note_left()
            self._ends_streams = True
            # What is held back returns with its stream.
            for watch in self._held.values():
                watch.close()
            self._held.clear()
            return list(self._streams.values())

    def _begin(self) -> None:
        """Starts the threads, with the first delivery that is asked for, in the process that asks."""
        self._refuse_fork()
        if self._process_id is None:
            with self._changed:
                self._start_threads()

    def _start_threads(self) -> None:
        if self._process_id is not None or self._core.is_stopping:
            return
        self._process_id = os.getpid()
        for lane in self._core.lanes:
            name = f"millrace-consumer-{lane.name}"
            thread = threading.Thread(target=self._run_lane, args=(lane,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _refuse_fork(self) -> None:
        if self._process_id not in (None, os.getpid()):
            raise forked_error(self._process_id)

    def _opened_stream(self, lane: Lane[ConsumerDelivery]) -> Stream:
        return ConsumeStream(self._connections[lane.endpoint], lane.channel, self._starts[lane.channel], None)

    # What a lane's thread does.

    def _run_lane(self, lane: Lane[ConsumerDelivery]) -> None:
        pause_seconds: float | None = 0.0
        while pause_seconds is not None and not self.wait_for_stop(pause_seconds):
            pause_seconds = self._run_stream(lane)
        with self._changed:
            if not lane.is_over:
                lane.move(LaneState.ENDED)

    def _run_stream(self, lane: Lane[ConsumerDelivery]) -> float | None:
        """Reads one stream to its end; returns after how long to begin the next."""
        began_at = time.monotonic()
        stream: Stream | None = None
        error: Exception | None = None
        with self._changed:
            lane.move(LaneState.READING)
        try:
            stream = self._open_stream(lane)
            self._note_stream(lane, stream)
            self._read(lane, stream)
        except Exception as broken:  # noqa: BLE001 - where it is a bug, whoever waits for deliveries must hear of it
            error = broken
        with self._locked():
            self._streams.pop(lane, None)
            self._forget_held(stream)
            pause_seconds = self._core.broke(lane, stream, error, time.monotonic() - began_at)
            self._wake_all()
        return pause_seconds

    def _forget_held(self, stream: Stream | None) -> None:
        for delivery in [held for held in self._held if held.stream is stream]:
            self._held.pop(delivery).close()

    def _note_stream(self, lane: Lane[ConsumerDelivery], stream: Stream) -> None:
        with self._changed:
            self._streams[lane] = stream
            is_late = self._ends_streams
        if is_late:
            stream.end_sending(_LATE_SECONDS)

    def _read(self, lane: Lane[ConsumerDelivery], stream: Stream) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._core.may_read(lane))
            # While the consumer stops, what comes is left alone; reading goes on, to see the stream's end.
            if (answer := stream.next_answer()) is None:
                return
            delivery = ConsumerDelivery(self, lane, stream, answer)
            with self._locked():
                if self._core.took_in(delivery):
                    self._arrived.notify()
