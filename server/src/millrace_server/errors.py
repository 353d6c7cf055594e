"""Everything that Millrace refuses, by reason.

Each error has a `reason` that never changes and that callers decide by, and a message for people: which field, what it
was, what is allowed. `grpc_services.status` maps the types to gRPC codes.
"""

from typing import ClassVar


class MillraceError(Exception):
    """Base of all refusals.

    Attributes:
        reason: Stable name of the refusal.
        retry_delay_seconds: After how long a repeat makes sense; None where it makes none.
        metadata: What the refusal concerns, such as the channel's name.
    """

    reason: ClassVar[str]

    def __init__(self, message: str, *, retry_delay_seconds: float | None = None, **metadata: str) -> None:
        super().__init__(message)
        self.retry_delay_seconds = retry_delay_seconds
        self.metadata = metadata


# Malformed or impossible requests: a repeat cannot help.


class BadArgumentError(MillraceError):
    """Returned when an argument is malformed."""

    reason = "BAD_ARGUMENT"


class BadNameError(MillraceError):
    """Returned when a channel's name or an identifier is not allowed."""

    reason = "BAD_NAME"


class OffsetGapError(MillraceError):
    """Returned when a put_offset or take_offset lies beyond what the transaction has, or a stamp beyond its channel."""

    reason = "OFFSET_GAP"


class TxnCapacityError(MillraceError):
    """Returned when a transaction would hold more than it may; it stays as it was."""

    reason = "TXN_CAPACITY"


class EventTooLargeError(MillraceError):
    """Returned when one event alone is larger than the channel or an answer can hold."""

    reason = "EVENT_TOO_LARGE"


# Names.


class ChannelNotFoundError(MillraceError):
    """Returned when there is no channel of that name."""

    reason = "CHANNEL_NOT_FOUND"


class ChannelExistsError(MillraceError):
    """Returned when a channel of that name is there already."""

    reason = "CHANNEL_EXISTS"


class TxnNotFoundError(MillraceError):
    """Returned when no transaction of that id is known."""

    reason = "TXN_NOT_FOUND"


# State.


class TxnStateError(MillraceError):
    """Returned when a transaction has ended, or belongs to another channel."""

    reason = "TXN_STATE"


class TxnsOpenError(MillraceError):
    """Returned when a claim finds events that open transactions have taken."""

    reason = "TXNS_OPEN"


class ChannelClaimedError(MillraceError):
    """Returned when another reader's claim lives on the channel."""

    reason = "CHANNEL_CLAIMED"


class NotClaimedError(MillraceError):
    """Returned when the caller's claim is needed and there is none."""

    reason = "NOT_CLAIMED"


class ChannelNotEmptyError(MillraceError):
    """Returned when a channel that still holds something would be deleted."""

    reason = "CHANNEL_NOT_EMPTY"


class LeaseExpiredError(MillraceError):
    """Returned when the transaction was rolled back because its lease ran out."""

    reason = "LEASE_EXPIRED"


class StaleEpochError(MillraceError):
    """Returned when a newer claim than the caller's has begun."""

    reason = "STALE_EPOCH"


class SequenceGoneError(MillraceError):
    """Returned when a range is acknowledged, or not there yet."""

    reason = "SEQUENCE_GONE"


# Limits that time may lift.


class ChannelFullError(MillraceError):
    """Returned when there was no room for the events within the keep-alive."""

    reason = "CHANNEL_FULL"


class BytesFullError(MillraceError):
    """Returned when there was no room for the bodies' bytes within the keep-alive."""

    reason = "BYTES_FULL"


class DiskFullError(MillraceError):
    """Returned when the disk has no room for what would be written; nothing was changed."""

    reason = "DISK_FULL"


class TooManyTxnsError(MillraceError):
    """Returned when the server or the channel has as many open transactions as it may."""

    reason = "TOO_MANY_TXNS"


class OverloadedError(MillraceError):
    """Returned when the requests in work hold as many bytes as they may."""

    reason = "OVERLOADED"


class DrainingError(MillraceError):
    """Returned when the server is stopping and begins nothing new."""

    reason = "DRAINING"


class ReplayingError(MillraceError):
    """Returned when the channel is still reading its log; it opens when it has done so."""

    reason = "REPLAYING"


# Faults.


class ChannelLogFailedError(MillraceError):
    """Returned when the channel's log could not be written or synced; what is durable is known when it opens again."""

    reason = "LOG_FAILED"


class ChannelCorruptError(MillraceError):
    """Returned when the channel's files are damaged; nothing is skipped in silence, and other channels go on."""

    reason = "CORRUPT"


class InternalError(MillraceError):
    """Returned when the server itself is at fault; the log has the whole story, the caller none of it."""

    reason = "INTERNAL"


class StartError(Exception):
    """The server cannot start; the message is a sentence for the person who started it."""
