"""The server's errors, by reason.

Each error has a stable `reason` for programs and a message for people: which field, what it was, what is allowed.
`grpc_services.status` maps the types to gRPC codes.
"""

from typing import ClassVar


class MillraceError(Exception):
    """Base class of the errors that a client gets.

    Attributes:
        reason: The stable name of the error.
        retry_delay_seconds: The delay after which a retry makes sense; None if it never does.
        metadata: What the error is about, such as the channel's name.
    """

    reason: ClassVar[str]

    def __init__(self, message: str, *, retry_delay_seconds: float | None = None, **metadata: str) -> None:
        super().__init__(message)
        self.retry_delay_seconds = retry_delay_seconds
        self.metadata = metadata


def all_reasons() -> set[str]:
    """Returns the reasons of all errors that a client can get."""
    kinds = MillraceError.__subclasses__()
    for kind in kinds:
        # The list grows while it is walked: some errors are kinds of others.
        kinds += kind.__subclasses__()
    return {kind.reason for kind in kinds}


# Malformed or impossible requests: a retry cannot help.


class BadArgumentError(MillraceError):
    """Raised when an argument is malformed."""

    reason = "BAD_ARGUMENT"


class BadNameError(MillraceError):
    """Raised when a channel's name or an identifier is not allowed."""

    reason = "BAD_NAME"


class OffsetGapError(MillraceError):
    """Raised when a put_offset or take_offset leaves a gap in the transaction, or a stamp in its channel."""

    reason = "OFFSET_GAP"


class TxnCapacityError(MillraceError):
    """Raised when a transaction would exceed its capacity; it is unchanged."""

    reason = "TXN_CAPACITY"


class EventTooLargeError(MillraceError):
    """Raised when a single event is larger than the channel or a response can hold."""

    reason = "EVENT_TOO_LARGE"


# Authentication and authorization.


class UnauthenticatedError(MillraceError):
    """Raised when a caller has no valid credentials."""

    reason = "UNAUTHENTICATED"


class TokenExpiredError(UnauthenticatedError):
    """Raised when a caller's token or certificate has expired."""

    reason = "TOKEN_EXPIRED"


class ForbiddenError(MillraceError):
    """Raised when no role allows the call, or the producer belongs to another identity.

    The response is the same whether or not the channel exists.
    """

    reason = "FORBIDDEN"


# Names.


class ChannelNotFoundError(MillraceError):
    """Raised when there is no channel of that name."""

    reason = "CHANNEL_NOT_FOUND"


class ChannelExistsError(MillraceError):
    """Raised when a channel of that name already exists."""

    reason = "CHANNEL_EXISTS"


class NotAChannelError(MillraceError):
    """Raised when the name belongs to a source, which accepts events but holds none.

    The metadata has its `transaction_capacity` while it runs.
    """

    reason = "NOT_A_CHANNEL"


class ProducerNotFoundError(MillraceError):
    """Raised when the channel does not know the producer."""

    reason = "PRODUCER_NOT_FOUND"


class ComponentNotFoundError(MillraceError):
    """Raised when the agent has no component of that name."""

    reason = "COMPONENT_NOT_FOUND"


class TxnNotFoundError(MillraceError):
    """Raised when no transaction with that ID is known."""

    reason = "TXN_NOT_FOUND"


# State.


class TxnStateError(MillraceError):
    """Raised when a transaction has ended, or belongs to another channel."""

    reason = "TXN_STATE"


class TxnsOpenError(MillraceError):
    """Raised when a claim finds events that open transactions have taken."""

    reason = "TXNS_OPEN"


class ChannelClaimedError(MillraceError):
    """Raised when another reader has a claim on the channel."""

    reason = "CHANNEL_CLAIMED"


class NotClaimedError(MillraceError):
    """Raised when the call needs a claim that the caller does not have."""

    reason = "NOT_CLAIMED"


class ChannelNotEmptyError(MillraceError):
    """Raised when a channel to be deleted is not empty."""

    reason = "CHANNEL_NOT_EMPTY"


class ChannelConfiguredError(MillraceError):
    """Raised when a channel to be deleted is defined in the server's configuration file."""

    reason = "CHANNEL_CONFIGURED"


class LeaseExpiredError(MillraceError):
    """Raised when the transaction was rolled back because its lease ran out."""

    reason = "LEASE_EXPIRED"


class StaleEpochError(MillraceError):
    """Raised when there is a newer claim than the caller's."""

    reason = "STALE_EPOCH"


class SequenceGoneError(MillraceError):
    """Raised when a part of a range has already been acknowledged, or is not stored yet."""

    reason = "SEQUENCE_GONE"


# Limits: a retry may succeed later.


class ChannelFullError(MillraceError):
    """Raised when there was no capacity for the events within the keep-alive."""

    reason = "CHANNEL_FULL"


class BytesFullError(MillraceError):
    """Raised when there was no capacity for the bytes of the bodies within the keep-alive."""

    reason = "BYTES_FULL"


class DiskFullError(MillraceError):
    """Raised when the disk is full; nothing was changed."""

    reason = "DISK_FULL"


class TooManyTxnsError(MillraceError):
    """Raised when the server or the channel has reached its limit of open transactions."""

    reason = "TOO_MANY_TXNS"


class TooManyChannelsError(MillraceError):
    """Raised when the server has as many channels as clients may create."""

    reason = "TOO_MANY_CHANNELS"


class OverloadedError(MillraceError):
    """Raised when the requests in progress have reached their limit of bytes."""

    reason = "OVERLOADED"


class QuotaExceededError(MillraceError):
    """Raised when an identity has used up its quota."""

    reason = "QUOTA_EXCEEDED"


class DrainingError(MillraceError):
    """Raised when the server is stopping and starts no new work."""

    reason = "DRAINING"


class ReplayingError(MillraceError):
    """Raised when the channel is still replaying its log."""

    reason = "REPLAYING"


class NotOwnerError(MillraceError):
    """Raised when another server owns the channel; the metadata has its `address`, if it is known, and its `epoch`."""

    reason = "NOT_OWNER"


# Faults.


class ChannelLogFailedError(MillraceError):
    """Raised when the channel's log could not be written or synced; the next open decides what is durable."""

    reason = "LOG_FAILED"


class ChannelCorruptError(MillraceError):
    """Raised when the channel's files are damaged; nothing is skipped silently, and other channels continue."""

    reason = "CORRUPT"


class InternalError(MillraceError):
    """Raised when the server has a bug; only its log has the details."""

    reason = "INTERNAL"


class StartError(Exception):
    """Raised when the server cannot start; the message is a sentence for the operator."""
