"""Token buckets, which limit rates."""

import time
from collections.abc import Callable

ROUNDING_SECONDS = 0.001
"""To be added to a delay, so that the bucket has what was missing once the delay has passed."""


class TokenBucket:
    """Lets `capacity` pass at once, and `per_second` in the long run; it is filled evenly, and full at first.

    What is larger than the capacity passes when the bucket is full, which then owes the rest.
    """

    def __init__(self, per_second: float, capacity: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._capacity = self._level = float(capacity)
        self._clock = clock
        self._filled_at = clock()

    def level(self) -> float:
        """Returns what the bucket holds now; less than 0 if it owes something."""
        now = self._clock()
        self._level = min(self._level + (now - self._filled_at) * self._per_second, self._capacity)
        self._filled_at = now
        return self._level

    @property
    def is_full(self) -> bool:
        """Whether nothing was taken for long enough."""
        return self.level() >= self._capacity

    def take(self, amount: float) -> float:
        """Takes an amount; returns after how many seconds it may pass, in the order in which it was taken."""
        missing = min(amount, self._capacity) - self.level()
        self._level -= amount
        return max(missing / self._per_second, 0.0)

    def try_take(self, amount: float = 1.0) -> bool:
        """Takes an amount if the bucket holds it; returns whether it does."""
        if self.level() < amount:
            return False
        self._level -= amount
        return True

    def give_back(self, amount: float) -> None:
        """Returns an amount that was taken and did not pass."""
        self._level += amount
