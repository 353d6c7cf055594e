"""Which failures are worth another attempt, and when."""

import random

from millrace_client.errors import MillraceError, RetryAdvice
from millrace_client.producing.config import ProducerConfig

_RETRIED = frozenset({RetryAdvice.FULL, RetryAdvice.LATER, RetryAdvice.UNREACHABLE, RetryAdvice.RESTART})
"""What a batch that the server refused is sent again for."""

_FINAL = frozenset({RetryAdvice.CORRECT, RetryAdvice.SMALLER, RetryAdvice.NEVER})
"""What a batch whose stream ended is not sent again for; any other end may be the network's or a restart's doing."""

_EXPONENT_MAX = 30


class RetrySchedule:
    """Decides about further attempts. Not for several threads.

    Args:
        config: The limits.
        draw: Gives a number from 0 to 1, 1 excluded.
    """

    def __init__(self, config: ProducerConfig, draw: random.Random | None = None) -> None:
        self._config = config
        self._random = draw or random.Random()  # noqa: S311 - spreads attempts and load

    def is_retried(self, error: MillraceError, attempt_count: int) -> bool:
        """Whether a batch that was refused so is worth another attempt."""
        attempts_max = self._config.attempts_max
        return error.advice in _RETRIED and (attempts_max is None or attempt_count < attempts_max)

    def is_retried_anew(self, error: MillraceError, attempt_count: int) -> bool:
        """The same for a batch whose stream ended so before it was answered."""
        attempts_max = self._config.attempts_max
        return error.advice not in _FINAL and (attempts_max is None or attempt_count < attempts_max)

    def pause_seconds(self, failure_count: int, error: MillraceError | None) -> float:
        """How long to wait after so many failures, at least 1, of which this was the last."""
        return self._drawn_seconds(failure_count - 1, error)

    def rest_seconds(self, failure_count: int, error: MillraceError) -> float:
        """How long a server is left alone: longer than what failed there waits, so that this can go to another."""
        return self._drawn_seconds(failure_count, error)

    def _drawn_seconds(self, exponent: int, error: MillraceError | None) -> float:
        doubled = self._config.backoff_seconds * 2.0 ** min(exponent, _EXPONENT_MAX)
        pause = min(doubled, self._config.backoff_seconds_max) * (0.5 + self._random.random() / 2)
        return max(pause, (error.retry_delay_seconds or 0.0) if error is not None else 0.0)
