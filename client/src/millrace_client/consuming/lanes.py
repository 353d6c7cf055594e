"""One channel at one server, as its consumer sees it."""

import enum
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from millrace_client.consuming.backoff import Backoff

if TYPE_CHECKING:
    from millrace_client.consuming.tracked import TrackedDelivery

DeliveryT = TypeVar("DeliveryT", bound="TrackedDelivery")


class LaneState(enum.StrEnum):
    """Moves; any other is illegal.

    WAITING -> READING   its stream was begun
    READING -> WAITING   the stream broke; it is begun anew after a pause
    READING -> FAILED    it was refused for a reason that time does not mend
    any but FAILED -> ENDED   the consumer was closed
    """

    WAITING = "waiting"
    READING = "reading"
    FAILED = "failed"
    ENDED = "ended"


_MOVES = {
    LaneState.WAITING: {LaneState.READING, LaneState.ENDED},
    LaneState.READING: {LaneState.WAITING, LaneState.FAILED, LaneState.ENDED},
    LaneState.FAILED: set[LaneState](),
    LaneState.ENDED: set[LaneState](),
}


class Lane(Generic[DeliveryT]):
    """One channel at one server: its deliveries in order, and how its stream is.

    Attributes:
        endpoint: Where the server is.
        channel: The channel's name.
        backoff: Pauses between its streams.
        queued: Deliveries that came and were not handed out yet.
        unsettled: All that came and are not settled, queued ones included.
        error: What ended its last stream; None where nothing did.
    """

    def __init__(self, endpoint: str, channel: str, backoff: Backoff) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.backoff = backoff
        self.queued: deque[DeliveryT] = deque()
        self.unsettled: set[DeliveryT] = set()
        self.error: Exception | None = None
        self._state = LaneState.WAITING

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.endpoint}/{self.channel}"

    @property
    def state(self) -> LaneState:
        """How it is."""
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether nothing will ever come any more."""
        return not _MOVES[self._state]

    def move(self, target: LaneState) -> None:
        """Changes the state; only as the table allows."""
        assert target in _MOVES[self._state], f"{self.name}: {self._state} -> {target}"
        self._state = target
