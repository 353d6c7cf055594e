"""Subscriptions, each to one channel of one server, and the deliveries that they bring."""

import enum
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millrace.tracing import TRACING, count_of, traceparents_of
from millrace.v1 import channel_service_pb2 as pb
from millrace_client._deliveries import DeliveredEvents
from millrace_client._endpoints import servers_of
from millrace_client._retries import Backoff

if TYPE_CHECKING:
    from opentelemetry.trace import Span

DeliveryT = TypeVar("DeliveryT", bound="TrackedDelivery")


class SubscriptionState(enum.StrEnum):
    """Moves; any other is illegal.

    WAITING -> READING        the stream was started
    READING -> WAITING        the stream broke; it is started again after a pause
    READING -> FAILED         the stream was refused, and a repeat cannot help
    any but FAILED -> ENDED   the consumer was closed
    """

    WAITING = "waiting"
    READING = "reading"
    FAILED = "failed"
    ENDED = "ended"


_MOVES = {
    SubscriptionState.WAITING: {SubscriptionState.READING, SubscriptionState.ENDED},
    SubscriptionState.READING: {SubscriptionState.WAITING, SubscriptionState.FAILED, SubscriptionState.ENDED},
    SubscriptionState.FAILED: set[SubscriptionState](),
    SubscriptionState.ENDED: set[SubscriptionState](),
}


class Subscription(Generic[DeliveryT]):
    """One channel of one server, or of several that share it: its deliveries in order, and the state of its stream.

    Attributes:
        queued: Deliveries that have arrived and were not handed out.
        unsettled: All deliveries that have arrived and are not settled.
        error: What ended its last stream; None if nothing did.
        is_connected: Whether its server has responded to its current stream.
        is_shared: Whether servers are known to share the channel, which one of them owns.
        has_just_hopped: Whether it continues at another server without a pause.
    """

    def __init__(self, endpoint: str, channel: str, backoff: Backoff) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.backoff = backoff
        self.queued: deque[DeliveryT] = deque()
        self.unsettled: set[DeliveryT] = set()
        self.error: Exception | None = None
        self.is_connected = False
        self.is_shared = len(servers_of(endpoint)) > 1
        self.has_just_hopped = False
        self._state = SubscriptionState.WAITING

    @property
    def name(self) -> str:
        return f"{self.endpoint}/{self.channel}"

    @property
    def state(self) -> SubscriptionState:
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether no more deliveries will arrive."""
        return not _MOVES[self._state]

    def move(self, target: SubscriptionState) -> None:
        """Changes the state, as the table allows."""
        assert target in _MOVES[self._state], f"{self.name}: {self._state} -> {target}"
        self._state = target


class DeliveryState(enum.Enum):
    """Moves; any other is refused and changes nothing.

    QUEUED -> IN_HAND               a loop or a handler got it
    IN_HAND -> ACKED                ack(): its events are removed
    IN_HAND -> HELD, NACKED         nack(), with or without a delay: its events return
    HELD -> NACKED                  the delay is over
    QUEUED, IN_HAND, HELD -> LOST   its stream has ended: its events have returned
    """

    QUEUED = "queued"
    IN_HAND = "in hand"
    HELD = "held"
    ACKED = "acked"
    NACKED = "nacked"
    LOST = "lost"


MOVES = {
    DeliveryState.QUEUED: {DeliveryState.IN_HAND, DeliveryState.LOST},
    DeliveryState.IN_HAND: {DeliveryState.ACKED, DeliveryState.HELD, DeliveryState.NACKED, DeliveryState.LOST},
    DeliveryState.HELD: {DeliveryState.NACKED, DeliveryState.LOST},
    DeliveryState.ACKED: set[DeliveryState](),
    DeliveryState.NACKED: set[DeliveryState](),
    DeliveryState.LOST: set[DeliveryState](),
}


class TrackedDelivery(DeliveredEvents):
    """Base of the consumers' deliveries.

    Attributes:
        subscription: The subscription that brought it.
        stream: The stream that brought it; only this stream can settle it.
        byte_count: The bytes that it takes of the consumer's limit.
        state: Its state; only the delivery buffer changes it.
        attempt: 1 plus the number of times that this consumer's handlers failed on the same first event.
        taken_at: When it was handed out, on the engine's clock.
        taken_by: The thread or task that is known to work on it; None if none is known.
        span: Its span, since it was handed out; None if it is not traced.
    """

    __slots__ = (
        "_engine",
        "_within",
        "attempt",
        "byte_count",
        "span",
        "state",
        "stream",
        "subscription",
        "taken_at",
        "taken_by",
    )

    def __init__(self, engine: Any, subscription: Subscription[Any], stream: Any, response: pb.ConsumeResponse) -> None:
        super().__init__(response)
        self._engine = engine
        self.subscription = subscription
        self.stream = stream
        self.byte_count = response.ByteSize()
        self.state = DeliveryState.QUEUED
        self.attempt = 1
        self.taken_at = 0.0
        self.taken_by: object | None = None
        self.span: Span | None = None

    @property
    def endpoint(self) -> str:
        return self.subscription.endpoint

    @property
    def channel(self) -> str:
        return self.subscription.channel

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged, returned or lost."""
        return self.state not in (DeliveryState.QUEUED, DeliveryState.IN_HAND)

    @property
    def is_lost(self) -> bool:
        """Whether its stream ended before it was settled: its events have returned and will be delivered again."""
        return self.state is DeliveryState.LOST

    def start_span(self) -> None:
        """Starts its span, if tracing is on, since it is handed out now."""
        if (spans := TRACING.spans) is not None:
            columns = [batch.columns for batch in self.batches]
            self.span = spans.message(
                "process", self.channel, count_of(columns), traceparents_of(columns), endpoint=self.endpoint
            )

    def in_span(self) -> AbstractContextManager[None]:
        """Returns a context in which its span is the current one."""
        if self.span is None:
            return nullcontext()
        from millrace.spans import Spans

        return Spans.within(self.span)

    def _enter_span(self) -> None:
        self._within = self.in_span()
        self._within.__enter__()

    def _leave_span(self) -> None:
        self._within.__exit__(None, None, None)

    def note_error(self, error: Exception) -> None:
        """Sets the error of its span: its handler has failed."""
        if self.span is not None:
            from millrace.spans import describe_error

            describe_error(self.span, error)

    def end_span(self) -> None:
        """Ends its span, now that it is settled or lost."""
        if self.span is not None:
            self.span.set_attribute("millrace.outcome", self.state.value)
            self.span.end()
            self.span = None
