"""Pages: buffered events in columns; and the futures of their results."""

import asyncio
import threading
from collections.abc import Generator, Mapping
from typing import Any

from millrace_client.errors import SendResult
from millrace_client.producing.results import Callback, Outcome, failed_error

# Estimates of what Python adds: to a body its object, its list entries and the future; to a header value its object.
EVENT_BYTES = 200
"""Bytes of the buffer that an event takes besides its own bytes."""
HEADER_BYTES = 70
"""Bytes of the buffer that a header takes besides its value's bytes."""
SIZE_BYTES = 5
"""The maximum number of bytes that the wire adds to a body, and to a header value."""
HEAD_BYTES = 64
"""The maximum number of bytes that the wire adds to a column, and to a request."""


class Page:
    """Events that are buffered together and settled in one or several ranges. Guarded by the accumulator's lock.

    Columns are padded late: a column that is shorter than the page has no values for the last events.
    """

    __slots__ = (
        "_condition",
        "_count",
        "_settled",
        "_waiters",
        "bodies",
        "callbacks",
        "columns",
        "created_at",
        "dropped_count",
        "encoded_bytes",
        "held_bytes",
        "lock",
        "settled_count",
    )

    def __init__(self, lock: threading.Lock, created_at: float) -> None:
        self.lock = lock
        self.created_at = created_at
        """When its first event was sent."""
        self.bodies: list[bytes] = []
        self.columns: dict[str, list[str | None]] = {}
        self.callbacks: list[tuple[int, Callback]] | None = None
        """Callbacks with the index of their event."""
        self._count: int | None = None
        self.settled_count = 0
        """Events that are settled."""
        self.dropped_count = 0
        """Events at the front that were dropped; `bodies` and `columns` start after them."""
        self.encoded_bytes = 0
        self.held_bytes = 0
        """Bytes of the buffer that it takes."""
        self._settled: list[tuple[int, int, int, Outcome]] = []
        self._condition: threading.Condition | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def count(self) -> int:
        """All events that were ever added; the index of the next one."""
        return self.dropped_count + len(self.bodies) if self._count is None else self._count

    @property
    def open_count(self) -> int:
        """Events that are not settled."""
        return self.count - self.settled_count

    def outcome_of(self, index: int) -> tuple[Outcome, int] | None:
        """Returns the outcome of an event's batch and its offset in the batch; None if it is not settled."""
        for start, stop, offset, outcome in self._settled:
            if start <= index < stop:
                return outcome, index - start + offset
        return None

    def settle(self, start: int, stop: int, offset: int, outcome: Outcome) -> list[tuple[Callback, int]]:
        """Settles a range of events, with the lock held; returns the callbacks to run, with offsets in the batch."""
        self._settled.append((start, stop, offset, outcome))
        self.settled_count += stop - start
        if self._condition is not None:
            self._condition.notify_all()
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None
        if self.callbacks is None:
            return []
        return [(callback, index - start + offset) for index, callback in self.callbacks if start <= index < stop]

    def wait_settled(self, index: int, timeout_seconds: float | None) -> tuple[Outcome, int]:
        """Waits until an event is settled; returns the same as `outcome_of`."""
        settled = self.outcome_of(index)
        if settled is None:
            with self.lock:
                if self._condition is None:
                    self._condition = threading.Condition(self.lock)
                # A page is settled range by range, most often in one range.
                while (settled := self.outcome_of(index)) is None:
                    if not self._condition.wait(timeout_seconds):
                        raise TimeoutError(f"the event is not settled after {timeout_seconds} s")
        return settled

    def next_settled(self) -> "asyncio.Future[None]":
        """Returns a future that is done when the next range is settled."""
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        return waiter

    def add_callback(self, index: int, callback: Callback) -> None:
        """Registers a callback for when an event is settled."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((index, callback))

    def event_bytes(self, position: int) -> int:
        """Returns the bytes of the buffer that an event takes, without a callback."""
        byte_count = EVENT_BYTES + SIZE_BYTES + len(self.bodies[position])
        for column in self.columns.values():
            if position < len(column) and (value := column[position]) is not None:
                byte_count += HEADER_BYTES + SIZE_BYTES + len(value.encode())
        return byte_count

    def add_alike(self, bodies: list[bytes], columns: Mapping[str, list[str]]) -> bool:
        """Adds events that all have the same headers; returns False if the page holds events with other headers."""
        position = len(self.bodies)
        if not position:
            self.columns = {name: [] for name in columns}
        elif self.columns.keys() != columns.keys():
            return False
        for name, values in columns.items():
            pad(self.columns[name], position)
            self.columns[name] += values
        self.bodies += bodies
        return True

    def discard_headers(self, position: int) -> None:
        """Removes the headers of an event that was not added after all."""
        for column in self.columns.values():
            del column[position:]

    def drop_first(self, count: int) -> None:
        """Drops the first events."""
        del self.bodies[:count]
        for name in list(self.columns):
            del self.columns[name][:count]
            if not self.columns[name]:
                del self.columns[name]
        self.dropped_count += count

    def drop_content(self) -> None:
        """Drops all events once they are encoded. No more may be added."""
        self._count = self.count
        self.bodies = []
        self.columns = {}


def pad(column: list[str | None], position: int) -> None:
    """Prepares a column for the event at a position: fills up with None, and removes a value of that event itself."""
    del column[position:]
    column.extend([None] * (position - len(column)))


class _BaseFuture:
    __slots__ = ("_index", "_page")

    def __init__(self, page: Page, index: int) -> None:
        self._page = page
        self._index = index

    def done(self) -> bool:
        """Whether the event is settled."""
        return self._page.outcome_of(self._index) is not None

    def add_callback(self, callback: Callback) -> None:
        """Registers another callback for when the event is settled.

        If it is settled already, the callback runs at once, in this thread.
        """
        with self._page.lock:
            settled = self._page.outcome_of(self._index)
            if settled is None:
                self._page.add_callback(self._index, callback)
                return
        outcome, offset = settled
        callback(outcome.result(offset))

    def _settled(self) -> SendResult:
        """Returns the result of a settled event."""
        settled = self._page.outcome_of(self._index)
        assert settled is not None, "the event is open"
        outcome, offset = settled
        return outcome.result(offset)

    def _result(self) -> SendResult:
        """Returns the result of a stored event; raises SendFailedError if it is not stored."""
        result = self._settled()
        if result.error is not None:
            raise failed_error(result)
        return result

    def __repr__(self) -> str:
        settled = self._page.outcome_of(self._index)
        state = "open" if settled is None else "stored" if settled[0].error is None else "failed"
        return f"<{type(self).__name__} {state}>"


class SendFuture(_BaseFuture):
    """The future result of one event sent by a `Producer`. Threads may share it."""

    __slots__ = ()

    def result(self, timeout_seconds: float | None = None) -> SendResult:
        """Waits until the event is stored.

        Raises:
            SendFailedError: The event will not be stored; the error's `result` has the details.
            TimeoutError: The event is not settled in time; it may be later.
        """
        self._page.wait_settled(self._index, timeout_seconds)
        return self._result()

    def settled(self, timeout_seconds: float | None = None) -> SendResult:
        """Waits until the event is settled; the result says whether it is stored.

        Raises:
            TimeoutError: The event is not settled in time; it may be later.
        """
        self._page.wait_settled(self._index, timeout_seconds)
        return self._settled()


class AsyncSendFuture(_BaseFuture):
    """The future result of one event sent by an `AsyncProducer`. It may be awaited several times."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, SendResult]:
        while self._page.outcome_of(self._index) is None:
            yield from self._page.next_settled()
        return self._result()
