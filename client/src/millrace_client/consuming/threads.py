"""The engine of the synchronous consumer."""

import contextlib
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, Self

from millrace.v1 import channel_service_pb2 as pb
from millrace_client._connection import Connection
from millrace_client._deliveries import Settlement
from millrace_client._watchdog import Watch, Watchdog
from millrace_client.consume import ConsumeStream
from millrace_client.consuming.config import ConsumerConfig, checked_delay
from millrace_client.consuming.core import ConsumerCloseReport, ConsumerCore, ConsumerEngine, work_seconds_of
from millrace_client.consuming.metrics import ConsumerMetrics
from millrace_client.consuming.subscription import DeliveryState, Subscription, SubscriptionState, TrackedDelivery
from millrace_client.errors import StreamEndedError

_LATE_SECONDS = 1.0
"""How long a stream may take to end that was opened while the consumer was closing."""

_CANCEL_SECONDS_MAX = 1.0


class Stream(Protocol):
    """A Consume stream as the engine needs it; see `ConsumeStream`."""

    def wait_for_server(self) -> bool:
        """Waits until the server has responded; returns False if the stream has ended."""

    def next_response(self) -> pb.ConsumeResponse | None:
        """Waits for the next delivery; returns None at the end of the stream."""

    def settle(self, settlement: Settlement) -> None:
        """Settles a delivery; does not wait."""

    def end_sending(self, seconds: float) -> None:
        """Closes the sending side, and cancels the stream after this long; does not wait."""


class ConsumerDelivery(TrackedDelivery):
    """Events to process, then to `ack` or `nack` together. May be passed to another thread.

    Iteration yields `Event`s, oldest first; `bodies()` returns the bodies faster. A `with` statement acknowledges the
    delivery at the end of the block, and returns it if the block raises; it is then delivered again after a growing
    pause.

    Delivery is at least once: when the connection breaks, events that were not acknowledged are delivered again, and
    so may be those that were acknowledged at that moment.

    Attributes:
        attempt: 1 plus the number of times that this consumer's handlers failed on the same first event.
    """

    __slots__ = ()

    _engine: "ThreadedEngine"

    def ack(self) -> bool:
        """Removes the events from the channel. Returns at once; repeating it is harmless.

        Returns:
            False if it is too late: the delivery was returned before, or is lost (`is_lost`) because its stream broke;
            then its events will be delivered again.
        """
        return self._engine.settle(self, DeliveryState.ACKED)

    def nack(self, delay_seconds: float = 0.0) -> bool:
        """Returns the events to their positions in the channel; they will be delivered again, to any consumer.

        Args:
            delay_seconds: How long this consumer holds them back first. Until then they count towards `prefetch` and
                `prefetch_bytes_max`; they return at once if the stream ends.

        Returns:
            False if it is too late: the delivery was acknowledged before, or is lost.
        """
        return self._engine.nack(self, checked_delay(delay_seconds))

    def __enter__(self) -> Self:
        self._enter_span()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._leave_span()
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self._engine.fail(self, error)
        else:
            self.nack()


class ThreadedEngine(ConsumerEngine[ConsumerDelivery]):
    """Reads each subscription in its own thread, and hands out the deliveries. Threads may share it.

    The threads refer to the engine, never to the consumer, so that an abandoned consumer can be finalized.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        channels: str | Iterable[str],
        config: ConsumerConfig,
        *,
        open_stream: "Callable[[Subscription[ConsumerDelivery]], Stream] | None" = None,
        chance: random.Random | None = None,
    ) -> None:
        # Guards the core. No I/O is done and no user code is called while it is held.
        self._lock = lock = threading.RLock()
        # Two conditions of one lock: for callers that wait for deliveries, and for all other waits.
        self._arrived = threading.Condition(lock)
        self._changed = threading.Condition(lock)
        super().__init__(ConsumerCore(endpoints, channels, config, time.monotonic, chance))
        self._open_stream = open_stream or self._opened_stream
        self._connections = {
            subscription.endpoint: Connection(config.connection(subscription.endpoint))
            for subscription in self.subscriptions
        }
        self._streams: dict[Subscription[ConsumerDelivery], Stream] = {}
        self._threads: list[threading.Thread] = []
        self._watchdog = Watchdog()
        self._held: dict[ConsumerDelivery, Watch] = {}
        # Deliveries that loops dropped. A finalizer may add to it, whatever locks are held at that moment.
        self._dropped: queue.SimpleQueue[ConsumerDelivery] = queue.SimpleQueue()
        self._is_closing = False
        self._ends_streams = False
        self._closed = threading.Event()

    def take(self, timeout_seconds: float | None = None) -> ConsumerDelivery | None:
        """Waits for the next delivery; returns None after the timeout, or if the consumer is stopping."""
        self._start()
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        delivery: ConsumerDelivery | None = None
        try:
            # Not `_locked`, whose own code Ctrl-C may interrupt while the lock is held.
            with self._lock:
                while not self._core.is_stopping:
                    self._return_dropped()
                    if (delivery := self._core.take()) is not None:
                        break
                    remaining = None if deadline is None else deadline - time.monotonic()
                    if remaining is not None and remaining <= 0:
                        break
                    self._arrived.wait(remaining)
            self._core.buffer.deferred.run()
            if delivery is not None:
                delivery.start_span()
        except BaseException:
            # Ctrl-C, for example: the caller does not get it.
            if delivery is not None:
                self.drop(delivery)
            raise
        return delivery

    def take_for_loop(self) -> ConsumerDelivery | None:
        """Waits for the next delivery of a loop; returns None at its end. See `ConsumerConfig.idle_seconds`."""
        delivery = self.take(self.config.idle_seconds)
        if delivery is None:
            with self._changed:
                self._core.check_connected()
        return delivery

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock; afterwards makes the deferred calls of hooks and the log."""
        with self._changed:
            yield
        self._core.buffer.deferred.run()

    def settle(self, delivery: ConsumerDelivery, target: DeliveryState) -> bool:
        """Acknowledges or returns a delivery; returns whether it is in that state now."""
        self._check_process()
        with self._locked():
            return self._settle(delivery, target)

    def _settle(self, delivery: ConsumerDelivery, target: DeliveryState) -> bool:
        if self._core.buffer.settle(delivery, target) and target is not DeliveryState.HELD:
            self._inform_server(delivery)
        # There may be space now, and another thread may wait for deliveries in hand.
        self._changed.notify_all()
        return delivery.state is target

    def _inform_server(self, delivery: ConsumerDelivery) -> None:
        is_ack = delivery.state is DeliveryState.ACKED
        try:
            delivery.stream.settle(Settlement(delivery.delivery_id, is_ack=is_ack))
        except StreamEndedError:
            self._core.buffer.note_lost(delivery)

    def nack(self, delivery: ConsumerDelivery, delay_seconds: float) -> bool:
        """Returns a delivery, perhaps after a delay; returns whether it is in that state now."""
        self._check_process()
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
        """Returns a delivery after a failed handler, with a delay that grows with each failure."""
        self._check_process()
        with self._locked():
            self._nack(delivery, self._core.note_handler_failure(delivery, error))

    def note_failure(self, delivery: ConsumerDelivery, error: Exception) -> float:
        """Counts a failed handler of a delivery that stays in hand; returns after how long to try again."""
        with self._locked():
            delivery.attempt += 1
            return self._core.note_handler_failure(delivery, error)

    def wait_for_stop(self, seconds: float) -> bool:
        """Waits for this long, or until the consumer is stopped; returns whether it is stopped."""
        with self._changed:
            return self._changed.wait_for(lambda: self._core.is_stopping, seconds)

    def drop(self, delivery: ConsumerDelivery) -> None:
        """Returns a delivery. For a finalizer, which may run in any thread and must not wait."""
        self._dropped.put(delivery)
        # All other threads may be waiting for this delivery. When the program exits, closing returns it.
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
        with self._changed:
            return self._core.metrics()

    def stop(self) -> None:
        """Stops handing out deliveries. Does not wait; may be called from anywhere, also from a signal handler."""
        self._core.is_stopping = True
        # A signal handler may run between a check and a wait of its own thread; only another thread can wake that one.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._wake_all, name="millrace-consumer-stop", daemon=True).start()

    def _wake_all(self) -> None:
        with self._changed:
            self._arrived.notify_all()
            self._changed.notify_all()

    def close(self, seconds: float, *, after_error: bool = False) -> ConsumerCloseReport:
        """Closes the engine; see `Consumer.close`.

        After an error it does not wait for deliveries from `receive`, which may be abandoned.
        """
        if self._process_id not in (None, os.getpid()):
            # The parent's threads do not exist here, and its locks may be held forever.
            return ConsumerCloseReport(unsettled_deliveries=0, unsettled_events=0, errors=())
        deadline = time.monotonic() + seconds
        with self._changed:
            self._core.is_stopping = True
            self._wake_all()
            is_first, self._is_closing = not self._is_closing, True
        if is_first:
            self._end(seconds, deadline, takers_only=after_error)
        else:
            self._closed.wait(seconds)
        with self._changed:
            return self._core.report()

    def end_at_exit(self, seconds: float) -> None:
        """Closes an open engine when the program exits: no delivery is being processed any more."""
        if self._process_id != os.getpid():
            return
        with self._changed:
            for delivery in self._core.buffer.in_hand():
                delivery.taken_by = threading.current_thread()
        self.close(seconds)

    def _end(self, seconds: float, deadline: float, *, takers_only: bool) -> None:
        me = threading.current_thread()
        try:
            with self._locked():
                self._return_dropped()
                self._changed.wait_for(
                    lambda: not self._core.is_held_by_others(me, takers_only=takers_only), work_seconds_of(seconds)
                )
            for stream in self._last_streams():
                stream.end_sending(max(deadline - time.monotonic(), 0.0))
            self._join_threads(deadline)
        finally:
            for connection in self._connections.values():
                # Cancels the streams that did not end in time.
                connection.close()
            # A canceled stream ends at once, and the report says that it did not end by itself.
            self._join_threads(time.monotonic() + _CANCEL_SECONDS_MAX)
            self._closed.set()

    def _join_threads(self, deadline: float) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))

    def _last_streams(self) -> list[Stream]:
        """Returns the streams to be ended. A thread that is just opening one checks `_ends_streams` itself."""
        with self._changed:
            self._core.note_unfinished()
            self._ends_streams = True
            # Deliveries that are held back return when their stream ends.
            for watch in self._held.values():
                watch.close()
            self._held.clear()
            return list(self._streams.values())

    def _start(self) -> None:
        """Starts the threads with the first `take`, in the process of the caller."""
        self._check_process()
        if self._process_id is None:
            with self._changed:
                self._start_threads()

    def _start_threads(self) -> None:
        if self._process_id is not None or self._core.is_stopping:
            return
        self._process_id = os.getpid()
        for subscription in self.subscriptions:
            name = f"millrace-consumer-{subscription.name}"
            thread = threading.Thread(target=self._run_subscription, args=(subscription,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _opened_stream(self, subscription: Subscription[ConsumerDelivery]) -> Stream:
        connection, channel = self._connections[subscription.endpoint], subscription.channel
        # A stream that ended because its server lost the channel is started again at the new owner.
        endpoint = connection.owners.next_endpoint(channel, subscription.error)
        return ConsumeStream(connection.at(endpoint), channel, self._core.starts[channel], None)

    # In a subscription's thread.

    def _run_subscription(self, subscription: Subscription[ConsumerDelivery]) -> None:
        pause_seconds: float | None = 0.0
        while pause_seconds is not None and not self.wait_for_stop(pause_seconds):
            pause_seconds = self._run_stream(subscription)
        with self._changed:
            if not subscription.is_over:
                subscription.move(SubscriptionState.ENDED)

    def _run_stream(self, subscription: Subscription[ConsumerDelivery]) -> float | None:
        """Reads one stream to its end; returns after how long to start the next one."""
        started_at = time.monotonic()
        stream: Stream | None = None
        error: Exception | None = None
        with self._changed:
            subscription.move(SubscriptionState.READING)
        try:
            stream = self._open_stream(subscription)
            self._note_stream(subscription, stream)
            self._read(subscription, stream)
        except Exception as broken:  # noqa: BLE001 - even a bug must reach the caller that waits for deliveries
            error = broken
        with self._locked():
            self._streams.pop(subscription, None)
            self._forget_held(stream)
            pause_seconds = self._core.note_stream_end(subscription, stream, error, time.monotonic() - started_at)
            self._wake_all()
        return pause_seconds

    def _forget_held(self, stream: Stream | None) -> None:
        for delivery in [held for held in self._held if held.stream is stream]:
            self._held.pop(delivery).close()

    def _note_stream(self, subscription: Subscription[ConsumerDelivery], stream: Stream) -> None:
        with self._changed:
            self._streams[subscription] = stream
            is_late = self._ends_streams
        if is_late:
            stream.end_sending(_LATE_SECONDS)

    def _read(self, subscription: Subscription[ConsumerDelivery], stream: Stream) -> None:
        subscription.is_connected = stream.wait_for_server()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._core.may_read(subscription))
            # While the consumer is stopping, deliveries are ignored; reading continues until the stream's end.
            if (response := stream.next_response()) is None:
                return
            delivery = ConsumerDelivery(self, subscription, stream, response)
            with self._locked():
                if self._core.accept(delivery):
                    self._arrived.notify()


Handler = Callable[[ConsumerDelivery], object]


class HandlerThreads:
    """Runs a handler in threads."""

    def __init__(self, engine: ThreadedEngine, handler: Handler, *, ordered: bool) -> None:
        self._engine = engine
        self._handle = self._handle_in_order if ordered else self._handle_once
        self._handler = handler
        self._failures: list[BaseException] = []

    def run(self, workers: int) -> None:
        """Runs the handler until the engine stops; raises what a channel or a handler raised."""
        if workers == 1:
            self._work()
            return
        # Daemons: a handler that never returns must not keep the program from ending.
        threads = [
            threading.Thread(target=self._work_apart, name=f"millrace-worker-{number}", daemon=True)
            for number in range(1, workers + 1)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            # Ctrl-C, for example: deliveries in hand are finished within the time for closing.
            self._engine.stop()
            raise
        if self._failures:
            raise self._failures[0]

    def _work_apart(self) -> None:
        try:
            self._work()
        except BaseException as failure:  # noqa: BLE001 - raised again by run
            self._failures.append(failure)
            self._engine.stop()

    def _work(self) -> None:
        me = threading.current_thread()
        while (delivery := self._engine.take()) is not None:
            delivery.taken_by = me
            try:
                self._handle(delivery)
            finally:
                # The handler may have raised something other than an Exception.
                if not delivery.is_settled:
                    delivery.nack()

    def _handle_once(self, delivery: ConsumerDelivery) -> None:
        try:
            with delivery.in_span():
                self._handler(delivery)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything; the engine reports it
            self._engine.fail(delivery, error)
        else:
            delivery.ack()

    def _handle_in_order(self, delivery: ConsumerDelivery) -> None:
        while not delivery.is_settled:
            try:
                with delivery.in_span():
                    self._handler(delivery)
            except Exception as error:  # noqa: BLE001 - as above
                if self._engine.wait_for_stop(self._engine.note_failure(delivery, error)):
                    return
            else:
                delivery.ack()
