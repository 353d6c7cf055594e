"""Deliveries that a sink holds until the files with their events are finished."""

from collections.abc import Iterable

from millrace_server.agent.channel_reader import Delivery, UnsettledLimits


class UnsettledDeliveries:
    """What is held, by numbers that count from 1 in the order in which it came.

    Args:
        join_events_max: Small deliveries that follow each other are joined as long as they have no more events.

    Attributes:
        end_sequence: One past the highest sequence that was ever added.
    """

    def __init__(self, join_events_max: int) -> None:
        self._join_events_max = join_events_max
        self._deliveries: dict[int, Delivery] = {}
        self._next_number = 1
        self._event_count = 0
        self._body_bytes = 0
        self.end_sequence = 0

    def __len__(self) -> int:
        """Deliveries that are held."""
        return len(self._deliveries)

    @property
    def oldest(self) -> int:
        """The number of the delivery that is held for longest."""
        return next(iter(self._deliveries))

    def add(self, delivery: Delivery) -> int:
        """Holds a delivery, as a part of the one before it where both are small; returns its number."""
        self._event_count += delivery.count
        self._body_bytes += delivery.body_bytes
        self.end_sequence = max(self.end_sequence, delivery.batches[-1].end_sequence)
        if self._deliveries:
            number, last = next(reversed(self._deliveries.items()))
            if last.count + delivery.count <= self._join_events_max and last.channel_id == delivery.channel_id:
                last.join(delivery)
                return number
        number = self._next_number
        self._next_number += 1
        self._deliveries[number] = delivery
        return number

    def remove(self, numbers: Iterable[int]) -> list[Delivery]:
        """Holds deliveries no more; returns them."""
        removed = [self._deliveries.pop(number) for number in numbers]
        self._event_count -= sum(delivery.count for delivery in removed)
        self._body_bytes -= sum(delivery.body_bytes for delivery in removed)
        return removed

    def exceeds(self, holdable: UnsettledLimits) -> bool:
        """Whether more is held than may be."""
        return (
            self._event_count > holdable.event_count
            or self._body_bytes > holdable.body_bytes
            or len(self._deliveries) > holdable.delivery_count
        )

    @property
    def low_sequence(self) -> int:
        """Below it nothing is held."""
        return min((delivery.first_sequence for delivery in self._deliveries.values()), default=self.end_sequence)
