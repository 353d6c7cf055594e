"""Pauses between attempts."""

import random

_DOUBLINGS_MAX = 64


class Backoff:
    """Exponential back-off with jitter, so that clients that failed together do not retry together."""

    def __init__(self, first_seconds: float, seconds_max: float, draw: random.Random | None = None) -> None:
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        self._random = draw or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self.failure_count = 0
        """Failures since the last success."""

    def next_seconds(self, seconds_min: float | None = None) -> float:
        """Counts a failure and returns the pause after it; see `seconds_after`."""
        self.failure_count += 1
        return self.seconds_after(self.failure_count, seconds_min)

    def seconds_after(self, failure_count: int, seconds_min: float | None = None) -> float:
        """Returns the pause after so many consecutive failures: between half of its full length and the full length."""
        # Beyond 64 doublings every pause is at its maximum, and a float would overflow.
        longest = min(self._first_seconds * 2.0 ** min(failure_count - 1, _DOUBLINGS_MAX), self._seconds_max)
        return max(longest * self._random.uniform(0.5, 1.0), seconds_min or 0.0)

    def reset(self) -> None:
        """Starts from the first pause again, after a success."""
        self.failure_count = 0
