"""Dead letters: events in a dead-letter channel, and why they are there."""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.dead_letters import DEAD_LETTER_PREFIX, DeadLetterField, own_headers
from millrace_client.channel import Channel
from millrace_client.events import Event

_NUMBER_DIGITS_MAX = 20
_UNLIMITED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that an agent has set aside. Properties without a header are empty or None."""

    event: Event
    """The event as the channel holds it."""

    @property
    def sequence(self) -> int:
        assert self.event.sequence is not None, "it was read from a channel"
        return self.event.sequence

    @property
    def reason(self) -> str:
        return self._field(DeadLetterField.REASON)

    @property
    def time(self) -> str:
        """When it was set aside, in ISO 8601."""
        return self._field(DeadLetterField.TIME)

    @property
    def component(self) -> str:
        """The component that set it aside: `sinks/NAME` or `sources/NAME`."""
        for field in (DeadLetterField.SINK, DeadLetterField.SOURCE):
            if name := self._field(field):
                return f"{field}s/{name}"
        return ""

    @property
    def step(self) -> str:
        """The step of the source that refused it."""
        return self._field(DeadLetterField.STEP)

    @property
    def origin(self) -> str:
        """The channel that it was taken from, or was meant for."""
        return self._field(DeadLetterField.CHANNEL)

    @property
    def origin_sequence(self) -> int | None:
        """Its sequence in that channel; None if it was never stored there."""
        return self._number(DeadLetterField.SEQUENCE)

    @property
    def deliveries(self) -> int | None:
        """How often it was delivered to a sink; None if it never was."""
        return self._number(DeadLetterField.DELIVERIES)

    def own_headers(self) -> dict[str, str]:
        """Returns the headers that it had before it was set aside."""
        return own_headers(self.event.headers)

    def restored(self, *, keep_headers: bool = False) -> Event:
        """Returns the event as it was before it was set aside, or with all its present headers."""
        return Event(self.event.body, self.event.headers if keep_headers else self.own_headers())

    def _field(self, field: DeadLetterField) -> str:
        return self.event.headers.get(field.header, "")

    def _number(self, field: DeadLetterField) -> int | None:
        # Any client may have written the header.
        text = self._field(field)
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX else None


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """Selects dead letters. By default it selects all of them."""

    origin: str | None = None
    reason: str | None = None
    """Only letters whose reason contains this text, regardless of case."""

    def includes(self, letter: DeadLetter) -> bool:
        if self.origin is not None and letter.origin != self.origin:
            return False
        return self.reason is None or self.reason.casefold() in letter.reason.casefold()


def letter_of(event: Event) -> DeadLetter | None:
    """Returns an event as a dead letter; None if it is not one."""
    return DeadLetter(event) if any(key.startswith(DEAD_LETTER_PREFIX) for key in event.headers) else None


def selected_letters(channel: Channel, selection: LetterSelection) -> Iterator[DeadLetter]:
    """Yields the selected dead letters of a channel, oldest first, without taking them. Calls the server when iterated.

    Memory holds the events of one message at a time.
    """
    for batch in channel.peek(max_events=_UNLIMITED):
        for event in batch:
            letter = letter_of(event)
            if letter is not None and selection.includes(letter):
                yield letter
