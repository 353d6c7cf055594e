"""Token buckets, which limit rates."""

import time
from collections.abc import Callable

ROUNDING_SECONDS = 0.001
"""Added to a delay, so that rounding does not leave the bucket short once the delay has passed."""


class TokenBucket:
    """Allows bursts of up to `capacity`, and `per_second` in the long run. It is full at first.

    An amount above the capacity passes when the bucket is full, whose level then becomes negative.
    """

    def __init__(self, per_second: float, capacity: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._capacity = self._level = float(capacity)
        self._clock = clock
        self._filled_at = clock()

    def level(self) -> float:
        """Returns the current level, which is negative if more was taken than the bucket held."""
        now = self._clock()
        self._level = min(self._level + (now - self._filled_at) * self._per_second, self._capacity)
        self._filled_at = now
        return self._level

    @property
    def is_full(self) -> bool:
        """Whether the level has reached the capacity again."""
        return self.level() >= self._capacity

    def take(self, amount: float) -> float:
        """Takes an amount; returns after how many seconds it may pass. Amounts pass in the order of the calls."""
        missing = min(amount, self._capacity) - self.level()
        self._level -= amount
        return max(missing / self._per_second, 0.0)

    def try_take(self, amount: float = 1.0) -> bool:
        """Takes an amount if the level permits it; returns whether it was taken."""
        if self.level() < amount:
            return False
        self._level -= amount
        return True

    def give_back(self, amount: float) -> None:
        """Returns an amount that was taken and did not pass."""
        self._level += amount
