"""How long to wait before the next try."""

import random


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

    def next_seconds(self) -> float:
        """The next delay: between half of its nominal length and all of it."""
        delay = self._next_seconds
        self._next_seconds = min(2 * delay, self._max_seconds)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards no secret

    def reset(self) -> None:
        """Begins with the first delay again."""
        self._next_seconds = self._first_seconds
