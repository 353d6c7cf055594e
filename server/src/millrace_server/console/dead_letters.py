"""Dead letters as the console shows them."""

from typing import Annotated, Any

from pydantic import Field

from millrace_client.dead_letters import LetterSelection, letter_of
from millrace_client.events import Event
from millrace_server.console.events import Describe, EventsQuery, ShownEvent


class DeadLettersQuery(EventsQuery):
    """Which dead letters to show."""

    origin: Annotated[str, Field(max_length=64)] = ""
    reason: Annotated[str, Field(max_length=200)] = ""


def describe_letters(query: DeadLettersQuery) -> Describe:
    """Returns a function that describes the dead letters that match a query."""
    selection = LetterSelection(query.origin or None, query.reason or None)
    needle = query.search.lower()

    def describe(event: ShownEvent) -> dict[str, Any] | None:
        letter = letter_of(Event(event.body, event.headers, event.sequence))
        if letter is None or not selection.includes(letter) or (needle and not event.contains(needle)):
            return None
        return event.document(query.body_bytes_max) | {
            "headers": list(letter.own_headers().items()),
            "reason": letter.reason,
            "time": letter.time,
            "component": letter.component,
            "step": letter.step,
            "origin": letter.origin,
            "origin_sequence": letter.origin_sequence,
            "deliveries": letter.deliveries,
        }

    return describe
