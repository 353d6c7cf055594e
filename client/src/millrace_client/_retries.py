"""Which requests are sent again, and the pauses between attempts."""

import random
import time

import grpc

from millrace_client.errors import (
    DrainingError,
    MillraceError,
    NotOwnerError,
    ReplayingError,
    RetryAdvice,
    UnavailableError,
)

_RETRIED = frozenset({RetryAdvice.FULL, RetryAdvice.LATER, RetryAdvice.UNREACHABLE, RetryAdvice.RESTART})
"""A batch that the server refused for one of these is sent again."""

_FINAL = frozenset({RetryAdvice.CORRECT, RetryAdvice.SMALLER, RetryAdvice.NEVER})
"""A batch whose stream ended for one of these is not sent again; any other end may pass, as a restart does."""

_DOUBLINGS_MAX = 64

OWNER_SECONDS = 0.1
OWNER_SECONDS_MAX = 0.5
"""The first pause, and the longest one, while the next owner of a channel that servers share is looked for. It is about
what the client adds to the lease of an owner that died; 10,000 clients ask some 27,000 times a second."""

_OWNER_ERRORS = (NotOwnerError, ReplayingError, UnavailableError, DrainingError)
"""What calls on a channel meet while its owner changes."""


def passes_with_next_owner(error: BaseException | None, *, is_shared: bool) -> bool:
    """Whether a failure may pass as soon as another server owns the channel; `is_shared`: whether servers share it."""
    return isinstance(error, NotOwnerError) or (is_shared and isinstance(error, _OWNER_ERRORS))


class Backoff:
    """Exponential back-off with jitter, so that clients that failed together do not retry together."""

    def __init__(self, first_seconds: float, seconds_max: float, draw: random.Random | None = None) -> None:
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        self._random = draw or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self.failure_count = 0
        """Failures since the last success."""

    def next_seconds(self, seconds_min: float | None = None, *, awaits_owner: bool = False) -> float:
        """Counts a failure and returns the pause after it; see `seconds_after`."""
        self.failure_count += 1
        return self.seconds_after(self.failure_count, seconds_min, awaits_owner=awaits_owner)

    def seconds_after(
        self, failure_count: int, seconds_min: float | None = None, *, awaits_owner: bool = False
    ) -> float:
        """Returns the pause after this many consecutive failures: between half of its full length and the full length.

        Args:
            failure_count: At least 1.
            seconds_min: What the server asks for.
            awaits_owner: Whether the next owner of a channel is looked for, so that pauses stay short.
        """
        seconds_max = min(self._seconds_max, OWNER_SECONDS_MAX) if awaits_owner else self._seconds_max
        # Beyond 64 doublings every pause is at its maximum, and a float would overflow.
        longest = min(self._first_seconds * 2.0 ** min(failure_count - 1, _DOUBLINGS_MAX), seconds_max)
        return max(longest * self._random.uniform(0.5, 1.0), seconds_min or 0.0)

    def reset(self) -> None:
        """Starts from the first pause again, after a success."""
        self.failure_count = 0


class StreamRepeats:
    """Repeats a stream until its first response, as gRPC repeats calls with one response.

    gRPC's own repeats of a stream, where the last one fails too, leave its reader waiting: forever in the synchronous
    API, where neither a deadline nor a cancellation ends that.

    Args:
        seconds: How long the first response may take, with all attempts and pauses.
        attempts_max: The most attempts.
        backoff: The pauses.
    """

    def __init__(self, seconds: float, attempts_max: int, backoff: Backoff) -> None:
        self._give_up = time.monotonic() + seconds
        self._attempts_max = attempts_max
        self._backoff = backoff

    @property
    def left_seconds(self) -> float:
        return self._give_up - time.monotonic()

    def pause_seconds(self, error: MillraceError) -> float:
        """Returns the pause after a failed attempt; raises its error if it was the last one."""
        seconds = self._backoff.next_seconds(error.retry_delay_seconds)
        is_last = self._backoff.failure_count >= self._attempts_max or seconds >= self.left_seconds
        if is_last or error.code is not grpc.StatusCode.UNAVAILABLE:
            raise error
        return seconds


class RetryPolicy:
    """Which batches are sent again, and after how long. For one thread."""

    def __init__(self, attempts_max: int | None, backoff: Backoff) -> None:
        self._attempts_max = attempts_max
        self._backoff = backoff

    def retries_refused(self, error: MillraceError, attempt_count: int) -> bool:
        """Whether a batch that the server refused is sent again."""
        return error.advice in _RETRIED and self._has_attempts(attempt_count)

    def retries_in_flight(self, error: MillraceError, attempt_count: int) -> bool:
        """Whether a batch is sent again whose stream ended before it got a response."""
        return error.advice not in _FINAL and self._has_attempts(attempt_count)

    def _has_attempts(self, attempt_count: int) -> bool:
        return self._attempts_max is None or attempt_count < self._attempts_max

    def batch_pause_seconds(self, failure_count: int, error: MillraceError | None, *, is_shared: bool = False) -> float:
        """Returns how long a batch waits after this many failures, at least 1, the last of them this error.

        `is_shared`: whether servers share its channel, which one of them owns.
        """
        awaits_owner = passes_with_next_owner(error, is_shared=is_shared)
        seconds_min = None if error is None else error.retry_delay_seconds
        return self._backoff.seconds_after(failure_count, seconds_min, awaits_owner=awaits_owner)

    def server_pause_seconds(self, failure_count: int, error: MillraceError, *, is_shared: bool = False) -> float:
        """Returns how long a server gets no batches: longer than a batch waits, so that it can go to another server."""
        return self.batch_pause_seconds(failure_count + 1, error, is_shared=is_shared)
