"""What the log is told of a component's troubles: each once, and not in floods."""

import re
import time
from collections.abc import Callable

from millrace_server.agent.line_allowance import LineAllowance

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
