"""Dead letters on the wire: events with headers about their rejection."""

import json
from collections.abc import Mapping
from enum import StrEnum

from millrace.columns import HEADER_KEYS_MAX

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
    HEADERS = "headers"
    """More headers of the event, as a JSON object: those for which there was no space, and, where it was a dead letter
    before, those about its first rejection."""

    @property
    def header(self) -> str:
        """The full name of the header."""
        return DEAD_LETTER_PREFIX + self


def letter_headers(own: Mapping[str, str], fields: Mapping[DeadLetterField, str]) -> dict[str, str]:
    """Returns the headers of a dead letter, from which `own_headers` returns the event's own.

    Args:
        own: The event's headers before.
        fields: The headers about its rejection.
    """
    visible, hidden = _apart(own)
    # A letter that is set aside again and again keeps the first rejection, and does not grow with each.
    first = _hidden_in(own)
    if any(map(_is_about_rejection, first)):
        hidden = first
    letter = {field.header: value for field, value in fields.items()}
    surplus_count = len(visible) + len(letter) + bool(hidden) - HEADER_KEYS_MAX
    if surplus_count > 0:
        # One more, for the header that holds them.
        for key in list(visible)[-surplus_count - (not hidden) :]:
            hidden[key] = visible.pop(key)
    if hidden:
        letter[DeadLetterField.HEADERS.header] = json.dumps(hidden, ensure_ascii=False, separators=(",", ":"))
    return visible | letter


def own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that a dead letter had before it was set aside."""
    visible, _ = _apart(headers)
    own = visible | _hidden_in(headers)
    # No event has more: then it is not what `letter_headers` wrote.
    return own if len(own) <= HEADER_KEYS_MAX else visible


def _apart(headers: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns an event's own headers, and those about a rejection."""
    about = {key: value for key, value in headers.items() if _is_about_rejection(key)}
    return {key: value for key, value in headers.items() if key not in about}, about


def _is_about_rejection(key: str) -> bool:
    return key.startswith(DEAD_LETTER_PREFIX)


def _hidden_in(headers: Mapping[str, str]) -> dict[str, str]:
    # Any client may have written the header.
    try:
        hidden = json.loads(headers.get(DeadLetterField.HEADERS.header, "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(hidden, dict) or not all(isinstance(value, str) for value in hidden.values()):
        return {}
    return hidden
