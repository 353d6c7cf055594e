"""The interceptor `static`: the same header for all events."""

from typing import Literal

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor, InterceptorConfig


class StaticConfig(InterceptorConfig):
    """A header that all events get."""

    type: Literal["static"]
    """The same header for all events."""

    key: str
    """The header."""

    value: str
    """Its value."""

    preserve_existing: bool = True
    """Whether an event that has the header keeps its own."""

    def make(self) -> Interceptor:
        return _Static(self)


class _Static:
    def __init__(self, config: StaticConfig) -> None:
        self._config = config

    def intercept(self, table: EventTable) -> EventTable:
        config = self._config
        if config.preserve_existing:
            table.fill(config.key, config.value)
        else:
            table.headers[config.key] = config.value
        return table
