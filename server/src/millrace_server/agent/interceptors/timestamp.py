"""The interceptor `timestamp`: when an event came in."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor, InterceptorConfig, QuickInterceptor


class TimestampConfig(InterceptorConfig):
    """A header that says when an event came in; the events of a batch have come in at once."""

    type: Literal["timestamp"]
    """When an event came in."""

    header: str = "timestamp"
    """The header."""

    format: Literal["millis", "iso"] = "millis"
    """`millis`: milliseconds since 1970. `iso`: date and time in UTC, such as 2026-01-31T23:59:59.999+00:00."""

    preserve_existing: bool = False
    """Whether an event that has the header already keeps its own."""

    def make(self) -> Interceptor:
        return Timestamp(self, time.time)


class Timestamp(QuickInterceptor):
    """Says when events came in.

    Args:
        config: How.
        clock: Seconds since 1970.
    """

    def __init__(self, config: TimestampConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock

    def intercept(self, table: EventTable) -> EventTable:
        now = self._clock()
        if self._config.format == "millis":
            value = str(int(now * 1000))
        else:
            value = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        table.give(self._config.header, value, preserve_existing=self._config.preserve_existing)
        return table
