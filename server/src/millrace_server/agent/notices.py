"""What the log is told of things that may happen with every batch."""

import time
from collections.abc import Callable

import structlog

NOTICE_SECONDS = 10.0
"""So long after one notice of a kind the next is told; it counts what was not told in between."""

_KINDS_MAX = 100

_log = structlog.stdlib.get_logger(__name__)


class Notices:
    """Tells the first of a kind at once, and of those that follow how many there were, now and then.

    Args:
        name: Whose notices they are.
        clock: Seconds, from any time on.
        kind: What that is: a `source` or a `sink`.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic, kind: str = "source") -> None:
        self._log = _log.bind(**{kind: name})
        self._clock = clock
        self._told_at: dict[tuple[str, str], float] = {}
        self._untold: dict[tuple[str, str], int] = {}

    def tell(self, level: int, event: str, about: str, event_count: int, **said: str) -> None:
        """Something has happened to events.

        Args:
            level: How bad that is, as `logging` has it.
            event: What, in words that are always the same.
            about: What makes another kind of it, such as a channel's name.
            event_count: To how many events.
            said: What else the log is told.
        """
        kind = (event, about)
        count = self._untold.pop(kind, 0) + event_count
        now = self._clock()
        told_at = self._told_at.get(kind)
        if told_at is not None and now - told_at < NOTICE_SECONDS:
            self._untold[kind] = count
            return
        if told_at is None and len(self._told_at) >= _KINDS_MAX:
            self._told_at.clear()
            self._untold.clear()
        self._told_at[kind] = now
        self._log.log(level, event, events=count, **said)
