"""gRPC's errors, turned into this package's: by the reason that the server gave, never by a message."""

from collections.abc import Iterable
from typing import Any

import grpc

from millrace.googleapis import error_details_pb2, status_pb2
from millrace_client import _decoding
from millrace_client.errors import (
    ERRORS_BY_REASON,
    CancelledError,
    DeadlineError,
    MessageTooLargeError,
    MillraceError,
    UnavailableError,
)

DOMAIN = "millrace"
"""Whose reasons count."""

_STATUS_KEY = "grpc-status-details-bin"


class Failures:
    """Makes errors of what went wrong between this client and one server.

    Attributes:
        endpoint: Where the server is, for messages.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def error_of(self, failure: grpc.RpcError, channel: str, txn_id: str = "") -> MillraceError:
        """The error for a call that failed, which was about this channel and transaction."""
        code = failure.code()
        error = refusal_of(_status_bytes(failure.trailing_metadata() or ()), code) or self._unexplained(failure, code)
        error.channel = error.channel or channel
        error.txn_id = error.txn_id or txn_id
        return error

    def deadline_error(self, channel: str, txn_id: str = "") -> DeadlineError:
        """The error for an answer that did not come in time."""
        code = grpc.StatusCode.DEADLINE_EXCEEDED
        return DeadlineError(f"{self.endpoint} did not answer in time", channel=channel, txn_id=txn_id, code=code)

    def closed_error(self, channel: str, txn_id: str = "") -> CancelledError:
        """The error for a call that was under way when the client was closed."""
        message = f"the call to {self.endpoint} was cut off"
        return CancelledError(message, channel=channel, txn_id=txn_id, code=grpc.StatusCode.CANCELLED)

    def _unexplained(self, failure: grpc.RpcError, code: grpc.StatusCode) -> MillraceError:
        details = failure.details() or code.name
        match code:
            case grpc.StatusCode.UNAVAILABLE:
                message = f"cannot reach a Millrace server at {self.endpoint}; is millraced running there? ({details})"
                return UnavailableError(message, code=code)
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return self.deadline_error("")
            case grpc.StatusCode.CANCELLED:
                return self.closed_error("")
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                # What gRPC itself says of messages above a limit, on either side.
                message = f"a message is above a limit of this client or of {self.endpoint} ({details})"
                return MessageTooLargeError(message, code=code)
            case grpc.StatusCode.UNIMPLEMENTED:
                message = f"what answers at {self.endpoint} does not know this call; is it a Millrace server?"
                return MillraceError(message, reason=code.name, code=code)
            case _:
                return MillraceError(f"{self.endpoint}: {details}", reason=code.name, code=code)


def refusal_of(status: bytes | None, code: grpc.StatusCode) -> MillraceError | None:
    """The error that an encoded google.rpc.Status tells of; None where no Millrace server wrote it."""
    if status is None:
        return None
    parsed = status_pb2.Status.FromString(status)
    info = error_details_pb2.ErrorInfo()
    delay = error_details_pb2.RetryInfo()
    retry_delay_seconds = None
    for detail in parsed.details:
        if detail.Unpack(delay):
            retry_delay_seconds = _decoding.seconds_of(delay.retry_delay)
        else:
            detail.Unpack(info)
    if info.domain != DOMAIN:
        return None
    return ERRORS_BY_REASON.get(info.reason, MillraceError)(
        parsed.message,
        reason=info.reason,
        channel=info.metadata.get("channel", ""),
        txn_id=info.metadata.get("txn_id", ""),
        retry_delay_seconds=retry_delay_seconds,
        code=code,
    )


def _status_bytes(metadata: Iterable[Any]) -> bytes | None:
    for key, value in metadata:
        if key == _STATUS_KEY and isinstance(value, bytes):
            return value
    return None
