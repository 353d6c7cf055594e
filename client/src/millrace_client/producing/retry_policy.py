"""Which batches of a producer are sent again, and when."""

import random

from millrace_client._backoff import Backoff
from millrace_client.errors import MillraceError, RetryAdvice
from millrace_client.producing.config import ProducerConfig

_RETRIED = frozenset({RetryAdvice.FULL, RetryAdvice.LATER, RetryAdvice.UNREACHABLE, RetryAdvice.RESTART})
"""A batch that the server refused for one of these is sent again."""

_FINAL = frozenset({RetryAdvice.CORRECT, RetryAdvice.SMALLER, RetryAdvice.NEVER})
"""A batch whose stream ended for one of these is not sent again; any other end may pass, as a restart does."""


class RetryPolicy:
    """Which batches are sent again, and after how long. For one thread."""

    def __init__(self, config: ProducerConfig, draw: random.Random | None = None) -> None:
        self._attempts_max = config.attempts_max
        self._backoff = Backoff(config.backoff_seconds, config.backoff_seconds_max, draw)

    def retries_refused(self, error: MillraceError, attempt_count: int) -> bool:
        """Whether a batch that the server refused is sent again."""
        return error.advice in _RETRIED and self._has_attempts(attempt_count)

    def retries_unanswered(self, error: MillraceError, attempt_count: int) -> bool:
        """Whether a batch is sent again whose stream ended before it was answered."""
        return error.advice not in _FINAL and self._has_attempts(attempt_count)

    def _has_attempts(self, attempt_count: int) -> bool:
        return self._attempts_max is None or attempt_count < self._attempts_max

    def batch_pause_seconds(self, failure_count: int, error: MillraceError | None) -> float:
        """Returns how long a batch waits after so many failures, at least 1, the last of them this error."""
        return self._backoff.seconds_after(failure_count, None if error is None else error.retry_delay_seconds)

    def server_pause_seconds(self, failure_count: int, error: MillraceError) -> float:
        """Returns how long a server gets no batches: longer than a batch waits, so that it can go to another server."""
        return self._backoff.seconds_after(failure_count + 1, error.retry_delay_seconds)
