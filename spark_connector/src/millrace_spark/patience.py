"""How long a server that cannot serve just now is tried again."""

import time
from collections.abc import Callable, Collection
from typing import TypeVar

from millrace_client import MillraceError, RetryAdvice

PASSING = frozenset({RetryAdvice.FULL, RetryAdvice.LATER, RetryAdvice.UNREACHABLE})
"""Errors that a repeat may find gone."""

STARTING = frozenset({RetryAdvice.FULL, RetryAdvice.LATER})
"""Errors of a server that answers, but must finish something first."""

Answer = TypeVar("Answer")

_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 2.0


class Patience:
    """Waits between attempts, longer each time, until they have failed for too long.

    Args:
        seconds_max: How long attempts may fail without success in between.
        retried: The errors after which another attempt is made.
        clock: Tells the time, in seconds.
        pause: Waits so many seconds.
    """

    def __init__(
        self,
        seconds_max: float,
        retried: Collection[RetryAdvice] = PASSING,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds_max = seconds_max
        self._retried = retried
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
        if error.advice not in self._retried or remaining_seconds <= 0:
            raise error
        self._pause(min(self._pause_seconds, remaining_seconds))
        self._pause_seconds = min(self._pause_seconds * 2, _PAUSE_SECONDS_MAX)
