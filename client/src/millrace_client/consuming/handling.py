"""Handlers, and the threads that call them."""

import threading
from collections.abc import Callable

from millrace_client.consuming.threads import ConsumerDelivery, ThreadedEngine

Handler = Callable[[ConsumerDelivery], object]


class Handling:
    """One run of a handler."""

    def __init__(self, engine: ThreadedEngine, handler: Handler, *, ordered: bool) -> None:
        self._engine = engine
        self._handle = self._handle_in_order if ordered else self._handle_once
        self._handler = handler
        self._failures: list[BaseException] = []

    def run(self, workers: int) -> None:
        """Works until the engine stops.

        Raises:
            BaseException: What stopped it: a channel that was given up, or what is no Exception out of a handler.
        """
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
            # Ctrl-C, for one: what is in hand is finished, within the time that closing has.
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
                # The handler may have raised what is no Exception.
                if not delivery.is_settled:
                    delivery.nack()

    def _handle_once(self, delivery: ConsumerDelivery) -> None:
        try:
            self._handler(delivery)
        except Exception as error:  # noqa: BLE001 - a handler may raise what it likes; the engine tells of it
            self._engine.fail(delivery, error)
        else:
            delivery.ack()

    def _handle_in_order(self, delivery: ConsumerDelivery) -> None:
        while not delivery.is_settled:
            try:
                self._handler(delivery)
            except Exception as error:  # noqa: BLE001 - as above
                if self._engine.wait_for_stop(self._engine.note_failure(delivery, error)):
                    return
            else:
                delivery.ack()
