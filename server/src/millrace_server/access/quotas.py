"""Quotas: how much an identity may send and receive in a second."""

import time
from collections.abc import Callable

from millrace_server.errors import QuotaExceededError
from millrace_server.token_bucket import ROUNDING_SECONDS, TokenBucket


class Bucket(TokenBucket):
    """The bytes that an identity may send or receive: one second's worth at once.

    Attributes:
        setting: The name of the quota.
        bytes_per_second: The quota.
        counted_bytes: All that was counted so far; what was given back later is included.
        refused_count: How many times it was exceeded.
    """

    def __init__(self, setting: str, bytes_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(bytes_per_second, bytes_per_second, clock)
        self.setting = setting
        self.bytes_per_second = bytes_per_second
        self.counted_bytes = self.refused_count = 0

    def count(self, byte_count: int) -> float:
        """Counts bytes; returns after how many seconds they may pass, in the order in which they were counted."""
        self.counted_bytes += byte_count
        return self.take(byte_count)

    def admit(self, byte_count: int, wait_seconds_max: float = 0.0) -> float:
        """Does the same, or counts nothing and raises QuotaExceededError if they would have to wait longer."""
        seconds = self.count(byte_count)
        if seconds > wait_seconds_max:
            self.give_back(byte_count)
            self.counted_bytes -= byte_count
            self.refused_count += 1
            raise QuotaExceededError(
                f"the quota of {self.bytes_per_second} {self.setting} is used up; try again later",
                retry_delay_seconds=seconds + ROUNDING_SECONDS,
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
        self.responses = (
            None if read_bytes_per_second is None else Bucket("read_bytes_per_second", read_bytes_per_second)
        )
        self.open_transactions = open_transactions
        self.refused_transactions = 0  # How many were not begun because of it.

    @property
    def buckets(self) -> list[Bucket]:
        return [bucket for bucket in (self.requests, self.responses) if bucket is not None]


UNBOUNDED = Quota()
