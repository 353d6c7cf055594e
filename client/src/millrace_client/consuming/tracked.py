"""A delivery, from its coming to its end."""

import enum
from typing import Any

from millrace.v1 import channel_service_pb2 as pb
from millrace_client._delivered import DeliveredEvents
from millrace_client.consuming.lanes import Lane


class DeliveryState(enum.Enum):
    """Moves; any other is illegal, and asking for one changes nothing.

    QUEUED -> IN_HAND            a loop or a handler got it
    IN_HAND -> ACKED             ack(): its events are removed
    IN_HAND -> HELD, NACKED      nack(), with a delay or without one: its events return
    HELD -> NACKED               the delay is over
    QUEUED, IN_HAND, HELD -> LOST   its stream ended before: its events have returned
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
    """What both faces' deliveries are.

    Attributes:
        lane: Where it came from.
        stream: The stream that it came down, and by which alone it can be settled.
        byte_count: What it takes of the consumer's bytes.
        state: Changed by the intake alone.
        attempt: See the property of the public classes.
        taken_at: When it was handed out, on the engine's clock.
        taken_by: The thread or task that it was handed to where that is known to work on it; else None.
    """

    __slots__ = ("attempt", "byte_count", "lane", "state", "stream", "taken_at", "taken_by")

    def __init__(self, lane: Lane[Any], stream: Any, answer: pb.ConsumeResponse) -> None:
        super().__init__(answer)
        self.lane = lane
        self.stream = stream
        self.byte_count = answer.ByteSize()
        self.state = DeliveryState.QUEUED
        self.attempt = 1
        """1, and one more for each time that this consumer's handlers failed on the same first event."""
        self.taken_at = 0.0
        self.taken_by: object | None = None

    @property
    def endpoint(self) -> str:
        """The server that it came from."""
        return self.lane.endpoint

    @property
    def channel(self) -> str:
        """The channel that it came from."""
        return self.lane.channel

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged or returned, or was lost."""
        return self.state not in (DeliveryState.QUEUED, DeliveryState.IN_HAND)

    @property
    def is_lost(self) -> bool:
        """Whether its stream ended before it was settled: its events have returned, and come again."""
        return self.state is DeliveryState.LOST
