"""Everything that a call may raise, by reason."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import grpc

if TYPE_CHECKING:
    from millrace_client.producing.results import SendResult


class MillraceError(Exception):
    """Base of all errors. A refusal whose reason this client does not know is raised as this class itself.

    Attributes:
        reason: Stable name of what went wrong; decide by it, or by the class.
        message: A sentence for people.
        channel: The channel that the call was about; empty where it was about none.
        txn_id: The transaction that the call was about; empty where it was about none.
        retry_delay_seconds: After how long a repeat makes sense; None where the server did not say.
        code: The gRPC code; None where the client found the error before sending.
    """

    default_reason: ClassVar[str] = "UNKNOWN"
    is_outcome_known: ClassVar[bool] = False
    """Whether the error says that nothing was done. Otherwise it is open whether the server did what it was asked."""

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

    def __reduce__(self) -> tuple[type["MillraceError"], tuple[str], dict[str, object]]:
        # The attributes are not arguments of Exception; without this an error would lose them between processes.
        return type(self), (self.message,), self.__dict__


class RefusedError(MillraceError):
    """Base of the errors that say that nothing was done."""

    is_outcome_known = True


# Malformed or impossible requests: a repeat cannot help.


class BadArgumentError(RefusedError):
    """Returned when an argument is malformed; the message says which, what it was and what is allowed."""

    default_reason = "BAD_ARGUMENT"


class BadNameError(RefusedError):
    """Returned when a channel's name is not allowed."""

    default_reason = "BAD_NAME"


class OffsetGapError(RefusedError):
    """Returned when a put or take offset lies beyond what the transaction has: somebody else uses the transaction.

    Also when a stamp names a number that the channel should have accepted before, and has not.
    """

    default_reason = "OFFSET_GAP"


class TxnCapacityError(RefusedError):
    """Returned when a transaction or append would hold more than the channel's transaction capacity."""

    default_reason = "TXN_CAPACITY"


class EventTooLargeError(RefusedError):
    """Returned when one event alone is larger than the channel or a message can hold."""

    default_reason = "EVENT_TOO_LARGE"


class MessageTooLargeError(MillraceError):
    """Returned when a message is above a limit, here or at the server. It may be the answer to a call that was done."""

    default_reason = "MESSAGE_TOO_LARGE"


# Names.


class ChannelNotFoundError(RefusedError):
    """Returned when there is no channel of that name."""

    default_reason = "CHANNEL_NOT_FOUND"


class ChannelExistsError(RefusedError):
    """Returned when a channel of that name is there already."""

    default_reason = "CHANNEL_EXISTS"


class TxnNotFoundError(RefusedError):
    """Returned when the server does not know the transaction, for example because it was started anew."""

    default_reason = "TXN_NOT_FOUND"


# State.


class TxnStateError(RefusedError):
    """Returned when a transaction has ended, or belongs to another channel."""

    default_reason = "TXN_STATE"


class TxnsOpenError(RefusedError):
    """Returned when a claim finds events that open transactions have taken."""

    default_reason = "TXNS_OPEN"


class ChannelClaimedError(RefusedError):
    """Returned when another reader's claim lives on the channel."""

    default_reason = "CHANNEL_CLAIMED"


class NotClaimedError(RefusedError):
    """Returned when the caller's claim has ended."""

    default_reason = "NOT_CLAIMED"


class ChannelNotEmptyError(RefusedError):
    """Returned when a channel that still holds something would be deleted."""

    default_reason = "CHANNEL_NOT_EMPTY"


class LeaseExpiredError(RefusedError):
    """Returned when the transaction was rolled back because its lease ran out."""

    default_reason = "LEASE_EXPIRED"


class StaleEpochError(RefusedError):
    """Returned when a newer claim than the caller's has begun."""

    default_reason = "STALE_EPOCH"


class SequenceGoneError(RefusedError):
    """Returned when a range is acknowledged, or not there yet."""

    default_reason = "SEQUENCE_GONE"


# Limits that time may lift.


class ChannelFullError(RefusedError):
    """Returned when there was no room for the events within the channel's keep-alive."""

    default_reason = "CHANNEL_FULL"


class BytesFullError(RefusedError):
    """Returned when there was no room for the bodies' bytes within the channel's keep-alive."""

    default_reason = "BYTES_FULL"


class DiskFullError(RefusedError):
    """Returned when the server's disk has no room for puts."""

    default_reason = "DISK_FULL"


class TooManyTxnsError(RefusedError):
    """Returned when the server or the channel has as many open transactions as it may."""

    default_reason = "TOO_MANY_TXNS"


class OverloadedError(RefusedError):
    """Returned when the requests that the server works on hold as many bytes as they may."""

    default_reason = "OVERLOADED"


class DrainingError(RefusedError):
    """Returned when the server is stopping and begins nothing new."""

    default_reason = "DRAINING"


# Restarts, damage and bugs.


class ReplayingError(MillraceError):
    """Returned when the channel is still reading its log, after the server was started anew.

    An earlier attempt of the same call, which gRPC repeats, may have reached the server before.
    """

    default_reason = "REPLAYING"


class LogFailedError(MillraceError):
    """Returned when the channel's log has failed; the server must reopen it."""

    default_reason = "LOG_FAILED"


class CorruptError(MillraceError):
    """Returned when the channel's log is damaged."""

    default_reason = "CORRUPT"


class InternalError(MillraceError):
    """Returned when the server itself is at fault; its log tells more."""

    default_reason = "INTERNAL"


# What this side finds.


class UnavailableError(MillraceError):
    """Returned when the server cannot be reached, or the connection broke. Whether it did anything is open."""

    default_reason = "UNAVAILABLE"


class DeadlineError(MillraceError):
    """Returned when no answer came in time. Whether the server did anything is open."""

    default_reason = "DEADLINE"


class CancelledError(MillraceError):
    """Returned when a call was cut short on this side, for example by closing the client from another thread."""

    default_reason = "CANCELLED"


class ClientClosedError(RefusedError):
    """Returned when a client is used after it was closed."""

    default_reason = "CLIENT_CLOSED"


class ClientForkedError(RefusedError):
    """Returned when a forked process uses what its parent opened; it must connect for itself."""

    default_reason = "CLIENT_FORKED"


class StreamEndedError(RefusedError):
    """Returned when a delivery is settled after its stream has ended: its events have returned to the channel."""

    default_reason = "STREAM_ENDED"


# What a producer finds.


class BufferFullError(RefusedError):
    """Returned when a producer's buffer has no room for an event, or had none in time; it was not taken."""

    default_reason = "BUFFER_FULL"


class ProducerClosedError(RefusedError):
    """Returned when a producer is given an event after it was closed, or was closed before it could send it."""

    default_reason = "PRODUCER_CLOSED"


class EventDroppedError(RefusedError):
    """Returned when a producer dropped an event to make room for newer ones."""

    default_reason = "EVENT_DROPPED"


class SendFailedError(MillraceError):
    """Returned by a producer's future when the event is not stored; has the reason of what it failed of.

    Attributes:
        result: All that is known, the attempts too.
    """

    default_reason = "SEND_FAILED"
    result: "SendResult | None" = None


def _classes(base: type[MillraceError]) -> Iterator[type[MillraceError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _classes(kind)


ERRORS_BY_REASON = {kind.default_reason: kind for kind in _classes(MillraceError) if "default_reason" in vars(kind)}
"""The class for each reason that this client knows."""
