"""What has come from all lanes: merged fairly, bounded in bytes, followed until it is settled."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic

from millrace_client.consuming.attempts import Attempts
from millrace_client.consuming.counters import Counters
from millrace_client.consuming.hooks import ConsumerHooks, Notes
from millrace_client.consuming.lanes import DeliveryT, Lane
from millrace_client.consuming.tracked import MOVES, DeliveryState


class Intake(Generic[DeliveryT]):
    """Deliveries that are here. Holds no lock: its engine lets in one at a time, and nothing here waits.

    Attributes:
        lanes: All of them; each keeps its own deliveries in order.
        counters: What has happened so far.
        attempts: How often handlers have failed.
        notes: What hooks and the log are to be told, once the engine has let go.
    """

    def __init__(
        self, lanes: Sequence[Lane[DeliveryT]], bytes_max: int, clock: Callable[[], float], hooks: ConsumerHooks
    ) -> None:
        self.lanes = lanes
        self.counters = Counters()
        self.attempts = Attempts()
        self.notes = Notes()
        self._bytes_max = bytes_max
        self._clock = clock
        self._hooks = hooks
        # Lanes with queued deliveries, each once; the first is next. So a busy lane cannot starve another.
        self._turns: deque[Lane[DeliveryT]] = deque()
        self.queued_count = 0
        self.queued_bytes = 0
        self.unsettled_count = 0
        self.unsettled_bytes = 0

    def has_room(self, lane: Lane[DeliveryT]) -> bool:
        """Whether the lane may read one more delivery. A lane that has nothing out always may, or it could starve."""
        return self.unsettled_bytes < self._bytes_max or not lane.unsettled

    def add(self, delivery: DeliveryT) -> None:
        """Queues a delivery that came."""
        lane: Lane[DeliveryT] = delivery.lane
        if not lane.queued:
            self._turns.append(lane)
        lane.queued.append(delivery)
        lane.unsettled.add(delivery)
        self.queued_count += 1
        self.queued_bytes += delivery.byte_count
        self.unsettled_count += 1
        self.unsettled_bytes += delivery.byte_count
        self.counters.delivered_deliveries += 1
        self.counters.delivered_events += delivery.count
        self.counters.delivered_bytes += delivery.byte_count
        self.notes.add(self._hooks.delivered, delivery)

    def take(self) -> DeliveryT | None:
        """Hands out the next delivery; lanes take turns. None where none is here."""
        if not self._turns:
            return None
        lane = self._turns.popleft()
        delivery = lane.queued.popleft()
        if lane.queued:
            self._turns.append(lane)
        self.queued_count -= 1
        self.queued_bytes -= delivery.byte_count
        delivery.state = DeliveryState.IN_HAND
        delivery.taken_at = self._clock()
        delivery.attempt = self.attempts.number_of(lane.name, delivery.first_sequence)
        return delivery

    def settle(self, delivery: DeliveryT, target: DeliveryState) -> bool:
        """Moves a delivery that is in hand or held; False, and nothing is changed, where that is not allowed."""
        if target not in MOVES[delivery.state] or delivery.state is DeliveryState.QUEUED:
            return False
        was_held = delivery.state is DeliveryState.HELD
        delivery.state = target
        if not was_held:
            work_seconds = self._clock() - delivery.taken_at
            self.counters.work.observe(work_seconds)
            self.notes.add(self._hooks.settled, delivery, work_seconds, is_ack=target is DeliveryState.ACKED)
        if target is DeliveryState.HELD:
            return True
        self._let_go(delivery)
        if target is DeliveryState.ACKED:
            self.counters.acked_deliveries += 1
            self.counters.acked_events += delivery.count
            self.attempts.forget(delivery.lane.name, delivery.first_sequence)
        else:
            self.counters.nacked_deliveries += 1
            self.counters.nacked_events += delivery.count
        return True

    def note_lost(self, delivery: DeliveryT) -> None:
        """Corrects what `settle` has noted: the stream had ended before it could be told."""
        if delivery.state is DeliveryState.ACKED:
            self.counters.acked_deliveries -= 1
            self.counters.acked_events -= delivery.count
        elif delivery.state is DeliveryState.NACKED:
            self.counters.nacked_deliveries -= 1
            self.counters.nacked_events -= delivery.count
        delivery.state = DeliveryState.LOST
        self._count_lost(delivery)

    def lose(self, lane: Lane[DeliveryT], stream: object) -> None:
        """Forgets a stream's deliveries, since all of them have returned and come again.

        What is queued is dropped, lest its events come twice; what is in hand can be settled no more.
        """
        lost = [delivery for delivery in lane.unsettled if delivery.stream is stream]
        for delivery in lost:
            is_queued = delivery.state is DeliveryState.QUEUED
            if is_queued:
                self.queued_count -= 1
                self.queued_bytes -= delivery.byte_count
            delivery.state = DeliveryState.LOST
            self._let_go(delivery)
            if not is_queued:
                self._count_lost(delivery)
        # A lane has one stream at a time, so all that is queued is of this one.
        if lane.queued:
            lane.queued.clear()
            self._turns.remove(lane)

    def in_hand(self) -> list[DeliveryT]:
        """What was handed out and is not settled."""
        return [
            delivery for lane in self.lanes for delivery in lane.unsettled if delivery.state is DeliveryState.IN_HAND
        ]

    def _let_go(self, delivery: DeliveryT) -> None:
        delivery.lane.unsettled.discard(delivery)
        self.unsettled_count -= 1
        self.unsettled_bytes -= delivery.byte_count

    def _count_lost(self, delivery: DeliveryT) -> None:
        self.counters.lost_deliveries += 1
        self.counters.lost_events += delivery.count
        self.notes.add(self._hooks.lost, delivery)
