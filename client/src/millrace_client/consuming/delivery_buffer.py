"""The deliveries of all subscriptions: merged fairly, bounded in bytes, tracked until they are settled."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, ParamSpec

from millrace_client.consuming.config import ConsumerHooks
from millrace_client.consuming.metrics import ConsumerCounters, ConsumerMetrics, SubscriptionMetrics
from millrace_client.consuming.subscription import MOVES, DeliveryState, DeliveryT, Subscription

_Arguments = ParamSpec("_Arguments")
_LOG = logging.getLogger("millrace_client.consumer")

POSITIONS_MAX = 10_000
"""The most positions with failures that are remembered; the oldest failures are forgotten first."""


class DeliveryBuffer(Generic[DeliveryT]):
    """The unsettled deliveries. Not locked: its engine admits one caller at a time, and nothing here waits.

    Attributes:
        deferred: Calls of hooks and of the log, for when the engine has released its lock.
    """

    def __init__(
        self,
        subscriptions: Sequence[Subscription[DeliveryT]],
        bytes_max: int,
        clock: Callable[[], float],
        hooks: ConsumerHooks,
    ) -> None:
        self.subscriptions = subscriptions
        self.counters = ConsumerCounters()
        self.attempts = AttemptCounter()
        self.deferred = DeferredCalls()
        self._bytes_max = bytes_max
        self._clock = clock
        self._hooks = hooks
        # Subscriptions with queued deliveries, each once; the first is next. So a busy one cannot starve another.
        self._turns: deque[Subscription[DeliveryT]] = deque()
        self.queued_count = 0
        self.queued_bytes = 0
        self.unsettled_count = 0
        self.unsettled_bytes = 0

    def has_space(self, subscription: Subscription[DeliveryT]) -> bool:
        """Whether a subscription may read another delivery. One without unsettled deliveries always may."""
        return self.unsettled_bytes < self._bytes_max or not subscription.unsettled

    def add(self, delivery: DeliveryT) -> None:
        subscription: Subscription[DeliveryT] = delivery.subscription
        if not subscription.queued:
            self._turns.append(subscription)
        subscription.queued.append(delivery)
        subscription.unsettled.add(delivery)
        self.queued_count += 1
        self.queued_bytes += delivery.byte_count
        self.unsettled_count += 1
        self.unsettled_bytes += delivery.byte_count
        self.counters.delivered_deliveries += 1
        self.counters.delivered_events += delivery.count
        self.counters.delivered_bytes += delivery.byte_count
        self.deferred.add(self._hooks.delivered, delivery)

    def take(self) -> DeliveryT | None:
        """Hands out the next delivery; subscriptions take turns. Returns None if none is queued."""
        if not self._turns:
            return None
        subscription = self._turns[0]
        delivery = subscription.queued[0]
        delivery.taken_at = self._clock()
        delivery.attempt = self.attempts.number_of(subscription.name, delivery.first_sequence)
        self._turns.rotate(-1)
        # No calls from here on, after which Ctrl-C could interrupt: the delivery is either queued or handed out.
        del subscription.queued[0]
        if not subscription.queued:
            del self._turns[-1]
        self.queued_count -= 1
        self.queued_bytes -= delivery.byte_count
        delivery.state = DeliveryState.IN_HAND
        return delivery

    def settle(self, delivery: DeliveryT, target: DeliveryState) -> bool:
        """Moves a delivery that is in hand or held. Returns False and changes nothing if that is not allowed."""
        if target not in MOVES[delivery.state] or delivery.state is DeliveryState.QUEUED:
            return False
        was_held = delivery.state is DeliveryState.HELD
        delivery.state = target
        if not was_held:
            work_seconds = self._clock() - delivery.taken_at
            self.counters.work.observe(work_seconds)
            self.deferred.add(self._hooks.settled, delivery, work_seconds, is_ack=target is DeliveryState.ACKED)
            if delivery.span is not None:
                self.deferred.add(delivery.end_span)
        if target is DeliveryState.HELD:
            return True
        self._untrack(delivery)
        if target is DeliveryState.ACKED:
            self.counters.acked_deliveries += 1
            self.counters.acked_events += delivery.count
            self.attempts.forget(delivery.subscription.name, delivery.first_sequence)
        else:
            self.counters.nacked_deliveries += 1
            self.counters.nacked_events += delivery.count
        return True

    def note_lost(self, delivery: DeliveryT) -> None:
        """Corrects `settle`: the stream had ended before the server could be informed."""
        if delivery.state is DeliveryState.ACKED:
            self.counters.acked_deliveries -= 1
            self.counters.acked_events -= delivery.count
        elif delivery.state is DeliveryState.NACKED:
            self.counters.nacked_deliveries -= 1
            self.counters.nacked_events -= delivery.count
        delivery.state = DeliveryState.LOST
        self._count_lost(delivery)

    def lose(self, subscription: Subscription[DeliveryT], stream: object) -> None:
        """Forgets the deliveries of an ended stream: the server returns their events and delivers them again.

        Queued deliveries are dropped, so that their events do not arrive twice; those in hand can no longer be settled.
        """
        lost = [delivery for delivery in subscription.unsettled if delivery.stream is stream]
        for delivery in lost:
            is_queued = delivery.state is DeliveryState.QUEUED
            if is_queued:
                self.queued_count -= 1
                self.queued_bytes -= delivery.byte_count
            delivery.state = DeliveryState.LOST
            self._untrack(delivery)
            if not is_queued:
                self._count_lost(delivery)
        # A subscription has one stream at a time, so everything queued belongs to this one.
        if subscription.queued:
            subscription.queued.clear()
            self._turns.remove(subscription)

    def in_hand(self) -> list[DeliveryT]:
        """Returns the deliveries that were handed out and are not settled."""
        return [
            delivery
            for subscription in self.subscriptions
            for delivery in subscription.unsettled
            if delivery.state is DeliveryState.IN_HAND
        ]

    def metrics(self, now: float) -> ConsumerMetrics:
        counters = self.counters
        return ConsumerMetrics(
            time=now,
            queued_deliveries=self.queued_count,
            queued_bytes=self.queued_bytes,
            unsettled_deliveries=self.unsettled_count,
            unsettled_bytes=self.unsettled_bytes,
            delivered_deliveries=counters.delivered_deliveries,
            delivered_events=counters.delivered_events,
            delivered_bytes=counters.delivered_bytes,
            acked_deliveries=counters.acked_deliveries,
            acked_events=counters.acked_events,
            nacked_deliveries=counters.nacked_deliveries,
            nacked_events=counters.nacked_events,
            lost_deliveries=counters.lost_deliveries,
            lost_events=counters.lost_events,
            handler_failures=counters.handler_failures,
            reconnects=counters.reconnects,
            work=counters.work.summary(),
            lanes=[
                SubscriptionMetrics(
                    endpoint=subscription.endpoint,
                    channel=subscription.channel,
                    state=subscription.state,
                    error=subscription.error,
                    queued_deliveries=len(subscription.queued),
                    unsettled_deliveries=len(subscription.unsettled),
                )
                for subscription in self.subscriptions
            ],
        )

    def _untrack(self, delivery: DeliveryT) -> None:
        delivery.subscription.unsettled.discard(delivery)
        self.unsettled_count -= 1
        self.unsettled_bytes -= delivery.byte_count

    def _count_lost(self, delivery: DeliveryT) -> None:
        self.counters.lost_deliveries += 1
        self.counters.lost_events += delivery.count
        self.deferred.add(self._hooks.lost, delivery)
        if delivery.span is not None:
            self.deferred.add(delivery.end_span)


class AttemptCounter:
    """Counts the failed attempts at deliveries, by their first sequence.

    The wire has no delivery count, and a server may group returned events into other deliveries than before. So the
    numbers are an estimate.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, int], int] = OrderedDict()

    def number_of(self, subscription: str, first_sequence: int) -> int:
        """Returns the number of the next attempt, from 1."""
        return self._failures.get((subscription, first_sequence), 0) + 1

    def note_failure(self, subscription: str, first_sequence: int) -> int:
        """Counts a failure; returns the number of consecutive failures."""
        position = subscription, first_sequence
        failures = self._failures[position] = self._failures.pop(position, 0) + 1
        if len(self._failures) > POSITIONS_MAX:
            self._failures.popitem(last=False)
        return failures

    def forget(self, subscription: str, first_sequence: int) -> None:
        self._failures.pop((subscription, first_sequence), None)


class DeferredCalls:
    """Calls of hooks and of the log, made once no lock is held, since users may have written them."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()

    def add(self, call: Callable[_Arguments, None], *args: _Arguments.args, **named: _Arguments.kwargs) -> None:
        self._calls.append(partial(call, *args, **named))

    def run(self) -> None:
        """Makes the calls, and logs what they raise. For several threads at once."""
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:
                # Another thread has taken it.
                return
            try:
                call()
            except Exception:  # noqa: BLE001 - a hook may raise anything
                _LOG.exception("a hook of a consumer raised")
