"""Dead letters as they lie in a channel: events, and why they are there."""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.dead_letters import DEAD_LETTER_PREFIX, DeadLetterField
from millrace_client.channel import Channel
from millrace_client.events import Event

_NUMBER_DIGITS_MAX = 20
_UNLIMITED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that an agent has set aside. Whatever a header does not tell is empty or None here."""

    event: Event
    """As it lies in the channel."""

    @property
    def sequence(self) -> int:
        """Its sequence in the channel that it was set aside in."""
        assert self.event.sequence is not None, "it was read from a channel"
        return self.event.sequence

    @property
    def reason(self) -> str:
        """Why it was set aside."""
        return self._told(DeadLetterField.REASON)

    @property
    def time(self) -> str:
        """When, in ISO 8601."""
        return self._told(DeadLetterField.TIME)

    @property
    def component(self) -> str:
        """By whom: `sinks/NAME` or `sources/NAME`."""
        for field in (DeadLetterField.SINK, DeadLetterField.SOURCE):
            if name := self._told(field):
                return f"{field}s/{name}"
        return ""

    @property
    def step(self) -> str:
        """What refused it on its way through a source."""
        return self._told(DeadLetterField.STEP)

    @property
    def origin(self) -> str:
        """The channel that it came from, or was meant for."""
        return self._told(DeadLetterField.CHANNEL)

    @property
    def origin_sequence(self) -> int | None:
        """Its sequence there; None where it never lay there."""
        return self._number(DeadLetterField.SEQUENCE)

    @property
    def deliveries(self) -> int | None:
        """How often a sink had it; None where none had."""
        return self._number(DeadLetterField.DELIVERIES)

    def own_headers(self) -> dict[str, str]:
        """The headers that it had before it was set aside."""
        return {key: value for key, value in self.event.headers.items() if not key.startswith(DEAD_LETTER_PREFIX)}

    def restored(self, *, keep_headers: bool = False) -> Event:
        """The event as it was before it was set aside, or with all headers that it has now."""
        return Event(self.event.body, self.event.headers if keep_headers else self.own_headers())

    def _told(self, field: DeadLetterField) -> str:
        return self.event.headers.get(field.header, "")

    def _number(self, field: DeadLetterField) -> int | None:
        # Headers are whatever somebody put there.
        text = self._told(field)
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX else None


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """Which dead letters are meant; all of them where nothing is said."""

    origin: str | None = None
    """Those of this channel."""
    reason: str | None = None
    """Those whose reason holds this text, in large letters or small ones."""

    def has(self, letter: DeadLetter) -> bool:
        """Whether the letter is one of them."""
        if self.origin is not None and letter.origin != self.origin:
            return False
        return self.reason is None or self.reason.casefold() in letter.reason.casefold()


def letter_of(event: Event) -> DeadLetter | None:
    """The dead letter that an event is; None where it is an ordinary event."""
    return DeadLetter(event) if any(key.startswith(DEAD_LETTER_PREFIX) for key in event.headers) else None


def chosen_letters(channel: Channel, choice: LetterChoice) -> Iterator[DeadLetter]:
    """The dead letters among what is in a channel now, oldest first, without taking them. Calls when iterated.

    Memory holds what one message of the server brings, however many there are.
    """
    for batch in channel.peek(max_events=_UNLIMITED):
        for event in batch:
            letter = letter_of(event)
            if letter is not None and choice.has(letter):
                yield letter
