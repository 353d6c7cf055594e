"""The errors that a call may raise, one class for each reason, and what a client should do about each."""

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import grpc


class RetryAdvice(enum.Enum):
    """What a client should do about an error."""

    CORRECT = "correct"
    """The request is malformed. Correct it."""
    SMALLER = "smaller"
    """The request is too large. Send less at once."""
    NEVER = "never"
    """Waiting does not help: the same request is refused until something else changes."""
    FULL = "full"
    """There is no free capacity now. Retry later, once events have been consumed or other requests have finished."""
    LATER = "later"
    """The server responds, but must finish something first. Retry later."""
    UNREACHABLE = "unreachable"
    """The server does not respond. Retry when it can be reached."""
    RESTART = "restart"
    """The server must be restarted. Retry after that."""
    LOST = "lost"
    """The transaction, claim, call or stream has ended or belongs to another client. Start a new one."""
    UNKNOWN = "unknown"
    """The reason is new to this client, or the server has a bug. A retry may or may not help."""


_FINAL_CODES = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"})
"""gRPC codes of errors that a repeat cannot help, where no reason says more, such as those of a proxy."""


ERRORS_BY_REASON: "dict[str, type[MillraceError]]" = {}
"""Reason to class, for each reason that this client knows."""


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

    def __init_subclass__(cls, *, reason: str = "", advice: RetryAdvice = RetryAdvice.UNKNOWN) -> None:
        if reason:
            cls.default_reason, cls.default_advice = reason, advice
            ERRORS_BY_REASON[reason] = cls

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


# Authentication and authorization.


class UnauthenticatedError(MillraceError, reason="UNAUTHENTICATED", advice=RetryAdvice.LOST):
    """Raised when the client has no valid credentials, or its token is no longer valid.

    A stream that is open when its token is removed ends with it, so the outcome of its last requests is not known.
    """


class TokenExpiredError(UnauthenticatedError, reason="TOKEN_EXPIRED", advice=RetryAdvice.LOST):
    """Raised when the client's token has expired, also during a stream; the next call reads a new one from its file."""


class ForbiddenError(RefusedError, reason="FORBIDDEN", advice=RetryAdvice.NEVER):
    """Raised when no role allows the call, or the producer belongs to another identity.

    The response is the same whether or not the channel exists.
    """


# Malformed or impossible requests.


class BadArgumentError(RefusedError, reason="BAD_ARGUMENT", advice=RetryAdvice.CORRECT):
    """Raised when an argument is malformed; the message says which one, its value and what is allowed."""


class BadNameError(RefusedError, reason="BAD_NAME", advice=RetryAdvice.CORRECT):
    """Raised when a channel's name is not allowed."""


class OffsetGapError(RefusedError, reason="OFFSET_GAP", advice=RetryAdvice.NEVER):
    """Raised when a put or take offset is beyond what the transaction holds: another client uses the transaction.

    Also raised when a stamp requires an earlier number that the channel has not accepted.
    """


class TxnCapacityError(RefusedError, reason="TXN_CAPACITY", advice=RetryAdvice.SMALLER):
    """Raised when a transaction or append would hold more than the channel's transaction capacity."""


class EventTooLargeError(RefusedError, reason="EVENT_TOO_LARGE", advice=RetryAdvice.SMALLER):
    """Raised when one event alone is larger than the channel or a message can hold."""


class MessageTooLargeError(MillraceError, reason="MESSAGE_TOO_LARGE", advice=RetryAdvice.SMALLER):
    """Raised when a message exceeds a limit of the client or the server.

    The message may be the response to a call that succeeded.
    """


# Names.


class ChannelNotFoundError(RefusedError, reason="CHANNEL_NOT_FOUND", advice=RetryAdvice.NEVER):
    """Raised when no channel has the name."""


class ChannelExistsError(RefusedError, reason="CHANNEL_EXISTS", advice=RetryAdvice.NEVER):
    """Raised when the name is in use."""


class NotAChannelError(RefusedError, reason="NOT_A_CHANNEL", advice=RetryAdvice.NEVER):
    """Raised when the name is that of a source of type `grpc`: events can be appended there, and nothing else.

    Attributes:
        transaction_capacity: Most events of one append or transaction; None while the source is not running.
    """

    transaction_capacity: int | None = None


class ProducerNotFoundError(RefusedError, reason="PRODUCER_NOT_FOUND", advice=RetryAdvice.NEVER):
    """Raised when a channel does not know the producer."""


class ComponentNotFoundError(RefusedError, reason="COMPONENT_NOT_FOUND", advice=RetryAdvice.NEVER):
    """Raised when the server's agent has no component of the name."""


class TxnNotFoundError(RefusedError, reason="TXN_NOT_FOUND", advice=RetryAdvice.LOST):
    """Raised when the server does not know the transaction, for example after a restart."""


# State.


class TxnStateError(RefusedError, reason="TXN_STATE", advice=RetryAdvice.LOST):
    """Raised when a transaction has ended, or belongs to another channel."""


class TxnsOpenError(RefusedError, reason="TXNS_OPEN", advice=RetryAdvice.LATER):
    """Raised when a channel cannot be claimed because open transactions have taken events."""


class ChannelClaimedError(RefusedError, reason="CHANNEL_CLAIMED", advice=RetryAdvice.LOST):
    """Raised when another reader has claimed the channel."""


class NotClaimedError(RefusedError, reason="NOT_CLAIMED", advice=RetryAdvice.LOST):
    """Raised when the caller's claim has ended."""


class ChannelNotEmptyError(RefusedError, reason="CHANNEL_NOT_EMPTY", advice=RetryAdvice.NEVER):
    """Raised when a channel to be deleted still holds events or transactions."""


class ChannelConfiguredError(RefusedError, reason="CHANNEL_CONFIGURED", advice=RetryAdvice.NEVER):
    """Raised when a channel to be deleted is defined in the server's configuration file."""


class LeaseExpiredError(RefusedError, reason="LEASE_EXPIRED", advice=RetryAdvice.LOST):
    """Raised when the transaction was rolled back because its lease expired."""


class StaleEpochError(RefusedError, reason="STALE_EPOCH", advice=RetryAdvice.LOST):
    """Raised when a claim newer than the caller's exists, or the caller's was ended by an operator."""


class SequenceGoneError(RefusedError, reason="SEQUENCE_GONE", advice=RetryAdvice.NEVER):
    """Raised when a part of a range has already been acknowledged, or is not stored yet."""


# Limits that may pass with time.


class ChannelFullError(RefusedError, reason="CHANNEL_FULL", advice=RetryAdvice.FULL):
    """Raised when the channel was full in events for longer than its keep-alive."""


class BytesFullError(RefusedError, reason="BYTES_FULL", advice=RetryAdvice.FULL):
    """Raised when the channel was full in bytes of bodies for longer than its keep-alive."""


class DiskFullError(RefusedError, reason="DISK_FULL", advice=RetryAdvice.FULL):
    """Raised when the server's disk has no space for puts."""


class QuotaExceededError(RefusedError, reason="QUOTA_EXCEEDED", advice=RetryAdvice.FULL):
    """Raised when the identity has used up its quota; `retry_delay_seconds` says when there is space again."""


class TooManyTxnsError(RefusedError, reason="TOO_MANY_TXNS", advice=RetryAdvice.FULL):
    """Raised when the server or the channel has its maximum of open transactions."""


class TooManyChannelsError(RefusedError, reason="TOO_MANY_CHANNELS", advice=RetryAdvice.NEVER):
    """Raised when the server has as many channels as clients may create."""


class OverloadedError(RefusedError, reason="OVERLOADED", advice=RetryAdvice.FULL):
    """Raised when the requests in progress at the server hold their maximum of bytes."""


class DrainingError(RefusedError, reason="DRAINING", advice=RetryAdvice.LATER):
    """Raised when the server is shutting down and accepts no new work."""


# Restarts, damage and bugs.


class NotOwnerError(MillraceError, reason="NOT_OWNER", advice=RetryAdvice.LATER):
    """Raised when the server stands by for the channel's owner, which the client could not follow in time.

    An earlier attempt of the same call may have reached the owner.

    Attributes:
        address: Where clients reach the owner; empty while no owner is known.
        epoch: Grows with each new owner; 0 while none is known.
    """

    address: str = ""
    epoch: int = 0


class ReplayingError(MillraceError, reason="REPLAYING", advice=RetryAdvice.LATER):
    """Raised when the channel is still replaying its log after a restart of the server.

    An earlier attempt of the same call, which gRPC repeats, may have reached the server before the restart.
    """


class LogFailedError(MillraceError, reason="LOG_FAILED", advice=RetryAdvice.RESTART):
    """Raised when the channel's log has failed; the server must be restarted."""


class CorruptError(MillraceError, reason="CORRUPT", advice=RetryAdvice.NEVER):
    """Raised when the channel's log is damaged."""


class InternalError(MillraceError, reason="INTERNAL"):
    """Raised when the server has a bug; its log has the details."""


# Errors that the client finds.


class UnavailableError(MillraceError, reason="UNAVAILABLE", advice=RetryAdvice.UNREACHABLE):
    """Raised when the server cannot be reached, or the connection broke. The server may have carried out the call."""


class DeadlineError(MillraceError, reason="DEADLINE", advice=RetryAdvice.UNREACHABLE):
    """Raised when no response arrived in time. The server may have carried out the call."""


class CancelledError(MillraceError, reason="CANCELLED", advice=RetryAdvice.LOST):
    """Raised when the client cancelled a call, for example because another thread closed the client."""


class ClientClosedError(RefusedError, reason="CLIENT_CLOSED", advice=RetryAdvice.NEVER):
    """Raised when a closed client is used."""


class ClientForkedError(RefusedError, reason="CLIENT_FORKED", advice=RetryAdvice.NEVER):
    """Raised when a forked process uses its parent's client; it must open its own connection."""


class StreamEndedError(RefusedError, reason="STREAM_ENDED", advice=RetryAdvice.LOST):
    """Raised when a delivery is settled after its stream has ended: its events are back in the channel."""


# Errors of a producer.


class BufferFullError(RefusedError, reason="BUFFER_FULL", advice=RetryAdvice.FULL):
    """Raised when a producer's buffer has no space for an event, or none became free in time.

    The event was not accepted.
    """


class ProducerClosedError(RefusedError, reason="PRODUCER_CLOSED", advice=RetryAdvice.NEVER):
    """Raised when a producer is closed, or was closed before it could send an event."""


class EventDroppedError(RefusedError, reason="EVENT_DROPPED", advice=RetryAdvice.NEVER):
    """Raised when a producer dropped an event to make space for newer ones."""


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """One attempt to send an event, as a part of a batch."""

    time: datetime
    """When it ended, UTC."""
    server: str
    reason: str
    """The reason of the error; empty if the server stored the event, or had stored it before."""
    message: str
    """The error's message; empty if there was none."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of one event."""

    channel: str
    """The channel that it was sent to."""
    stored: bool
    """Whether a server confirmed that the channel holds it."""
    sequence: int | None
    """Its sequence in the channel; None if it is not stored, if it is `deduplicated`, or if it went to a source."""
    deduplicated: bool
    """Whether an earlier attempt, whose response was lost, or an earlier producer of the same id had stored it."""
    attempts: tuple[SendAttempt, ...]
    """The last attempts, at most `attempts_kept_max`, oldest first; empty if it was never sent."""
    attempt_count: int
    error: MillraceError | None
    """Why it is not stored; None if it is."""
    is_outcome_known: bool
    """False if an attempt got no response and may have stored it after all."""
    commit_time: datetime | None = None
    """When it was committed, UTC, by the server's clock; None where there is no sequence."""


class SendFailedError(MillraceError, reason="SEND_FAILED"):
    """Raised when an event could not be stored. Its future raises it, with the reason of the cause.

    Attributes:
        result: All that is known about the event, its attempts included.
    """

    result: SendResult | None = None
