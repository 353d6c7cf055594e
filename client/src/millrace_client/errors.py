"""The errors that a call may raise, one class for each reason, and what a client should do about each."""

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import grpc

if TYPE_CHECKING:
    from millrace_client.producing.results import SendResult


class RetryAdvice(enum.Enum):
    """What a client should do about an error."""

    CORRECT = "correct"
    """The request is malformed. Correct it."""
    SMALLER = "smaller"
    """The request is too large. Send less at once."""
    NEVER = "never"
    """The same request is refused again until something other than time changes."""
    FULL = "full"
    """There is no room now. Repeat the request later, when events were consumed or others are done."""
    LATER = "later"
    """The server answers, but must finish something first. Repeat the request later."""
    UNREACHABLE = "unreachable"
    """The server does not answer. Repeat the request when it can be reached."""
    RESTART = "restart"
    """The server must be restarted. Repeat the request after that."""
    LOST = "lost"
    """The transaction, claim or stream has ended or belongs to another client. Begin a new one."""
    UNKNOWN = "unknown"
    """The reason is new to this client, or the server has a bug. A repeat may help or not."""


_FINAL_CODES = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"})
"""gRPC codes of errors that a repeat cannot help, where no reason says more, such as those of a proxy."""


class MillraceError(Exception):
    """Base of all errors. An error whose reason this client does not know is raised as this class itself.

    Attributes:
        reason: Stable name of the error; decide by it, or by the class.
        message: A sentence for people.
        channel: The channel of the call; empty if the call had none.
        txn_id: The transaction of the call; empty if the call had none.
        retry_delay_seconds: How long to wait before a repeat; None if the server did not say.
        code: The gRPC code; None if the client found the error before it sent anything.
    """

    default_reason: ClassVar[str] = "UNKNOWN"
    default_advice: ClassVar[RetryAdvice] = RetryAdvice.UNKNOWN
    """The advice for the class's reason; read `advice` instead, which also knows the code."""
    is_outcome_known: ClassVar[bool] = False
    """True if the server did nothing. False if the server may or may not have done what it was asked."""

    def __init__(  # noqa: PLR0913 - the attributes that callers decide by
        self,
        message: str,
        *,
        reason: str = "",
        channel: str = "",
        txn_id: str = "",
        retry_delay_seconds: float | None = None,
        code: grpc.StatusCode | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.channel = channel
        self.txn_id = txn_id
        self.retry_delay_seconds = retry_delay_seconds
        self.code = code

    @property
    def advice(self) -> RetryAdvice:
        """What to do about this error."""
        if (known := ERRORS_BY_REASON.get(self.reason)) is not None:
            return known.default_advice
        code_name = self.reason if self.code is None else self.code.name
        return RetryAdvice.NEVER if code_name in _FINAL_CODES else RetryAdvice.UNKNOWN

    def __reduce__(self) -> tuple[type["MillraceError"], tuple[str], dict[str, object]]:
        # The attributes are not arguments of Exception; without this an error would lose them between processes.
        return type(self), (self.message,), self.__dict__


class RefusedError(MillraceError):
    """Base of the errors after which it is known that nothing was done."""

    is_outcome_known = True


# Malformed or impossible requests.


class BadArgumentError(RefusedError):
    """Raised when an argument is malformed; the message says which one, its value and what is allowed."""

    default_reason = "BAD_ARGUMENT"
    default_advice = RetryAdvice.CORRECT


class BadNameError(RefusedError):
    """Raised when a channel's name is not allowed."""

    default_reason = "BAD_NAME"
    default_advice = RetryAdvice.CORRECT


class OffsetGapError(RefusedError):
    """Raised when a put or take offset lies beyond what the transaction holds: another client uses the transaction.

    Also raised when a stamp requires an earlier number that the channel has not accepted.
    """

    default_reason = "OFFSET_GAP"
    default_advice = RetryAdvice.NEVER


class TxnCapacityError(RefusedError):
    """Raised when a transaction or append would hold more than the channel's transaction capacity."""

    default_reason = "TXN_CAPACITY"
    default_advice = RetryAdvice.SMALLER


class EventTooLargeError(RefusedError):
    """Raised when one event alone is larger than the channel or a message can hold."""

    default_reason = "EVENT_TOO_LARGE"
    default_advice = RetryAdvice.SMALLER


class MessageTooLargeError(MillraceError):
    """Raised when a message exceeds a limit of the client or the server.

    The message may be the answer to a call that succeeded.
    """

    default_reason = "MESSAGE_TOO_LARGE"
    default_advice = RetryAdvice.SMALLER


# Names.


class ChannelNotFoundError(RefusedError):
    """Raised when no channel has the name."""

    default_reason = "CHANNEL_NOT_FOUND"
    default_advice = RetryAdvice.NEVER


class ChannelExistsError(RefusedError):
    """Raised when the name is in use."""

    default_reason = "CHANNEL_EXISTS"
    default_advice = RetryAdvice.NEVER


class TxnNotFoundError(RefusedError):
    """Raised when the server does not know the transaction, for example after a restart."""

    default_reason = "TXN_NOT_FOUND"
    default_advice = RetryAdvice.LOST


# State.


class TxnStateError(RefusedError):
    """Raised when a transaction has ended, or belongs to another channel."""

    default_reason = "TXN_STATE"
    default_advice = RetryAdvice.LOST


class TxnsOpenError(RefusedError):
    """Raised when a channel cannot be claimed because open transactions have taken events."""

    default_reason = "TXNS_OPEN"
    default_advice = RetryAdvice.LATER


class ChannelClaimedError(RefusedError):
    """Raised when another reader has claimed the channel."""

    default_reason = "CHANNEL_CLAIMED"
    default_advice = RetryAdvice.LOST


class NotClaimedError(RefusedError):
    """Raised when the caller's claim has ended."""

    default_reason = "NOT_CLAIMED"
    default_advice = RetryAdvice.LOST


class ChannelNotEmptyError(RefusedError):
    """Raised when a channel to be deleted still holds events or transactions."""

    default_reason = "CHANNEL_NOT_EMPTY"
    default_advice = RetryAdvice.NEVER


class LeaseExpiredError(RefusedError):
    """Raised when the transaction was rolled back because its lease expired."""

    default_reason = "LEASE_EXPIRED"
    default_advice = RetryAdvice.LOST


class StaleEpochError(RefusedError):
    """Raised when a claim newer than the caller's exists."""

    default_reason = "STALE_EPOCH"
    default_advice = RetryAdvice.LOST


class SequenceGoneError(RefusedError):
    """Raised when a part of a range is acknowledged already, or not stored yet."""

    default_reason = "SEQUENCE_GONE"
    default_advice = RetryAdvice.NEVER


# Limits that may pass with time.


class ChannelFullError(RefusedError):
    """Raised when the channel had no room for the events within its keep-alive."""

    default_reason = "CHANNEL_FULL"
    default_advice = RetryAdvice.FULL


class BytesFullError(RefusedError):
    """Raised when the channel had no room for the bytes of the bodies within its keep-alive."""

    default_reason = "BYTES_FULL"
    default_advice = RetryAdvice.FULL


class DiskFullError(RefusedError):
    """Raised when the server's disk has no room for puts."""

    default_reason = "DISK_FULL"
    default_advice = RetryAdvice.FULL


class TooManyTxnsError(RefusedError):
    """Raised when the server or the channel has its maximum of open transactions."""

    default_reason = "TOO_MANY_TXNS"
    default_advice = RetryAdvice.FULL


class OverloadedError(RefusedError):
    """Raised when the requests in progress at the server hold their maximum of bytes."""

    default_reason = "OVERLOADED"
    default_advice = RetryAdvice.FULL


class DrainingError(RefusedError):
    """Raised when the server is shutting down and accepts no new work."""

    default_reason = "DRAINING"
    default_advice = RetryAdvice.LATER


# Restarts, damage and bugs.


class ReplayingError(MillraceError):
    """Raised when the channel is still replaying its log after a restart of the server.

    An earlier attempt of the same call, which gRPC repeats, may have reached the server before the restart.
    """

    default_reason = "REPLAYING"
    default_advice = RetryAdvice.LATER


class LogFailedError(MillraceError):
    """Raised when the channel's log has failed; the server must be restarted."""

    default_reason = "LOG_FAILED"
    default_advice = RetryAdvice.RESTART


class CorruptError(MillraceError):
    """Raised when the channel's log is damaged."""

    default_reason = "CORRUPT"
    default_advice = RetryAdvice.NEVER


class InternalError(MillraceError):
    """Raised when the server has a bug; its log has the details."""

    default_reason = "INTERNAL"


# Errors that the client finds.


class UnavailableError(MillraceError):
    """Raised when the server cannot be reached, or the connection broke. The server may have done what it was asked."""

    default_reason = "UNAVAILABLE"
    default_advice = RetryAdvice.UNREACHABLE


class DeadlineError(MillraceError):
    """Raised when no answer came in time. The server may have done what it was asked."""

    default_reason = "DEADLINE"
    default_advice = RetryAdvice.UNREACHABLE


class CancelledError(MillraceError):
    """Raised when the client cancelled a call, for example because another thread closed the client."""

    default_reason = "CANCELLED"
    default_advice = RetryAdvice.UNREACHABLE


class ClientClosedError(RefusedError):
    """Raised when a closed client is used."""

    default_reason = "CLIENT_CLOSED"
    default_advice = RetryAdvice.NEVER


class ClientForkedError(RefusedError):
    """Raised when a forked process uses its parent's client; the process must connect itself."""

    default_reason = "CLIENT_FORKED"
    default_advice = RetryAdvice.NEVER


class StreamEndedError(RefusedError):
    """Raised when a delivery is settled after its stream has ended: its events are back in the channel."""

    default_reason = "STREAM_ENDED"
    default_advice = RetryAdvice.LOST


# Errors of a producer.


class BufferFullError(RefusedError):
    """Raised when a producer's buffer has no room for an event, or had none in time; the event was not accepted."""

    default_reason = "BUFFER_FULL"
    default_advice = RetryAdvice.FULL


class ProducerClosedError(RefusedError):
    """Raised when a producer is closed, or was closed before it could send an event."""

    default_reason = "PRODUCER_CLOSED"
    default_advice = RetryAdvice.NEVER


class EventDroppedError(RefusedError):
    """Raised when a producer dropped an event to make room for newer ones."""

    default_reason = "EVENT_DROPPED"
    default_advice = RetryAdvice.NEVER


class SendFailedError(MillraceError):
    """Raised by a producer's future when the event is not stored; has the reason of the cause.

    Attributes:
        result: All that is known about the event, its attempts included.
    """

    default_reason = "SEND_FAILED"
    result: "SendResult | None" = None


def _classes(base: type[MillraceError]) -> Iterator[type[MillraceError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _classes(kind)


ERRORS_BY_REASON = {kind.default_reason: kind for kind in _classes(MillraceError) if "default_reason" in vars(kind)}
"""Reason to class, for each reason that this client knows."""
