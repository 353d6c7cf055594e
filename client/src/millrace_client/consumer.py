"""The synchronous consumer."""

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from millrace_client._settings import check_endpoints
from millrace_client.consuming.config import ConsumerConfig, checked_workers
from millrace_client.consuming.core import BaseConsumer, ConsumerCloseReport
from millrace_client.consuming.threads import ConsumerDelivery, HandlerThreads, ThreadedEngine
from millrace_client.events import Event

_EXIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ConsumedEvent(Event):
    """An event with its delivery."""

    delivery: ConsumerDelivery | None = None
    """Names the channel and the server; its `ack` and `nack` settle all its events."""


class Consumer(BaseConsumer[ThreadedEngine]):
    """Takes events from channels of one or several servers, and reconnects after temporary failures.

        with millrace_client.Consumer(["localhost:7070"], ["orders"]) as consumer:
            for delivery in consumer:
                for event in delivery:
                    work_on(event)

    A loop acknowledges a delivery when it requests the next one. If the body raises, or leaves by `break` or `return`,
    the delivery returns to its channel and is delivered again, to any consumer; call `ack` first to prevent that. Loops
    run until `stop` or `close`, or as `idle_seconds` says.

    After broken connections, while servers restart, replay or drain, and while other readers hold a claim, the consumer
    retries each channel of each server separately, with growing pauses, or after the delay that the server asks for.
    With `token_file`, it also waits for another token if one is refused.
    Other errors are raised in the loop: ChannelNotFoundError (unless `waits_for_channels`), a damaged channel, a
    malformed request. A loop that continues after that gets the deliveries of the other channels and servers.

    Delivery is at least once: events are removed only after they were acknowledged. Events of a channel arrive in
    order, but returned events are delivered again later than events that were delivered in the meantime.

    Threads may share a consumer: each event goes to one of them. It connects with the first request for a delivery. A
    process that is forked after that cannot use it (ClientForkedError).
    """

    def __init__(
        self, endpoints: str | Iterable[str], channels: str | Iterable[str], config: ConsumerConfig | None = None
    ) -> None:
        """Makes no call.

        Args:
            endpoints: Servers, each `host:port`. Servers that share replicated channels are one endpoint, with commas
                between them.
            channels: Names of channels, each consumed from every server.
            config: The limits. None: the defaults.

        Raises:
            BadArgumentError: There are no endpoints or channels, or too many, or an endpoint has no port.
        """
        self._engine = ThreadedEngine(check_endpoints(endpoints), channels, config or ConsumerConfig())
        _OPEN_ENGINES.add(self._engine)
        self._finalizer = weakref.finalize(self, _end_in_background, self._engine)
        self._finalizer.atexit = False

    def receive(self, timeout_seconds: float | None = None) -> ConsumerDelivery | None:
        """Waits for one delivery, which the caller settles.

        Args:
            timeout_seconds: How long to wait. None: forever. 0: not at all.

        Returns:
            None if none arrived in time, or the consumer is stopping (`is_stopping`).

        Raises:
            MillraceError: A channel of a server has failed.
        """
        return self._engine.take(timeout_seconds)

    def __iter__(self) -> Iterator[ConsumerDelivery]:
        """Yields deliveries as they arrive; see the class."""
        engine = self._engine
        is_automatic = engine.config.auto_ack
        while (delivery := engine.take_for_loop()) is not None:
            if not is_automatic:
                yield delivery
                continue
            try:
                delivery.taken_by = threading.current_thread()
                yield delivery
                delivery.ack()
            except BaseException:
                # Left by break or by an error, Python does not say by which; or interrupted here.
                engine.drop(delivery)
                raise

    def events(self) -> Iterator[ConsumedEvent]:
        """Yields events as they arrive, one by one.

        A delivery is acknowledged when the event after its last one is requested. If the loop ends before, the whole
        delivery returns, and its first events are delivered again, too. `delivery_events_max=1` avoids that, but is
        slow.
        """
        for delivery in self:
            for event in delivery:
                if delivery.is_settled:
                    # Returned or lost: its other events will be delivered again.
                    break
                yield ConsumedEvent(event.body, event.headers, event.sequence, event.commit_time, delivery)

    def run(
        self, handler: Callable[[ConsumerDelivery], object], workers: int = 1, *, ordered: bool = False
    ) -> ConsumerCloseReport:
        """Calls a function with each delivery until `stop`, then closes; returns what was left.

        A delivery is acknowledged when the handler returns. If the handler raises, the delivery is held back for a
        pause that grows with each failure (`retry_seconds`), then returned to be delivered again, to any consumer;
        `delivery.attempt` counts the attempts. A handler may settle its delivery itself.

        Args:
            handler: Processes one delivery. With several workers, several threads call it at once.
            workers: The number of workers. One worker runs in the calling thread. More than `prefetch` times the number
                of channels and servers would be idle.
            ordered: With one worker: if the handler raises, it is called again with the same delivery after the pause,
                so that no later delivery overtakes it.

        Raises:
            MillraceError: A channel of a server has failed; other deliveries in hand were finished first.
            BadArgumentError: The number of workers is not allowed.
        """
        threads = HandlerThreads(self._engine, handler, ordered=ordered)
        try:
            threads.run(checked_workers(workers, ordered=ordered))
        finally:
            report = self.close()
        return report

    def stop(self) -> None:
        """Ends loops and `run` once deliveries in hand are finished. Does not wait.

        May be called from anywhere: another thread, a loop's body, a handler, a signal handler.
        """
        self._engine.stop()

    def close(self, timeout_seconds: float | None = None) -> ConsumerCloseReport:
        """Closes cleanly: hands out no more deliveries, waits for those in hand, sends the acks, and disconnects.

        Deliveries that were not handed out or are held back return to their channels. May be called several times and
        from several threads. From a loop's body or a handler call `stop` instead: the caller's own delivery is not
        waited for. Deliveries from `receive` are waited for, since another thread may have them, but not when a `with`
        block ends with an error.

        Args:
            timeout_seconds: How long that may take in all. None: `close_seconds`.

        Returns:
            What was left. Its events return to their channels and will be delivered again.
        """
        seconds = self.config.close_seconds if timeout_seconds is None else max(timeout_seconds, 0.0)
        self._finalizer.detach()
        return self._engine.close(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._finalizer.detach()
        self._engine.close(self.config.close_seconds, after_error=error is not None)


def _end_in_background(engine: ThreadedEngine) -> None:
    """Closes the engine of an abandoned consumer. A finalizer may run in any thread and must not wait."""
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=engine.close, args=(_EXIT_SECONDS,), name="millrace-consumer-end").start()


_OPEN_ENGINES: "weakref.WeakSet[ThreadedEngine]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Closes the engines of open consumers when the program exits, so that their acks are sent."""
    for engine in list(_OPEN_ENGINES):
        engine.end_at_exit(_EXIT_SECONDS)


__all__ = ["ConsumedEvent", "Consumer"]
