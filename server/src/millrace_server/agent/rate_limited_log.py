"""Rate-limited logging of frequent occurrences; suppressed lines are counted."""

import re
import time
from collections.abc import Callable

import structlog

from millrace_server.token_bucket import TokenBucket

LINE_SECONDS = 10.0
"""The minimum interval between two lines of one kind; the second one includes the events of suppressed lines."""

FAILURE_BURST = 4
"""How many failures of a component are logged without delay."""

FAILURE_SECONDS = 60.0
"""The time after which one more failure may be logged."""

_KINDS_MAX = 100
_SHAPES_MAX = 16
_NUMBER = re.compile(r"\d+")


class RateLimitedLog:
    """Logs the first line of each kind at once, and a summary of the following ones every `LINE_SECONDS`."""

    def __init__(self, log: structlog.stdlib.BoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._limits: dict[tuple[str, str], TokenBucket] = {}
        self._suppressed: dict[tuple[str, str], tuple[int, int, dict[str, str]]] = {}
        """The level, the number of events and the fields of suppressed lines, by their kind."""

    def log(self, level: int, message: str, about: str, event_count: int, **fields: str) -> None:
        """Logs a message about events, or counts them for the next line with the same `message` and `about`."""
        kind = (message, about)
        _, suppressed_count, _ = self._suppressed.pop(kind, (0, 0, {}))
        count = suppressed_count + event_count
        if kind not in self._limits:
            if len(self._limits) >= _KINDS_MAX:
                self._limits.clear()
                self._suppressed.clear()
            self._limits[kind] = TokenBucket(1 / LINE_SECONDS, 1, self._clock)
        if self._limits[kind].try_take():
            self._log.log(level, message, events=count, **fields)
        else:
            self._suppressed[kind] = level, count, fields

    def flush(self) -> None:
        """Logs the lines that are still suppressed."""
        for (message, _), (level, count, fields) in self._suppressed.items():
            self._log.log(level, message, events=count, **fields)
        self._suppressed.clear()


class FailureLog:
    """Decides which failures of a component are logged.

    An outage begins with a failure and ends when the component works again. During an outage, each reason is logged
    once; reasons that differ only in numbers count as the same. The rate is limited across outages, so that the log is
    not flooded by a component that fails and recovers repeatedly, or whose reasons never repeat.

    Attributes:
        suppressed_count: Failures since the last line that were not logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = TokenBucket(1 / FAILURE_SECONDS, FAILURE_BURST, clock)
        self._logged_shapes: set[str] = set()
        self.suppressed_count = 0

    def admits(self, reason: str) -> bool:
        """Whether to log a failure; called for each failure."""
        shape = _NUMBER.sub("0", reason)
        if shape in self._logged_shapes or not self._limit.try_take():
            self.suppressed_count += 1
            return False
        if len(self._logged_shapes) >= _SHAPES_MAX:
            self._logged_shapes.clear()
        self._logged_shapes.add(shape)
        return True

    def end_outage(self) -> bool:
        """Ends the outage; returns whether any of its failures was logged, so that its end should be logged as well."""
        was_logged = bool(self._logged_shapes)
        self._logged_shapes.clear()
        return was_logged
