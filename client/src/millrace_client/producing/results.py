"""What became of events."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from millrace_client.errors import MillraceError, SendFailedError


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """One time that an event was sent, as one of a batch."""

    time: datetime
    """When it ended, UTC."""
    server: str
    """Where it went."""
    reason: str
    """Why it failed; empty where the server stored it, or had stored it before."""
    message: str
    """The same for people."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of one event."""

    channel: str
    """Where it was to go."""
    stored: bool
    """Whether a server has said that the channel holds it."""
    sequence: int | None
    """The channel's number for it; None where it is not stored, or where only a repeat was answered: `deduplicated`."""
    deduplicated: bool
    """Whether it was there: from an earlier attempt whose answer was lost, or an earlier producer of the same id."""
    attempts: tuple[SendAttempt, ...]
    """The last attempts, at most `attempts_kept_max`, oldest first; none where it was never sent."""
    attempt_count: int
    """All attempts."""
    error: MillraceError | None
    """Why it is not stored; None where it is."""
    is_outcome_known: bool
    """Where it is not stored: whether that is sure. If not, an attempt went unanswered and may have stored it."""


Callback: TypeAlias = Callable[[SendResult], object]
"""Is told what became of an event."""


@dataclass(slots=True)
class Outcome:
    """What became of a batch: its events have all but their sequence in common."""

    channel: str
    first_sequence: int = 0
    """Sequence of the batch's first event that was not there before; 0 where there is none."""
    repeated_count: int = 0
    """Events at its beginning that an earlier attempt had stored."""
    attempts: tuple[SendAttempt, ...] = ()
    attempt_count: int = 0
    error: MillraceError | None = None
    is_known: bool = True

    def sequence_of(self, offset: int) -> int | None:
        """The sequence of the event at this offset in the batch; None where it was there before, or is not stored."""
        if not self.first_sequence or offset < self.repeated_count:
            return None
        return self.first_sequence + offset - self.repeated_count

    def result(self, offset: int) -> SendResult:
        """The result of the event at this offset in the batch."""
        return SendResult(
            channel=self.channel,
            stored=self.error is None,
            sequence=self.sequence_of(offset),
            deduplicated=offset < self.repeated_count,
            attempts=self.attempts,
            attempt_count=self.attempt_count,
            error=self.error,
            is_outcome_known=self.is_known,
        )


def failure_of(result: SendResult) -> SendFailedError:
    """What a future raises."""
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
