"""Pages: events as they gather, in columns from the beginning; and the futures that tell what became of each."""

import asyncio
import threading
from collections.abc import Generator, Mapping
from typing import Any

from millrace_client.producing.results import Callback, Outcome, SendResult, failure_of

# What Python adds: to a body its object, its entries in lists and the future; to a value of a header likewise.
EVENT_BYTES = 200
"""What an event takes of the buffer beside its bytes."""
HEADER_BYTES = 70
"""What one header of it takes beside its value's bytes."""
SIZE_BYTES = 5
"""What the wire adds, at most, to a body and to a value of a header."""
HEAD_BYTES = 64
"""What it adds, at most, to a column or a request, beside what it adds to each event."""


class Page:
    """Events that gather together and are settled in one or several ranges. Guarded by the intake's lock.

    Columns are padded late: one that is shorter than the page has no value for its last events.
    """

    __slots__ = (
        "_condition",
        "_count",
        "_settled",
        "_waiters",
        "bodies",
        "born",
        "callbacks",
        "columns",
        "dropped_count",
        "encoded_bytes",
        "held_bytes",
        "lock",
        "settled_count",
    )

    def __init__(self, lock: threading.Lock, born: float) -> None:
        self.lock = lock
        self.born = born
        """When its first event came."""
        self.bodies: list[bytes] = []
        self.columns: dict[str, list[str | None]] = {}
        self.callbacks: list[tuple[int, Callback]] | None = None
        """By the index of their event."""
        self._count: int | None = None
        self.settled_count = 0
        """Of these, settled."""
        self.dropped_count = 0
        """Events at the front that were dropped; `bodies` and `columns` begin behind them."""
        self.encoded_bytes = 0
        self.held_bytes = 0
        """What it takes of the buffer."""
        self._settled: list[tuple[int, int, int, Outcome]] = []
        self._condition: threading.Condition | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def count(self) -> int:
        """Events that ever came; the next one's index."""
        return self.dropped_count + len(self.bodies) if self._count is None else self._count

    @property
    def open_count(self) -> int:
        """Events that are not settled."""
        return self.count - self.settled_count

    def outcome_of(self, index: int) -> tuple[Outcome, int] | None:
        """What became of an event's batch, and its place in that; None where it is open."""
        for start, stop, offset, outcome in self._settled:
            if start <= index < stop:
                return outcome, index - start + offset
        return None

    def settle(self, start: int, stop: int, offset: int, outcome: Outcome) -> list[tuple[Callback, int]]:
        """Settles a range of events, with the lock held; returns the callbacks to run, with places in the batch."""
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
        """Waits until an event is settled; gives what `outcome_of` gives.

        Raises:
            TimeoutError: No range of the page was settled for so long.
        """
        settled = self.outcome_of(index)
        if settled is None:
            with self.lock:
                if self._condition is None:
                    self._condition = threading.Condition(self.lock)
                # Ranges of a page are settled one by one, seldom more than one.
                while (settled := self.outcome_of(index)) is None:
                    if not self._condition.wait(timeout_seconds):
                        raise TimeoutError(f"the event is not settled after {timeout_seconds} s")
        return settled

    def next_settled(self) -> "asyncio.Future[None]":
        """The same for a task."""
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        return waiter

    def add_callback(self, index: int, callback: Callback) -> None:
        """Has a callback run once an event is settled."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((index, callback))

    def event_bytes(self, position: int) -> int:
        """What an event takes of the buffer, but for a callback."""
        byte_count = EVENT_BYTES + SIZE_BYTES + len(self.bodies[position])
        for column in self.columns.values():
            if position < len(column) and (value := column[position]) is not None:
                byte_count += HEADER_BYTES + len(value)
        return byte_count

    def add_alike(self, bodies: list[bytes], columns: Mapping[str, list[str]]) -> bool:
        """Adds events that all have the same headers; False where others are there that have not."""
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

    def drop_first(self, count: int) -> None:
        """Lets go of the first events that it has."""
        del self.bodies[:count]
        for name in list(self.columns):
            del self.columns[name][:count]
            if not self.columns[name]:
                del self.columns[name]
        self.dropped_count += count

    def drop_content(self) -> None:
        """Lets go of the events, once they are encoded; no more may come."""
        self._count = self.count
        self.bodies = []
        self.columns = {}


def pad(column: list[str | None], position: int) -> None:
    """Makes a column ready for the event at a position: those before it had no such header, unless they say so.

    What is there for the event itself already, gives way.
    """
    del column[position:]
    column.extend([None] * (position - len(column)))


class _Settling:
    __slots__ = ("_index", "_page")

    def __init__(self, page: Page, index: int) -> None:
        self._page = page
        self._index = index

    def done(self) -> bool:
        """Whether it is settled what became of the event."""
        return self._page.outcome_of(self._index) is not None

    def add_callback(self, callback: Callback) -> None:
        """Has a callback run once the event is settled, beside the one that `send` was given.

        Where it is settled already, the callback runs here and now.
        """
        with self._page.lock:
            settled = self._page.outcome_of(self._index)
            if settled is None:
                self._page.add_callback(self._index, callback)
                return
        outcome, offset = settled
        callback(outcome.result(offset))

    def _settled(self) -> SendResult:
        """What became of a settled event."""
        settled = self._page.outcome_of(self._index)
        assert settled is not None, "the event is open"
        outcome, offset = settled
        return outcome.result(offset)

    def _result(self) -> SendResult:
        """The result of an event that is stored."""
        result = self._settled()
        if result.error is not None:
            raise failure_of(result)
        return result

    def __repr__(self) -> str:
        settled = self._page.outcome_of(self._index)
        state = "open" if settled is None else "stored" if settled[0].error is None else "failed"
        return f"<{type(self).__name__} {state}>"


class SendFuture(_Settling):
    """What will become of one event that a `Producer` was given. Threads may share it."""

    __slots__ = ()

    def result(self, timeout_seconds: float | None = None) -> SendResult:
        """Waits until the event is stored.

        Raises:
            SendFailedError: It is not, and will not be; the error's `result` tells all.
            TimeoutError: It is not settled in time; it may be later.
        """
        self._page.wait_settled(self._index, timeout_seconds)
        return self._result()

    def settled(self, timeout_seconds: float | None = None) -> SendResult:
        """Waits until it is known whether the event is stored; the result tells.

        Raises:
            TimeoutError: It is not settled in time; it may be later.
        """
        self._page.wait_settled(self._index, timeout_seconds)
        return self._settled()


class AsyncSendFuture(_Settling):
    """What will become of one event that an `AsyncProducer` was given; to be awaited, as often as one likes."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, SendResult]:
        while self._page.outcome_of(self._index) is None:
            yield from self._page.next_settled()
        return self._result()
