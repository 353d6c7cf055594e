"""Quotas: how much an identity may send and receive in a second."""

import time
from collections.abc import Callable

from millrace_server.errors import QuotaExceededError

_ROUNDING_SECONDS = 0.001
"""Added to a delay, so that the bucket has what was missing once it has passed."""


class Bucket:
    """What may pass in one second, filled evenly.

    What is larger passes when the bucket is full, which then owes the rest: so the rate holds in the long run.
    """

    def __init__(self, setting: str, bytes_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._setting = setting
        self._rate = bytes_per_second
        self._clock = clock
        self._level = float(bytes_per_second)
        self._filled_at = clock()

    def count(self, byte_count: int) -> float:
        """Counts bytes; returns after how many seconds they may pass, in the order in which they were counted."""
        now = self._clock()
        self._level = min(self._level + (now - self._filled_at) * self._rate, self._rate)
        self._filled_at = now
        missing = min(byte_count, self._rate) - self._level
        self._level -= byte_count
        return max(missing / self._rate, 0.0)

    def give_back(self, byte_count: int) -> None:
        """Forgets bytes that were counted and did not pass."""
        self._level += byte_count

    def admit(self, byte_count: int, wait_seconds_max: float = 0.0) -> float:
        """Does the same, or counts nothing and raises QuotaExceededError if they would have to wait longer."""
        seconds = self.count(byte_count)
        if seconds > wait_seconds_max:
            self.give_back(byte_count)
            raise QuotaExceededError(
                f"the quota of {self._rate} {self._setting} is used up; try again later",
                retry_delay_seconds=seconds + _ROUNDING_SECONDS,
            )
        return seconds


class Quota:
    """What one identity may use; None where nothing bounds it."""

    def __init__(
        self,
        bytes_per_second: int | None = None,
        read_bytes_per_second: int | None = None,
        open_transactions: int | None = None,
    ) -> None:
        self.requests = None if bytes_per_second is None else Bucket("bytes_per_second", bytes_per_second)
        self.answers = None if read_bytes_per_second is None else Bucket("read_bytes_per_second", read_bytes_per_second)
        self.open_transactions = open_transactions


UNBOUNDED = Quota()
