"""Dead letters on the wire: events with headers about their rejection."""

from enum import StrEnum

DEAD_LETTER_PREFIX = "millrace.dead_letter."
"""The prefix of the headers about an event's rejection."""


class DeadLetterField(StrEnum):
    """The headers; the value is the name without the prefix. Not every dead letter has all of them."""

    REASON = "reason"
    """Why it was rejected, for people."""
    TIME = "time"
    """When it was set aside, in ISO 8601."""
    SINK = "sink"
    """The sink that rejected it."""
    SOURCE = "source"
    """The source that could not store it."""
    CHANNEL = "channel"
    """The channel that a sink took it from, or that a source wanted to put it into."""
    SEQUENCE = "sequence"
    """Its sequence in the channel that a sink took it from."""
    DELIVERIES = "deliveries"
    """How often it was delivered to the sink."""
    STEP = "step"
    """The step of the source that refused it, such as `interceptors[0]`."""

    @property
    def header(self) -> str:
        """The full name of the header."""
        return DEAD_LETTER_PREFIX + self
