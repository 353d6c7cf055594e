"""The interceptor `search_replace`: other text in the place of what matches."""

from typing import Literal

import regex
from pydantic import ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor
from millrace_server.agent.interceptors.regexes import Regex, RegexConfig, TooLongError, compiled, for_each

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
