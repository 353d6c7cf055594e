"""The consumer, for threads."""

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from millrace_client._settings import check_endpoints
from millrace_client.consuming.config import ConsumerConfig, checked_workers
from millrace_client.consuming.core import ConsumerCloseReport
from millrace_client.consuming.handling import Handling
from millrace_client.consuming.metrics import ConsumerMetrics
from millrace_client.consuming.threads import ConsumerDelivery, ThreadedEngine
from millrace_client.events import Event

_EXIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ConsumedEvent(Event):
    """An event, and the delivery that it came with."""

    delivery: ConsumerDelivery | None = None
    """Tells the channel and the server; to `ack` or `nack` it settles all of its events."""


class Consumer:
    """Takes events from channels of one server or of many, and goes on through whatever time mends.

        with millrace_client.Consumer(["localhost:7070"], ["orders"]) as consumer:
            for delivery in consumer:
                for event in delivery:
                    work_on(event)

    A loop acknowledges a delivery when it asks for the next one. Where a body raises, or leaves by `break` or `return`,
    its delivery returns to the channel and comes again, here or elsewhere; to keep it from that, `ack` it first. Loops
    run until `stop` or `close`, or as long as `idle_seconds` says.

    Broken connections, servers that restart, replay or drain, and claims of others are waited out, each channel at each
    server for itself, with growing pauses, or as long as the server asks for. What does not pass is raised in the loop:
    ChannelNotFoundError (unless `waits_for_channels`), a damaged channel, a refused request. Looping on after that goes
    on with the other channels and servers.

    Delivery is at least once: nothing is removed before it was acknowledged. Events of a channel come in order, but
    those that returned come again later than what was delivered meanwhile.

    Threads may share a consumer: each event goes to one of them. It connects when the first delivery is asked for. A
    process that is forked after that cannot use it (ClientForkedError).
    """

    def __init__(
        self, endpoints: str | Iterable[str], channels: str | Iterable[str], config: ConsumerConfig | None = None
    ) -> None:
        """Makes no call.

        Args:
            endpoints: Servers, each `host:port`.
            channels: Names of channels, each taken from at every server.
            config: Limits. None: the defaults.

        Raises:
            BadArgumentError: There is none of them, or too many, or an endpoint has no port.
        """
        self._engine = ThreadedEngine(check_endpoints(endpoints), channels, config or ConsumerConfig())
        _OPEN_ENGINES.add(self._engine)
        self._finalizer = weakref.finalize(self, _end_in_background, self._engine)
        self._finalizer.atexit = False

    @property
    def config(self) -> ConsumerConfig:
        """Its limits."""
        return self._engine.config

    def receive(self, timeout_seconds: float | None = None) -> ConsumerDelivery | None:
        """Waits for one delivery, which is the caller's to settle.

        Args:
            timeout_seconds: How long to wait. None: for ever. 0: not at all.

        Returns:
            None where none came in time, or none will come because the consumer was stopped (`is_stopping`).

        Raises:
            MillraceError: A channel at a server was given up.
        """
        return self._engine.take(timeout_seconds)

    def __iter__(self) -> Iterator[ConsumerDelivery]:
        """Deliveries as they come; see the class."""
        engine = self._engine
        is_automatic = engine.config.auto_ack
        while (delivery := engine.take(engine.config.idle_seconds)) is not None:
            if is_automatic:
                delivery.taken_by = threading.current_thread()
            try:
                yield delivery
            except GeneratorExit:
                # Left by break or by an error; which of them, Python does not tell.
                if is_automatic:
                    engine.drop(delivery)
                raise
            if is_automatic:
                delivery.ack()

    def events(self) -> Iterator[ConsumedEvent]:
        """Events as they come, one by one.

        A delivery is acknowledged when the event after its last one is asked for, and returned as a whole where the
        loop ends before: then its first events come again too. `delivery_events_max=1` makes that exact, and slow.
        """
        for delivery in self:
            for event in delivery:
                if delivery.is_settled:
                    # Returned, or lost: the rest of it comes again.
                    break
                yield ConsumedEvent(event.body, event.headers, event.sequence, delivery)

    def run(
        self, handler: Callable[[ConsumerDelivery], object], workers: int = 1, *, ordered: bool = False
    ) -> ConsumerCloseReport:
        """Has a function work on deliveries until `stop`, then closes; returns what was left.

        A delivery is acknowledged when the handler returns. Where it raises, the delivery is held back for a pause that
        grows with each failure (`retry_seconds`), then returned to come again, here or elsewhere; `delivery.attempt`
        counts. A handler may settle its delivery itself.

        Args:
            handler: Works on one delivery. With many workers it is called by many threads at once.
            workers: How many. One works in the calling thread. More than `prefetch` times the number of channels and
                servers have nothing to do.
            ordered: With one worker: where the handler raises it is called again with the same delivery after the
                pause, so that nothing later comes before.

        Raises:
            MillraceError: A channel at a server was given up; the others' deliveries in hand were finished before.
            BadArgumentError: Not so many workers.
        """
        handling = Handling(self._engine, handler, ordered=ordered)
        try:
            handling.run(checked_workers(workers, ordered=ordered))
        finally:
            report = self.close()
        return report

    def stop(self) -> None:
        """Ends loops and `run` as soon as what is in hand is done. Does not wait.

        May be called from anywhere: another thread, a loop's body, a handler, a signal handler.
        """
        self._engine.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether it was stopped or closed."""
        return self._engine.is_stopping

    def close(self, timeout_seconds: float | None = None) -> ConsumerCloseReport:
        """Ends in order: nothing new is handed out, what is in hand may be settled, then acks are done and all ends.

        What waited to be handed out, or was held back, returns to its channel. May be called often, and from many
        threads. From a loop's body or a handler call `stop` instead: what the caller itself works on is not waited for.
        What was got by `receive` is waited for, since another thread may have it; but not where a `with` block is left
        by an error.

        Args:
            timeout_seconds: How long that may take, in all; then it returns all the same. None: `close_seconds`.

        Returns:
            What was left. Its events return to their channels, and come again.
        """
        seconds = self.config.close_seconds if timeout_seconds is None else max(timeout_seconds, 0.0)
        self._finalizer.detach()
        return self._engine.close(seconds)

    def metrics(self) -> ConsumerMetrics:
        """What it has done, and what it holds."""
        return self._engine.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._finalizer.detach()
        self._engine.close(self.config.close_seconds, after_error=error is not None)

    def __repr__(self) -> str:
        return f"<Consumer of {', '.join(lane.name for lane in self._engine.lanes)}>"


def _end_in_background(engine: ThreadedEngine) -> None:
    """Closes what nobody keeps any more. A finalizer may run anywhere, and must not wait."""
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=engine.close, args=(_EXIT_SECONDS,), name="millrace-consumer-end").start()


_OPEN_ENGINES: "weakref.WeakSet[ThreadedEngine]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Acks that were made are done before the program ends, though nobody closed the consumer."""
    for engine in list(_OPEN_ENGINES):
        engine.end_at_exit(_EXIT_SECONDS)


__all__ = ["ConsumedEvent", "Consumer"]
