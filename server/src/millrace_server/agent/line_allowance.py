"""How many lines of one kind the log gets."""

from collections.abc import Callable


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
