"""The interceptor `regex_filter`: keeps or drops the events that match."""

from typing import Literal

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor
from millrace_server.agent.interceptors.regexes import Regex, RegexConfig, for_each


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
