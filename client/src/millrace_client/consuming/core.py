"""The part of a consumer that both engines share: broken streams, failed handlers, and closing."""

import logging
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millrace_client._calls import consume_start
from millrace_client._forks import Unpicklable, forked_error
from millrace_client._retries import Backoff, passes_with_next_owner
from millrace_client.consuming.config import ConsumerConfig, subscriptions_of
from millrace_client.consuming.delivery_buffer import DeliveryBuffer
from millrace_client.consuming.metrics import ConsumerMetrics
from millrace_client.consuming.subscription import DeliveryT, Subscription, SubscriptionState
from millrace_client.errors import (
    ChannelNotFoundError,
    MillraceError,
    NotOwnerError,
    RetryAdvice,
    UnauthenticatedError,
    UnavailableError,
)

LOG = logging.getLogger("millrace_client.consumer")

_FINAL = frozenset({RetryAdvice.CORRECT, RetryAdvice.SMALLER, RetryAdvice.NEVER})
_CLOSING_SHARE = 0.25
_CLOSING_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCloseReport:
    """What was left when a consumer was closed."""

    unsettled_deliveries: int
    """Deliveries in hand that were not settled in time; their events return."""
    unsettled_events: int
    errors: tuple[Exception, ...]
    """Why streams did not end cleanly: events that were acknowledged last on these may be delivered again."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was left."""
        return not self.unsettled_deliveries and not self.errors


class ConsumerCore(Generic[DeliveryT]):
    """The part of an engine that never waits. Not locked; see `DeliveryBuffer`."""

    def __init__(
        self,
        endpoints: str | Iterable[str],
        channels: str | Iterable[str],
        config: ConsumerConfig,
        clock: Callable[[], float],
        chance: random.Random | None = None,
    ) -> None:
        self.config = config
        self.is_stopping = False
        subscriptions: list[Subscription[DeliveryT]] = [
            Subscription(endpoint, channel, Backoff(config.reconnect_seconds, config.reconnect_seconds_max, chance))
            for endpoint, channel in subscriptions_of(endpoints, channels)
        ]
        self.buffer = DeliveryBuffer(subscriptions, config.prefetch_bytes_max, clock, config.hooks)
        limits = config.limits(len(subscriptions))
        self.starts = {
            subscription.channel: consume_start(subscription.channel, limits) for subscription in subscriptions
        }
        """The first message of each channel's streams."""
        self._clock = clock
        self._retries = Backoff(config.retry_seconds, config.retry_seconds_max, chance)
        self._unraised: deque[Exception] = deque()
        self._unfinished: list[DeliveryT] = []
        self._closing_errors: list[Exception] = []

    @property
    def subscriptions(self) -> Sequence[Subscription[DeliveryT]]:
        """All channels of all servers."""
        return self.buffer.subscriptions

    def metrics(self) -> ConsumerMetrics:
        return self.buffer.metrics(self._clock())

    def take(self) -> DeliveryT | None:
        """Returns the next delivery; None if none is queued, or the consumer is stopping.

        Raises:
            MillraceError: A channel of a server has failed. Raised once, and every time if no channel is left.
        """
        if self.is_stopping:
            return None
        if self._unraised:
            error = self._unraised.popleft()
            if not self._unraised and all(subscription.is_over for subscription in self.subscriptions):
                self._unraised.append(error)
            raise error
        return self.buffer.take()

    def check_connected(self) -> None:
        """Raises why a channel could not be read, for a loop that is to end since nothing was delivered."""
        for subscription in self.subscriptions:
            if not (self.is_stopping or subscription.is_connected or subscription.is_over):
                raise subscription.error or UnavailableError(
                    f"{subscription.endpoint} has not responded yet", channel=subscription.channel
                )

    def may_read(self, subscription: Subscription[DeliveryT]) -> bool:
        """Whether a subscription may read on: the buffer has space, or the consumer only waits for the stream's end."""
        return self.is_stopping or self.buffer.has_space(subscription)

    def accept(self, delivery: DeliveryT) -> bool:
        """Queues a delivery. Returns False if the consumer is stopping: then its events return when the stream ends."""
        if self.is_stopping:
            return False
        delivery.subscription.backoff.reset()
        self.buffer.add(delivery)
        return True

    def note_stream_end(
        self, subscription: Subscription[DeliveryT], stream: object, error: Exception | None, lived_seconds: float
    ) -> float | None:
        """Notes that a stream has ended, because of an error or cleanly, after this long.

        Returns after how long to start it again; None: not at all.
        """
        self.buffer.lose(subscription, stream)
        was_connected, subscription.is_connected = subscription.is_connected, False
        if self.is_stopping:
            # Without a response of the server, nothing was acknowledged on the stream.
            if error is not None and was_connected:
                self._closing_errors.append(error)
            subscription.move(SubscriptionState.ENDED)
            return None
        if error is None:
            error = UnavailableError(f"{subscription.endpoint} closed the stream", channel=subscription.channel)
        subscription.error = error
        if not isinstance(error, MillraceError) or not passes(error, self.config):
            self._fail(subscription, error)
            return None
        return self._pause(subscription, error, lived_seconds)

    def _pause(self, subscription: Subscription[DeliveryT], error: MillraceError, lived_seconds: float) -> float:
        # A channel may be silent for long, so a stream that lasted is a success, too.
        if lived_seconds > self.config.reconnect_seconds_max:
            subscription.backoff.reset()
        subscription.is_shared |= isinstance(error, NotOwnerError)
        awaits_owner = passes_with_next_owner(error, is_shared=subscription.is_shared)
        seconds = subscription.backoff.next_seconds(error.retry_delay_seconds, awaits_owner=awaits_owner)
        # Another server may know more: it is asked at once, unless the one before could not be reached either.
        hops = awaits_owner and not subscription.has_just_hopped and isinstance(error, UnavailableError)
        subscription.has_just_hopped = hops
        if hops:
            seconds = 0.0
        subscription.move(SubscriptionState.WAITING)
        self.buffer.counters.reconnects += 1
        # A lasting failure is logged once.
        level = logging.WARNING if subscription.backoff.failure_count == 1 else logging.DEBUG
        self.buffer.deferred.add(
            LOG.log,
            level,
            "the stream of %s ended and is started again in %.1f s: %s",
            subscription.name,
            seconds,
            error,
        )
        self.buffer.deferred.add(
            self.config.hooks.disconnected, subscription.endpoint, subscription.channel, error, seconds
        )
        return seconds

    def _fail(self, subscription: Subscription[DeliveryT], error: Exception) -> None:
        subscription.move(SubscriptionState.FAILED)
        self._unraised.append(error)
        self.buffer.deferred.add(self.config.hooks.failed, subscription.endpoint, subscription.channel, error)

    def note_handler_failure(self, delivery: DeliveryT, error: Exception) -> float:
        """Counts a handler that raised; returns after how long to try the delivery again."""
        self.buffer.counters.handler_failures += 1
        delivery.note_error(error)
        if delivery.is_settled:
            self.buffer.deferred.add(
                LOG.error, "the handler failed on %r, which was settled before", delivery, exc_info=error
            )
            return 0.0
        failures = self.buffer.attempts.note_failure(delivery.subscription.name, delivery.first_sequence)
        seconds = self._retries.seconds_after(failures)
        self.buffer.deferred.add(
            LOG.error,
            "the handler failed on %r of %s, which is tried again in %.1f s",
            delivery,
            delivery.subscription.name,
            seconds,
            exc_info=error,
        )
        self.buffer.deferred.add(self.config.hooks.handler_failed, delivery, error, seconds)
        return seconds

    def is_held_by_others(self, taker: object, *, takers_only: bool) -> bool:
        """Whether another thread or task may still settle a delivery; `takers_only`: one known to work on it."""
        return any(
            delivery.taken_by is not taker and not (takers_only and delivery.taken_by is None)
            for delivery in self.buffer.in_hand()
        )

    def note_unfinished(self) -> None:
        """Records the deliveries in hand when the time to settle them is over."""
        self._unfinished = self.buffer.in_hand()

    def report(self) -> ConsumerCloseReport:
        """Returns what was left, once all streams have ended or were cancelled."""
        return ConsumerCloseReport(
            unsettled_deliveries=len(self._unfinished),
            unsettled_events=sum(delivery.count for delivery in self._unfinished),
            errors=tuple(self._closing_errors),
        )


class ConsumerEngine(Generic[DeliveryT]):
    """Base of the engines."""

    def __init__(self, core: ConsumerCore[DeliveryT]) -> None:
        self._core = core
        self.config = core.config
        self.subscriptions = core.subscriptions
        self._process_id: int | None = None
        """The process whose threads or tasks read; None before the first `take`."""

    @property
    def is_stopping(self) -> bool:
        """Whether no more deliveries are handed out."""
        return self._core.is_stopping

    def metrics(self) -> ConsumerMetrics:
        return self._core.metrics()

    def _check_process(self) -> None:
        if self._process_id not in (None, os.getpid()):
            raise forked_error(self._process_id)


EngineT = TypeVar("EngineT", bound=ConsumerEngine[Any])


class BaseConsumer(Unpicklable, Generic[EngineT]):
    """The part of a consumer that does not depend on how its engine runs; base of both APIs' consumers."""

    _engine: EngineT

    @property
    def config(self) -> ConsumerConfig:
        """The consumer's limits."""
        return self._engine.config

    @property
    def is_stopping(self) -> bool:
        """Whether the consumer was stopped or closed."""
        return self._engine.is_stopping

    def metrics(self) -> ConsumerMetrics:
        """Returns the consumer's current metrics."""
        return self._engine.metrics()

    def __repr__(self) -> str:
        names = ", ".join(subscription.name for subscription in self._engine.subscriptions)
        return f"<{type(self).__name__} of {names}>"


def passes(error: MillraceError, config: ConsumerConfig) -> bool:
    """Whether the consumer waits and reconnects after an error: a restart, a replay, a claim, a broken network."""
    if isinstance(error, ChannelNotFoundError):
        return config.waits_for_channels
    if isinstance(error, UnauthenticatedError):
        return config.token_file is not None
    return error.advice not in _FINAL


def work_seconds_of(close_seconds: float) -> float:
    """Returns how much of the time for closing is for deliveries in hand; the rest is for ending the streams."""
    return close_seconds - min(close_seconds * _CLOSING_SHARE, _CLOSING_SECONDS_MAX)
