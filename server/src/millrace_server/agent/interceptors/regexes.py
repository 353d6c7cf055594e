"""Regular expressions with a time limit, and the interceptors `regex_filter` and `search_replace`."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.context import THIS_MACHINE, InterceptorContext
from millrace_server.agent.interceptors.interceptor import EventsRefusedError, Interceptor, InterceptorConfig
from millrace_server.agent.setting_types import valid_for

if TYPE_CHECKING:
    import regex

PATTERN_LENGTH_MAX = 10_000

MATCH_SECONDS_MAX = 1.0
"""A match that takes longer is aborted, and its event refused."""

_REFUSALS_MAX = 5
"""After this many refused events, the rest of the batch is left to the next attempt."""

MATCH_TIMED_OUT = f"the regular expression took longer than {MATCH_SECONDS_MAX:g} s"
"""The reason why such an event is refused."""

ResultT = TypeVar("ResultT")
DefaultT = TypeVar("DefaultT")


def compile_pattern(pattern: str) -> "regex.Pattern[str]":
    """Returns the compiled pattern. Raises ValueError with a sentence about the setting."""
    # Most configurations have no pattern, and importing the library takes long.
    import regex

    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is {shown_value(pattern)}, which is not a valid regular expression: {error}") from None


RegexPattern = Annotated[str, Field(max_length=PATTERN_LENGTH_MAX), valid_for(compile_pattern)]
"""A regular expression in the syntax of Python's `re` and of the library `regex`."""


class Regex:
    """A regular expression whose matches have a time limit.

    Some patterns take practically forever on some texts, which the author of a text may exploit. The library `regex`
    has timeouts, which `re` lacks; it also releases the GIL while it searches. All methods may raise TimeoutError.
    """

    def __init__(self, pattern: str) -> None:
        self._compiled = compile_pattern(pattern)

    def search(self, text: str) -> "regex.Match[str] | None":
        return self._compiled.search(text, timeout=MATCH_SECONDS_MAX)

    def matches_whole(self, text: str) -> bool:
        return self._compiled.fullmatch(text, timeout=MATCH_SECONDS_MAX) is not None

    def replace(self, text: str, replacement: "str | Callable[[regex.Match[str]], str]") -> str:
        return self._compiled.sub(replacement, text, timeout=MATCH_SECONDS_MAX)


class RegexConfig(InterceptorConfig):
    """Base class of the settings of interceptors that apply a regular expression."""

    pattern: RegexPattern
    """The regular expression. Bodies are decoded as UTF-8. A match that takes longer than a second is aborted: its
    event goes to the dead-letter channel, or is dropped if there is none."""

    header: str | None = None
    """The header to search. None: the body."""

    def texts(self, table: EventTable) -> Iterator[str | None]:
        """Returns the text to search for each event; None if the event lacks the header."""
        if self.header is not None:
            return iter(table.values(self.header))
        return (body.decode(errors="replace") for body in table.bodies)


def map_texts(
    texts: Iterator[str | None], function: Callable[[str], ResultT], default: DefaultT
) -> Sequence[ResultT | DefaultT]:
    """Returns the function's result for each text, and the default for None.

    Raises:
        EventsRefusedError: Some texts took too long or became too long. There may be more such texts.
    """
    results: list[Any] = []
    reasons: dict[int, str] = {}
    for index, text in enumerate(texts):
        if len(reasons) >= _REFUSALS_MAX:
            # Limits the time during which an abandoned batch still occupies the thread.
            break
        try:
            results.append(default if text is None else function(text))
        except TimeoutError:
            reasons[index] = MATCH_TIMED_OUT
        except TooLongError as error:
            reasons[index] = str(error)
    if reasons:
        raise EventsRefusedError(reasons)
    return results


class TooLongError(Exception):
    """Raised when the result for an event would be too long; the message is a sentence."""


class RegexFilterConfig(RegexConfig):
    """Keeps or drops the events in which a regular expression is found; dropped events are counted."""

    type: Literal["regex_filter"]
    """Keeps or drops matching events."""

    action: Literal["keep", "drop"] = "keep"
    """What happens to a matching event. An event that lacks the header does not match."""

    def make(self, _context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        return _RegexFilter(self)


class _RegexFilter:
    def __init__(self, config: RegexFilterConfig) -> None:
        self._config = config
        self._regex = Regex(config.pattern)

    def intercept(self, table: EventTable) -> EventTable:
        keeps = self._config.action == "keep"
        is_kept = map_texts(
            self._config.texts(table), lambda text: (self._regex.search(text) is not None) is keeps, not keeps
        )
        return table if all(is_kept) else table.chosen(is_kept)


GROWTH_CHARACTERS_MAX = 1 << 20
"""The number of characters by which a text may grow."""


class SearchReplaceConfig(RegexConfig):
    """Replaces all matches in the body or in a header.

    A text that would grow by more than a million characters is refused: its event goes to the dead-letter channel, or
    is dropped if there is none.
    """

    type: Literal["search_replace"]
    """Replaces matching text."""

    replacement: str
    """The replacement; `\\1` or `\\g<name>` stand for the text that a group matched."""

    @field_validator("replacement")
    @classmethod
    def _check_groups(cls, replacement: str, info: ValidationInfo) -> str:
        if "pattern" in info.data:
            from regex import error as regex_error

            try:
                _pattern_with_groups_of(compile_pattern(info.data["pattern"])).sub(replacement, "")
            except (regex_error, IndexError) as error:
                raise ValueError(f"is {shown_value(replacement)}, which does not fit the pattern: {error}") from None
        return replacement

    def make(self, _context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        return _SearchReplace(self)


def _pattern_with_groups_of(pattern: "regex.Pattern[str]") -> "regex.Pattern[str]":
    """Returns a pattern with the same groups that matches any text; `sub` checks a replacement only at a match."""
    names = {number: name for name, number in pattern.groupindex.items()}
    groups = (f"(?P<{names[number]}>)" if number in names else "()" for number in range(1, pattern.groups + 1))
    return compile_pattern("".join(groups))


class _SearchReplace:
    def __init__(self, config: SearchReplaceConfig) -> None:
        self._config = config
        self._regex = Regex(config.pattern)

    def intercept(self, table: EventTable) -> EventTable:
        header = self._config.header
        if header is None:
            # Bytes that are not valid UTF-8 remain unchanged.
            texts = (body.decode(errors="surrogateescape") for body in table.bodies)
            replaced = map_texts(texts, self._replaced, None)
            table.bodies = [(text or "").encode(errors="surrogateescape") for text in replaced]
            return table
        values = table.header(header)
        if isinstance(values, str):
            try:
                table.headers[header] = self._replaced(values)
            except (TimeoutError, TooLongError):
                # Repeated for each event, so that the error names the events.
                map_texts(iter(table.values(header)), self._replaced, None)
        elif values is not None:
            table.headers[header] = map_texts(iter(values), self._replaced, None)
        return table

    def _replaced(self, text: str) -> str:
        template = self._config.replacement
        # There is at most one match for each character and each gap between two characters. Each is replaced by the
        # template, in which each group expands to the whole text at most.
        growth_bound = (len(text) + 1) * len(template) * (len(text) if "\\" in template else 1)
        if growth_bound <= GROWTH_CHARACTERS_MAX:
            return self._regex.replace(text, template)
        growth = 0

        def expand(match: "regex.Match[str]") -> str:
            nonlocal growth
            expanded = match.expand(template)
            growth += len(expanded) - (match.end() - match.start())
            if growth > GROWTH_CHARACTERS_MAX:
                raise TooLongError(
                    f"all replacements together would make it more than {GROWTH_CHARACTERS_MAX} characters longer"
                )
            return expanded

        return self._regex.replace(text, expand)
