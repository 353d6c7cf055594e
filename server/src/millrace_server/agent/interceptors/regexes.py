"""Regular expressions on events: checked with the configuration, and bounded in time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import regex
from pydantic import AfterValidator, Field

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import EventsRefusedError, InterceptorConfig

PATTERN_LENGTH_MAX = 10_000

MATCH_SECONDS_MAX = 1.0
"""A single match that takes longer is given up, and its event refused."""

_REFUSED_AT_ONCE_MAX = 5
"""After so many events that are refused the rest of a batch is left for the next look at it."""

TOO_LONG = f"the regular expression took longer than {MATCH_SECONDS_MAX:g} s"
"""Why such an event is refused."""

FoundT = TypeVar("FoundT")
OtherT = TypeVar("OtherT")


def compiled(pattern: str) -> "regex.Pattern[str]":
    """The compiled pattern.

    Raises:
        ValueError: It is none; a sentence for the configuration's problems.
    """
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is {shown_value(pattern)}, which is no regular expression: {error}") from None


def _check_pattern(pattern: str) -> str:
    compiled(pattern)
    return pattern


RegexPattern = Annotated[str, Field(max_length=PATTERN_LENGTH_MAX), AfterValidator(_check_pattern)]
"""A regular expression, as Python's `re` and the library `regex` have them."""


class Regex:
    """A regular expression whose matches end in time.

    Some patterns take for ever on some texts, and whoever writes the text may know it. The library `regex` gives up
    when it is told to, which `re` does not; it also lets other threads go on while it searches.
    """

    def __init__(self, pattern: str) -> None:
        self._compiled = compiled(pattern)

    def search(self, text: str) -> "regex.Match[str] | None":
        """The first place that matches.

        Raises:
            TimeoutError: The search took too long.
        """
        return self._compiled.search(text, timeout=MATCH_SECONDS_MAX)

    def matches_whole(self, text: str) -> bool:
        """Whether the whole text matches; raises as `search` does."""
        return self._compiled.fullmatch(text, timeout=MATCH_SECONDS_MAX) is not None

    def replace(self, text: str, replacement: "str | Callable[[regex.Match[str]], str]") -> str:
        """The text with all places that match replaced; raises as `search` does."""
        return self._compiled.sub(replacement, text, timeout=MATCH_SECONDS_MAX)


class RegexConfig(InterceptorConfig):
    """What interceptors have that look at events with a regular expression."""

    pattern: RegexPattern
    """The regular expression. A body is read as UTF-8. A match that takes longer than a second is given up: its event
    goes to the dead-letter channel, or is dropped where there is none."""

    header: str | None = None
    """The header that is looked at. None: the body."""

    def texts(self, table: EventTable) -> Iterator[str | None]:
        """For each event what is looked at; None where it has no such header."""
        if self.header is not None:
            return iter(table.values(self.header))
        return (body.decode(errors="replace") for body in table.bodies)


def for_each(
    texts: Iterator[str | None], look: Callable[[str], FoundT], otherwise: OtherT
) -> Sequence[FoundT | OtherT]:
    """What a look at each text finds.

    Args:
        texts: The texts.
        look: Looks at one.
        otherwise: What is found where there is no text.

    Raises:
        EventsRefusedError: Some texts took too long, or became too much. There may be more of them.
    """
    found: list[Any] = []
    reasons: dict[int, str] = {}
    for index, text in enumerate(texts):
        if len(reasons) >= _REFUSED_AT_ONCE_MAX:
            # Whoever has given the batch up is not to be waited for much longer.
            break
        try:
            found.append(otherwise if text is None else look(text))
        except TimeoutError:
            reasons[index] = TOO_LONG
        except TooLongError as error:
            reasons[index] = str(error)
    if reasons:
        raise EventsRefusedError(reasons)
    return found


class TooLongError(Exception):
    """Returned where what is made of an event would be too long; says so in a sentence."""
