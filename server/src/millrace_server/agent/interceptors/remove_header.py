"""The interceptor `remove_header`: headers that are not wanted."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import EventsRefusedError, Interceptor, InterceptorConfig
from millrace_server.agent.interceptors.regexes import TOO_LONG, Regex, RegexPattern


class RemoveHeaderConfig(InterceptorConfig):
    """Headers that are removed."""

    type: Literal["remove_header"]
    """Headers that are not wanted."""

    names: list[str] = Field(default_factory=list)
    """The headers."""

    pattern: RegexPattern | None = Field(None, validate_default=True)
    """All headers, too, whose whole name matches."""

    @field_validator("pattern")
    @classmethod
    def _check_any(cls, pattern: str | None, info: ValidationInfo) -> str | None:
        if pattern is None and info.data.get("names", [""]) == []:
            raise ValueError("is missing, and names is empty; the interceptor needs a header to remove")
        return pattern

    def make(self) -> Interceptor:
        return _RemoveHeader(self)


class _RemoveHeader:
    def __init__(self, config: RemoveHeaderConfig) -> None:
        self._names = config.names
        self._regex = None if config.pattern is None else Regex(config.pattern)

    def intercept(self, table: EventTable) -> EventTable:
        removed = set(self._names).intersection(table.headers)
        if self._regex is not None:
            removed.update(name for name in table.headers if self._matches(self._regex, name, table))
        for name in removed:
            del table.headers[name]
        return table

    @staticmethod
    def _matches(regex: Regex, name: str, table: EventTable) -> bool:
        try:
            return regex.matches_whole(name)
        except TimeoutError:
            having = [index for index, value in enumerate(table.values(name)) if value is not None]
            raise EventsRefusedError(dict.fromkeys(having, TOO_LONG)) from None
