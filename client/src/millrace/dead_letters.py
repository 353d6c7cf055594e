"""Dead letters on the wire: events whose headers tell why they could go no further."""

from enum import StrEnum

DEAD_LETTER_PREFIX = "millrace.dead_letter."
"""What the headers that tell of an event's rejection begin with."""


class DeadLetterField(StrEnum):
    """What such headers tell; the value is the end of the header's name. Not every dead letter has each of them."""

    REASON = "reason"
    """Why, for people."""
    TIME = "time"
    """When it was set aside, in ISO 8601."""
    SINK = "sink"
    """The sink that rejected it."""
    SOURCE = "source"
    """The source that could not store it."""
    CHANNEL = "channel"
    """The channel that a sink had it from, or that a source had it for."""
    SEQUENCE = "sequence"
    """Its sequence in the channel that a sink had it from."""
    DELIVERIES = "deliveries"
    """How often the sink had it."""
    STEP = "step"
    """What refused it on its way through a source, such as `interceptors[0]`."""

    @property
    def header(self) -> str:
        """The header's whole name."""
        return DEAD_LETTER_PREFIX + self
