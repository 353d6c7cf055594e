"""How long to wait before the next try."""

import random
from collections.abc import Callable


class Backoff:
    """Delays that double up to a maximum, each with jitter, so that many who failed together come back apart.

    Args:
        first_seconds: About the first delay.
        max_seconds: No delay is longer.
    """

    def __init__(self, first_seconds: float = 0.5, max_seconds: float = 30.0) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._next_seconds = first_seconds

    def next_seconds(self, asked_seconds: float | None = None) -> float:
        """The next delay: between half of its nominal length and all of it.

        Args:
            asked_seconds: What the other side has asked for, if it did: then the delay is that or a little more, and
                the following ones are not longer for it.
        """
        if asked_seconds is not None:
            asked_seconds = max(asked_seconds, self._first_seconds / 2) * random.uniform(1.0, 1.25)  # noqa: S311 - as below
            return min(asked_seconds, self._max_seconds)
        delay = self._next_seconds
        self._next_seconds = min(2 * delay, self._max_seconds)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards no secret

    def reset(self) -> None:
        """Begins with the first delay again."""
        self._next_seconds = self._first_seconds


class EarnedBackoff(Backoff):
    """Begins with the first delay again where something was done since the last failure, and only there.

    A server that takes connections and never answers takes long to fail: how long a try lasted says nothing.

    Args:
        done_count: How much was done so far.
        first_seconds: About the first delay.
        max_seconds: No delay is longer.
    """

    def __init__(self, done_count: Callable[[], int], first_seconds: float = 0.5, max_seconds: float = 30.0) -> None:
        super().__init__(first_seconds, max_seconds)
        self._done_count = done_count
        self._seen_count = 0

    def next_seconds(self, asked_seconds: float | None = None) -> float:
        if (done_count := self._done_count()) > self._seen_count:
            self._seen_count = done_count
            super().reset()
        return super().next_seconds(asked_seconds)

    def reset(self) -> None:
        """Does nothing: that time has passed is no reason."""
