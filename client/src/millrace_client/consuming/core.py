"""What both engines decide alike: what becomes of broken streams, of failures, of the end."""

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

from millrace_client.consuming.backoff import Backoff
from millrace_client.consuming.config import ConsumerConfig, lane_names
from millrace_client.consuming.intake import Intake
from millrace_client.consuming.lanes import DeliveryT, Lane, LaneState
from millrace_client.consuming.metrics import ConsumerMetrics, metrics_of
from millrace_client.errors import ChannelNotFoundError, MillraceError, RetryAdvice, UnavailableError

LOG = logging.getLogger("millrace_client.consumer")

_FINAL = frozenset({RetryAdvice.CORRECT, RetryAdvice.SMALLER, RetryAdvice.NEVER})
_CLOSING_SHARE = 0.25
_CLOSING_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCloseReport:
    """What closing a consumer has left."""

    unsettled_deliveries: int
    """Deliveries that were in hand and not settled in time: their events return."""
    unsettled_events: int
    """Their events."""
    errors: tuple[Exception, ...]
    """Why streams did not end in order: of what was acknowledged last down these, some may come again."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was left."""
        return not self.unsettled_deliveries and not self.errors


class ConsumerCore(Generic[DeliveryT]):
    """The part of an engine that waits for nothing. Holds no lock; see `Intake`.

    Attributes:
        config: The consumer's limits.
        intake: What has come.
        is_stopping: Whether nothing more is handed out, nor taken in.
    """

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
        lanes: list[Lane[DeliveryT]] = [
            Lane(endpoint, channel, Backoff(config.reconnect_seconds, config.reconnect_seconds_max, chance))
            for endpoint, channel in lane_names(endpoints, channels)
        ]
        self.intake = Intake(lanes, config.prefetch_bytes_max, clock, config.hooks)
        self.limits = config.limits(len(lanes))
        self._clock = clock
        self._retries = Backoff(config.retry_seconds, config.retry_seconds_max, chance)
        self._untold: deque[Exception] = deque()
        self._left: list[DeliveryT] = []
        self._closing_errors: list[Exception] = []

    @property
    def lanes(self) -> Sequence[Lane[DeliveryT]]:
        """All channels at all servers."""
        return self.intake.lanes

    def metrics(self) -> ConsumerMetrics:
        """The figures as they are."""
        return metrics_of(self.intake, self._clock())

    def take(self) -> DeliveryT | None:
        """The next delivery; None where none is here, or none is wanted any more.

        Raises:
            MillraceError: A channel at a server was given up. Told once, and again and again where none is left.
        """
        if self.is_stopping:
            return None
        if self._untold:
            error = self._untold.popleft()
            if not self._untold and all(lane.is_over for lane in self.lanes):
                self._untold.append(error)
            raise error
        return self.intake.take()

    def may_read(self, lane: Lane[DeliveryT]) -> bool:
        """Whether a lane may read on: there is room, or what comes is left alone and only the end is waited for."""
        return self.is_stopping or self.intake.has_room(lane)

    def took_in(self, delivery: DeliveryT) -> bool:
        """Queues what has come; False where it is not wanted any more, and returns when its stream ends."""
        if self.is_stopping:
            return False
        delivery.lane.backoff.reset()
        self.intake.add(delivery)
        return True

    def broke(
        self, lane: Lane[DeliveryT], stream: object, error: Exception | None, lived_seconds: float
    ) -> float | None:
        """Notes that a lane's stream has ended.

        Args:
            lane: Whose it was.
            stream: What its deliveries know it by.
            error: Why; None where the server ended it in order.
            lived_seconds: How long it was there.

        Returns:
            After how long to begin it anew; None: not at all.
        """
        self.intake.lose(lane, stream)
        if self.is_stopping:
            if error is not None:
                self._closing_errors.append(error)
            lane.move(LaneState.ENDED)
            return None
        if error is None:
            error = UnavailableError(f"{lane.endpoint} has ended the deliveries", channel=lane.channel)
        lane.error = error
        if not isinstance(error, MillraceError) or not passes(error, waits_for_channels=self.config.waits_for_channels):
            self._give_up(lane, error)
            return None
        return self._pause(lane, error, lived_seconds)

    def _pause(self, lane: Lane[DeliveryT], error: MillraceError, lived_seconds: float) -> float:
        # A channel may be silent for long, so that a stream lived is a success too.
        if lived_seconds > self.config.reconnect_seconds_max:
            lane.backoff.reset()
        seconds = lane.backoff.next_seconds(error.retry_delay_seconds)
        lane.move(LaneState.WAITING)
        self.intake.counters.reconnects += 1
        # What lasts is told once.
        level = logging.WARNING if lane.backoff.failure_count == 1 else logging.DEBUG
        self.intake.notes.add(
            LOG.log, level, "deliveries of %s ended, and begin anew in %.1f s: %s", lane.name, seconds, error
        )
        self.intake.notes.add(self.config.hooks.disconnected, lane.endpoint, lane.channel, error, seconds)
        return seconds

    def _give_up(self, lane: Lane[DeliveryT], error: Exception) -> None:
        lane.move(LaneState.FAILED)
        self._untold.append(error)
        self.intake.notes.add(self.config.hooks.failed, lane.endpoint, lane.channel, error)

    def note_handler_failure(self, delivery: DeliveryT, error: Exception) -> float:
        """Counts a handler that raised; returns after how long the delivery may be tried again."""
        self.intake.counters.handler_failures += 1
        if delivery.is_settled:
            self.intake.notes.add(LOG.error, "the handler failed on %r, settled before", delivery, exc_info=error)
            return 0.0
        failures = self.intake.attempts.note_failure(delivery.lane.name, delivery.first_sequence)
        seconds = self._retries.seconds_after(failures)
        self.intake.notes.add(
            LOG.error,
            "the handler failed on %r of %s, which comes again in %.1f s",
            delivery,
            delivery.lane.name,
            seconds,
            exc_info=error,
        )
        self.intake.notes.add(self.config.hooks.handler_failed, delivery, error, seconds)
        return seconds

    def in_others_hands(self, taker: object, *, takers_only: bool) -> bool:
        """Whether anything is in hand that somebody else than this thread or task may still settle.

        Args:
            taker: The thread or task.
            takers_only: Count only what loops and handlers have, of which it is known who works on it.
        """
        return any(
            delivery.taken_by is not taker and not (takers_only and delivery.taken_by is None)
            for delivery in self.intake.in_hand()
        )

    def note_left(self) -> None:
        """Notes what is in hand, where no more time is given to settle it."""
        self._left = self.intake.in_hand()

    def report(self) -> ConsumerCloseReport:
        """What was left, where all lanes have ended or were cut off."""
        return ConsumerCloseReport(
            unsettled_deliveries=len(self._left),
            unsettled_events=sum(delivery.count for delivery in self._left),
            errors=tuple(self._closing_errors),
        )


def passes(error: MillraceError, *, waits_for_channels: bool) -> bool:
    """Whether the consumer waits and reconnects after an error: a restart, a replay, a claim, a broken network."""
    if isinstance(error, ChannelNotFoundError):
        return waits_for_channels
    return error.advice not in _FINAL


def work_seconds_of(close_seconds: float) -> float:
    """How much of the time for closing goes to what is being worked on; the rest is kept for ending the streams."""
    return close_seconds - min(close_seconds * _CLOSING_SHARE, _CLOSING_SECONDS_MAX)
