"""How long a server that cannot serve just now is tried again."""

import time
from collections.abc import Callable, Collection
from typing import TypeVar

from millrace_client import MillraceError

PASSING = frozenset({"UNAVAILABLE", "DEADLINE", "REPLAYING", "DRAINING", "OVERLOADED", "CANCELLED", "DISK_FULL"})
"""Reasons of errors that a repeat may find gone."""

STARTING = frozenset({"REPLAYING", "DRAINING", "OVERLOADED", "TXNS_OPEN"})
"""Those of a server that answers, but has something to end first."""

Answer = TypeVar("Answer")

_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 2.0


class Patience:
    """Waits between attempts, longer each time, until they have failed for too long.

    Args:
        seconds_max: How long attempts may fail without success in between.
        reasons: Of which errors another attempt is made.
        clock: Tells the time, in seconds.
        pause: Waits so many seconds.
    """

    def __init__(
        self,
        seconds_max: float,
        reasons: Collection[str] = PASSING,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds_max = seconds_max
        self._reasons = reasons
        self._clock = clock
        self._pause = pause
        self._since: float | None = None
        self._pause_seconds = _PAUSE_SECONDS

    def have(self, call: Callable[[], Answer]) -> Answer:
        """Makes a call until it succeeds; gives its answer.

        Raises:
            MillraceError: What the call raised last.
        """
        while True:
            try:
                return call()
            except MillraceError as error:
                self.wait(error)

    def succeed(self) -> None:
        """Begins to count anew."""
        self._since = None
        self._pause_seconds = _PAUSE_SECONDS

    def wait(self, error: MillraceError) -> None:
        """Waits for the next attempt.

        Raises:
            MillraceError: The same one: it does not pass, or has lasted for too long.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
        remaining_seconds = self._since + self._seconds_max - now
        if error.reason not in self._reasons or remaining_seconds <= 0:
            raise error
        self._pause(min(self._pause_seconds, remaining_seconds))
        self._pause_seconds = min(self._pause_seconds * 2, _PAUSE_SECONDS_MAX)
