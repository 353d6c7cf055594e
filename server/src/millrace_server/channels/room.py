"""How much a channel may hold, and the line of those who wait for room."""

from millrace_server.channels.waiting import WaitingLine
from millrace_server.errors import BytesFullError, ChannelFullError, MillraceError


class Room:
    """Counts a channel's events and their bodies' bytes against its limits, exactly.

    Events count from their commit until a commit, an ack or an acknowledgement removes them: taken ones keep their
    room, so that a rollback always can return them.
    """

    def __init__(self, events_max: int, body_bytes_max: int) -> None:
        self.events_max = events_max
        self.body_bytes_max = body_bytes_max
        self.event_count = 0
        self.body_bytes = 0
        self.line = WaitingLine()

    def admits(self, event_count: int, body_bytes: int) -> bool:
        """Whether the channel can change by so much. What shrinks it is always admitted."""
        return (event_count <= 0 or self.event_count + event_count <= self.events_max) and (
            body_bytes <= 0 or self.body_bytes + body_bytes <= self.body_bytes_max
        )

    def change(self, event_count: int, body_bytes: int) -> None:
        """Counts a change, and wakes who waits where it made room."""
        self.event_count += event_count
        self.body_bytes += body_bytes
        assert self.event_count >= 0, self.event_count
        assert self.body_bytes >= 0, self.body_bytes
        if event_count < 0 or body_bytes < 0:
            self.line.wake_next()

    def resize(self, events_max: int, body_bytes_max: int) -> None:
        """Sets new limits; what is held may be above them."""
        self.events_max = events_max
        self.body_bytes_max = body_bytes_max
        self.line.wake_next()

    def full_error(self, event_count: int, body_bytes: int, waited_seconds: float) -> MillraceError:
        """What a change that found no room is refused with."""
        message = (
            f"the channel holds {self.event_count} events of {self.events_max} and {self.body_bytes} body bytes of "
            f"{self.body_bytes_max}; no room for {event_count} more with {body_bytes} in {waited_seconds:g} s"
        )
        kind = (
            ChannelFullError if event_count > 0 and self.event_count + event_count > self.events_max else BytesFullError
        )
        return kind(message, retry_delay_seconds=min(max(waited_seconds, 0.1), 1.0))
