"""How many lines of one kind the log gets."""

import re
import time
from collections.abc import Callable

import structlog


class LineAllowance:
    """Some lines at once, and beyond these one after each while.

    Args:
        at_once: So many.
        line_seconds: After so long there is one more.
        clock: Seconds on a clock that only goes forward.
    """

    def __init__(self, at_once: int, line_seconds: float, clock: Callable[[], float]) -> None:
        self._at_once = float(at_once)
        self._line_seconds = line_seconds
        self._clock = clock
        self._left = self._at_once
        self._counted_at = clock()

    def take(self) -> bool:
        """Takes a line; False where there is none now."""
        now = self._clock()
        self._left = min(self._left + (now - self._counted_at) / self._line_seconds, self._at_once)
        self._counted_at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


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


LINES_AT_ONCE = 4
"""So many troubles are told as they come."""

LINE_SECONDS = 60.0
"""Beyond these, one more is told after so long."""

_SHAPES_MAX = 16
_NUMBER = re.compile(r"\d+")


class TroubleLog:
    """Decides which failures of a component are worth a line.

    A spell of trouble begins with a failure and ends when the component works again. In a spell each reason is told
    once; reasons that differ in their numbers only are the same. Over all spells lines are limited, so that neither a
    component that fails and works in turns nor one whose reasons never repeat fills the log.

    Attributes:
        untold_count: Failures since the last line that were not told.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowance = LineAllowance(LINES_AT_ONCE, LINE_SECONDS, clock)
        self._told_shapes: set[str] = set()
        self.untold_count = 0

    def admits(self, reason: str) -> bool:
        """Whether a failure is to be told now; asked at each failure."""
        shape = _NUMBER.sub("0", reason)
        if shape in self._told_shapes or not self._allowance.take():
            self.untold_count += 1
            return False
        if len(self._told_shapes) >= _SHAPES_MAX:
            self._told_shapes.clear()
        self._told_shapes.add(shape)
        return True

    def ends_spell(self) -> bool:
        """Begins a new spell; returns whether the log knows of the former one, and so should hear of its end."""
        was_told = bool(self._told_shapes)
        self._told_shapes.clear()
        return was_told
