"""Regular expressions on events: checked with the configuration, and bounded in time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

import regex
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import EventsRefusedError, Interceptor, InterceptorConfig

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


class RegexFilterConfig(RegexConfig):
    """Keeps or drops the events in which a regular expression is found; how many are dropped is counted."""

    type: Literal["regex_filter"]
    """Keeps or drops the events that match."""

    action: Literal["keep", "drop"] = "keep"
    """What is done with an event in which it is found. An event without the header has nothing to find."""

    def make(self) -> Interceptor:
        return _RegexFilter(self)


class _RegexFilter:
    def __init__(self, config: RegexFilterConfig) -> None:
        self._config = config
        self._regex = Regex(config.pattern)

    def intercept(self, table: EventTable) -> EventTable:
        keeps = self._config.action == "keep"
        is_kept = for_each(
            self._config.texts(table), lambda text: (self._regex.search(text) is not None) is keeps, not keeps
        )
        return table if all(is_kept) else table.chosen(is_kept)


GROWTH_MAX = 1 << 20
"""So many characters longer a text may become."""


class SearchReplaceConfig(RegexConfig):
    """Replaces all places of the body, or a header, that match.

    A text that would become more than a million characters longer is refused: its event goes to the dead-letter
    channel, or is dropped where there is none.
    """

    type: Literal["search_replace"]
    """Other text in the place of what matches."""

    replacement: str
    """What takes the place; `\\1` or `\\g<name>` stand for what a group has matched."""

    @field_validator("replacement")
    @classmethod
    def _check_groups(cls, replacement: str, info: ValidationInfo) -> str:
        if "pattern" in info.data:
            try:
                _with_groups_of(compiled(info.data["pattern"])).sub(replacement, "")
            except (regex.error, IndexError) as error:
                raise ValueError(f"is {shown_value(replacement)}, which does not fit the pattern: {error}") from None
        return replacement

    def make(self) -> Interceptor:
        return _SearchReplace(self)


def _with_groups_of(pattern: "regex.Pattern[str]") -> "regex.Pattern[str]":
    """A pattern that matches anything, with the same groups: a replacement is looked at where there is a match only."""
    names = {number: name for name, number in pattern.groupindex.items()}
    groups = (f"(?P<{names[number]}>)" if number in names else "()" for number in range(1, pattern.groups + 1))
    return compiled("".join(groups))


class _SearchReplace:
    def __init__(self, config: SearchReplaceConfig) -> None:
        self._config = config
        self._regex = Regex(config.pattern)

    def intercept(self, table: EventTable) -> EventTable:
        header = self._config.header
        if header is None:
            # Bytes that are no UTF-8 come out as they went in.
            texts = (body.decode(errors="surrogateescape") for body in table.bodies)
            replaced = for_each(texts, self._replaced, None)
            table.bodies = [(text or "").encode(errors="surrogateescape") for text in replaced]
            return table
        values = table.headers.get(header)
        if isinstance(values, str):
            try:
                table.headers[header] = self._replaced(values)
            except (TimeoutError, TooLongError):
                # Found again for each event.
                for_each(iter(table.values(header)), self._replaced, None)
        elif values is not None:
            table.headers[header] = for_each(iter(values), self._replaced, None)
        return table

    def _replaced(self, text: str) -> str:
        template = self._config.replacement
        # A match takes one character at least, or none between two of them; each is replaced by the template with at
        # most the whole text for each of its groups.
        growth_bound = (len(text) + 1) * len(template) * (len(text) if "\\" in template else 1)
        if growth_bound <= GROWTH_MAX:
            return self._regex.replace(text, template)
        growth = 0

        def expand(match: "regex.Match[str]") -> str:
            nonlocal growth
            expanded = match.expand(template)
            growth += len(expanded) - (match.end() - match.start())
            if growth > GROWTH_MAX:
                raise TooLongError(f"with all replacements it would be more than {GROWTH_MAX} characters longer")
            return expanded

        return self._regex.replace(text, expand)
