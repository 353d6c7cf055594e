"""The results of events."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from millrace_client.errors import MillraceError, SendAttempt, SendFailedError, SendResult

Callback: TypeAlias = Callable[[SendResult], object]
"""Called with the result of an event."""


@dataclass(slots=True)
class Outcome:
    """The result of a batch: its events differ only in their sequence."""

    channel: str
    first_sequence: int = 0
    """The sequence of the batch's first event that was not stored before; 0 if there is none, and from a source."""
    repeated_count: int = 0
    """The number of events at its start that an earlier attempt had stored."""
    attempts: tuple[SendAttempt, ...] = ()
    attempt_count: int = 0
    error: MillraceError | None = None
    is_known: bool = True
    commit_time: datetime | None = None

    def sequence_of(self, offset: int) -> int | None:
        """Returns the sequence of the event at this offset; None if it was stored before, or is not stored."""
        if not self.first_sequence or offset < self.repeated_count:
            return None
        return self.first_sequence + offset - self.repeated_count

    def result(self, offset: int) -> SendResult:
        """Returns the result of the event at this offset in the batch."""
        return SendResult(
            channel=self.channel,
            stored=self.error is None,
            sequence=self.sequence_of(offset),
            deduplicated=offset < self.repeated_count,
            attempts=self.attempts,
            attempt_count=self.attempt_count,
            error=self.error,
            is_outcome_known=self.is_known,
            commit_time=self.commit_time if offset >= self.repeated_count else None,
        )


def failed_error(result: SendResult) -> SendFailedError:
    """Returns the error that a future raises."""
    error = result.error
    assert error is not None, "the event is stored"
    failed = SendFailedError(
        error.message,
        reason=error.reason,
        channel=result.channel,
        retry_delay_seconds=error.retry_delay_seconds,
        code=error.code,
    )
    failed.result = result
    failed.__cause__ = error
    return failed
