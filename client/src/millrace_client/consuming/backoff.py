"""Growing pauses."""

import random


class Backoff:
    """Pauses that double, each shortened by chance, so that many who failed together do not come back together."""

    def __init__(self, first_seconds: float, seconds_max: float, chance: random.Random | None = None) -> None:
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        # Chance spreads load; nothing secret hangs on it.
        self._chance = chance or random.Random()  # noqa: S311 - see above
        self.failure_count = 0
        """Failures since the last success."""

    def next_seconds(self, asked_seconds: float | None = None) -> float:
        """The pause after one more failure.

        Args:
            asked_seconds: What the other side asked for: the pause is at least that. None: it did not.
        """
        self.failure_count += 1
        return max(self.seconds_after(self.failure_count), asked_seconds or 0.0)

    def seconds_after(self, failure_count: int) -> float:
        """The pause after so many failures in a row: between a half of it and the whole."""
        # Beyond 64 doublings anything is at its maximum, and a float would overflow.
        whole = min(self._first_seconds * 2.0 ** min(failure_count - 1, 64), self._seconds_max)
        return whole * self._chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begins anew after a success."""
        self.failure_count = 0
