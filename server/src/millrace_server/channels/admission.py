"""What a channel may hold, in events and bytes, and the queues of calls that wait for it."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from millrace_server.channels.batches import Form, StoredColumns
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.queue import ResponseLimits, TakeLimits
from millrace_server.errors import (
    BytesFullError,
    ChannelFullError,
    EventTooLargeError,
    MillraceError,
    TxnCapacityError,
)

_UNLIMITED_BYTES = 1 << 62
_OPEN_BYTES_RETRY_DELAY_SECONDS = 1.0
_ROWS_MAX = 10_000
_ROWS_BYTES_MAX = 8 << 20


def always_allowed() -> None:
    """Allows a call to continue after any wait."""


class Waiter:
    """One call in a wait queue."""

    def __init__(self) -> None:
        self._woken: asyncio.Future[bool] | None = None

    async def wait(self, seconds: float) -> bool:
        """Returns True once the call is woken, False when the time has passed."""
        if seconds <= 0:
            return False
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        timer = loop.call_later(seconds, self._stop_waiting, False)
        try:
            return await self._woken
        finally:
            timer.cancel()

    def wake(self) -> None:
        """Wakes the call. One that is not waiting at this moment checks its condition anyway."""
        self._stop_waiting(is_woken=True)

    def _stop_waiting(self, is_woken: bool) -> None:  # noqa: FBT001 - a timer passes it by position
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(is_woken)


class WaitQueue:
    """A FIFO queue of calls that wait for one condition.

    Waking is a hint to the first waiter, which checks the condition again and keeps its position where it does not
    hold. A waiter that leaves wakes the next one where there may be more to have.
    """

    def __init__(self) -> None:
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def join(self, *, at_front: bool = False) -> Iterator[Waiter]:
        """Joins the queue, at its end or its front, until the context ends."""
        waiter = Waiter()
        self._waiters[waiter] = None
        if at_front:
            self._waiters.move_to_end(waiter, last=False)
        try:
            yield waiter
        finally:
            del self._waiters[waiter]

    def is_first(self, waiter: Waiter) -> bool:
        return next(iter(self._waiters)) is waiter

    def wake_next(self) -> None:
        if self._waiters:
            next(iter(self._waiters)).wake()

    def wake_all(self) -> None:
        for waiter in self._waiters:
            waiter.wake()


class Capacity:
    """Counts a channel's events and their bodies' bytes against its limits, exactly.

    Events count from their commit until a commit, an ack or an acknowledgement removes them. Taken events count too, so
    that a rollback can always return them.
    """

    def __init__(self, events_max: int, body_bytes_max: int) -> None:
        self.events_max = events_max
        self.body_bytes_max = body_bytes_max
        self.event_count = 0
        self.body_bytes = 0
        self.waiters = WaitQueue()

    def admits(self, event_count: int, body_bytes: int) -> bool:
        """Whether the channel can grow by this much. What shrinks it is always admitted."""
        return (event_count <= 0 or self.event_count + event_count <= self.events_max) and (
            body_bytes <= 0 or self.body_bytes + body_bytes <= self.body_bytes_max
        )

    def change(self, event_count: int, body_bytes: int) -> None:
        self.event_count += event_count
        self.body_bytes += body_bytes
        assert self.event_count >= 0, self.event_count
        assert self.body_bytes >= 0, self.body_bytes
        if event_count < 0 or body_bytes < 0:
            self.waiters.wake_next()

    def resize(self, events_max: int, body_bytes_max: int) -> None:
        """Sets new limits; the channel may hold more than they allow."""
        self.events_max = events_max
        self.body_bytes_max = body_bytes_max
        self.waiters.wake_next()

    def full_error(self, event_count: int, body_bytes: int, waited_seconds: float) -> MillraceError:
        message = (
            f"the channel holds {self.event_count} events of {self.events_max} and {self.body_bytes} body bytes of "
            f"{self.body_bytes_max}; no capacity for {event_count} more with {body_bytes} within {waited_seconds:g} s"
        )
        kind = (
            ChannelFullError if event_count > 0 and self.event_count + event_count > self.events_max else BytesFullError
        )
        return kind(message, retry_delay_seconds=min(max(waited_seconds, 0.1), 1.0))


class LimitingChannels(NamedTuple):
    """The channels that limits come from; empty for the one that the caller named."""

    transaction_capacity: str = ""
    byte_capacity: str = ""


NAMED_CHANNEL = LimitingChannels()


class ChannelLimits:
    """Refuses requests that are too large for a channel, or for a source's limiting channels."""

    def __init__(
        self, config: ChannelConfig, response_bytes_max: int, limiting: LimitingChannels = NAMED_CHANNEL
    ) -> None:
        self._limiting = limiting
        self.transaction_capacity = config.transaction_capacity
        self._body_bytes_max = config.body_bytes_max
        self._open_body_bytes_max = config.open_body_bytes_max
        self._response_bytes_max = response_bytes_max

    def refuse_too_large(self, batches: Sequence[StoredColumns]) -> None:
        """Raises EventTooLargeError where one event could not be stored, or not be fetched."""
        body_bytes_max = self._body_bytes_max
        for stored in batches:
            # No body is larger than all of them together, which is known without reading any.
            if stored.body_bytes > body_bytes_max and stored.largest_body_bytes > body_bytes_max:
                raise self._above_byte_capacity(
                    EventTooLargeError,
                    f"events: a body has {stored.largest_body_bytes} bytes; {{}} allows {body_bytes_max} in all",
                )
            if (index := stored.first_index_above(self._response_bytes_max)) is not None:
                raise EventTooLargeError(
                    f"events[{index}]: with its headers it would not fit into a response, which the server's "
                    f"message_bytes_max limits to {self._response_bytes_max} bytes of events"
                )

    def refuse_above_open_bytes(self, batches: Sequence[StoredColumns]) -> None:
        body_bytes_max = self._open_body_bytes_max
        for stored in batches:
            if stored.body_bytes > body_bytes_max and stored.largest_body_bytes > body_bytes_max:
                raise self._above_byte_capacity(
                    EventTooLargeError,
                    f"events: a body has {stored.largest_body_bytes} bytes; {{}} and the server's memory allow "
                    f"{body_bytes_max} at once",
                )

    def refuse_too_much(self, put_count: int, body_bytes: int) -> None:
        if put_count > self.transaction_capacity:
            sentence = f"the transaction would put {put_count} events; {{}} is {self.transaction_capacity}"
            raise _above(TxnCapacityError, sentence, "transaction_capacity", self._limiting.transaction_capacity)
        if body_bytes > self._open_body_bytes_max:
            raise self._above_byte_capacity(
                TxnCapacityError,
                f"the transaction would put {body_bytes} body bytes; {{}} and the server's memory allow "
                f"{self._open_body_bytes_max} at once",
            )

    def _above_byte_capacity(self, kind: type[MillraceError], sentence: str) -> MillraceError:
        return _above(kind, sentence, "byte_capacity", self._limiting.byte_capacity)

    def refuse_open_bytes(self, open_body_bytes: int, body_bytes: int) -> None:
        """Raises BytesFullError where open transactions would hold too much: they may never commit it."""
        if open_body_bytes + body_bytes > self._open_body_bytes_max:
            raise BytesFullError(
                f"open transactions hold {open_body_bytes} body bytes; with {body_bytes} more they would exceed what "
                f"they may hold together, {self._open_body_bytes_max}; retry when some of them have ended",
                retry_delay_seconds=_OPEN_BYTES_RETRY_DELAY_SECONDS,
            )

    def takes_left(self, take_count: int, txn_id: str) -> int:
        """Returns how many more events a transaction may take; raises TxnCapacityError if none."""
        left = self.transaction_capacity - take_count
        if left <= 0:
            raise TxnCapacityError(
                f"the transaction has taken {take_count} events, the maximum that transaction_capacity allows; "
                "commit it or roll it back",
                txn_id=txn_id,
            )
        return left

    def response_limits(self, limits: TakeLimits, events_max: int) -> ResponseLimits:
        """Returns the limits of one response of at most `events_max` events."""
        response_bytes_max = self._response_bytes_max
        if limits.form is Form.ROWS:
            # Rows are encoded one by one, which holds up all other calls: so a response in rows is small.
            events_max = min(events_max, _ROWS_MAX)
            response_bytes_max = min(response_bytes_max, _ROWS_BYTES_MAX)
        return ResponseLimits(
            events_max=min(limits.events_max or events_max, events_max),
            body_bytes_max=limits.body_bytes_max or _UNLIMITED_BYTES,
            response_bytes_max=response_bytes_max,
            form=limits.form,
        )


def _above(kind: type[MillraceError], sentence: str, setting: str, limiting_channel: str) -> MillraceError:
    """Returns an error whose sentence names a setting, and the channel that has it unless the caller named that one."""
    if not limiting_channel:
        return kind(sentence.format(setting))
    return kind(sentence.format(f"{setting} of channel {limiting_channel!r}"), channel=limiting_channel)
