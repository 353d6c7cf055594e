"""Translates gRPC's errors into this package's, by the reason that the server gave, never by a message."""

import re
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from millrace.googleapis import error_details_pb2, status_pb2
from millrace_client import _decoding
from millrace_client.errors import (
    ERRORS_BY_REASON,
    CancelledError,
    DeadlineError,
    MessageTooLargeError,
    MillraceError,
    NotAChannelError,
    NotOwnerError,
    UnavailableError,
)

DOMAIN = "millrace"
"""The domain of Millrace's reasons in google.rpc.ErrorInfo."""

_STATUS_KEY = "grpc-status-details-bin"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class ErrorTranslator:
    """Creates the errors of calls to one server.

    Args:
        endpoint: The server's address, for messages.
        too_large_text: RESOURCE_EXHAUSTED without a reason concerns a message above a limit if gRPC's message has this
            text. Empty: always, although a proxy may use the code for too many calls.
    """

    def __init__(self, endpoint: str, too_large_text: str = "") -> None:
        self.endpoint = endpoint
        self._too_large_text = too_large_text

    def from_rpc(self, failure: grpc.RpcError, channel: str, txn_id: str = "") -> MillraceError:
        """Returns the error for a failed call that concerned this channel and transaction."""
        code = failure.code()
        error = _error_in_metadata(failure.trailing_metadata() or (), code) or self._without_reason(failure, code)
        error.channel = error.channel or channel
        error.txn_id = error.txn_id or txn_id
        return error

    def deadline(self, channel: str) -> DeadlineError:
        """Returns the error for a response that did not come in time."""
        code = grpc.StatusCode.DEADLINE_EXCEEDED
        return DeadlineError(f"{self.endpoint} did not respond in time", channel=channel, code=code)

    def cancelled(self, channel: str, txn_id: str = "") -> CancelledError:
        """Returns the error for a call that was in progress when the client was closed."""
        message = f"the call to {self.endpoint} was cancelled"
        return CancelledError(message, channel=channel, txn_id=txn_id, code=grpc.StatusCode.CANCELLED)

    def _without_reason(self, failure: grpc.RpcError, code: grpc.StatusCode) -> MillraceError:
        details = failure.details() or code.name
        match code:
            case grpc.StatusCode.UNAVAILABLE:
                message = f"cannot reach a Millrace server at {self.endpoint}; {_likely_cause(details)} ({details})"
                return UnavailableError(message, code=code)
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return self.deadline("")
            case grpc.StatusCode.CANCELLED:
                # The client's own cancellations have a message of their own. gRPC uses this code also for calls that a
                # stopping server has not started.
                dropped = UnavailableError(
                    f"the server at {self.endpoint} dropped the call; is it shutting down?", code=code
                )
                return dropped if failure.details() == code.name else self.cancelled("")
            case grpc.StatusCode.RESOURCE_EXHAUSTED if self._too_large_text in details:
                message = f"a message is above a limit of this client or of {self.endpoint} ({details})"
                return MessageTooLargeError(message, code=code)
            case grpc.StatusCode.UNIMPLEMENTED:
                message = f"the server at {self.endpoint} does not know this call; is it a Millrace server?"
                return MillraceError(message, reason=code.name, code=code)
            case _:
                message = f"the call to {self.endpoint} failed: {code.name}: {details}"
                return MillraceError(message, reason=code.name, code=code)

    def from_status(self, status: status_pb2.Status, channel: str) -> MillraceError:
        """Returns the error that the server put into a response instead of ending the call."""
        code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
        error = _error_with_reason(status, code)
        if error is None:
            message = f"{self.endpoint} refused the request: {code.name}: {status.message}"
            error = MillraceError(message, reason=code.name, code=code)
        error.channel = error.channel or channel
        return error


_CAUSES = {
    r"resolving|DNS resolution failed": "the name of its host cannot be resolved",
    r"http1\.x server|missing selected ALPN": "this port speaks HTTP, but not gRPC",
    r"WRONG_VERSION_NUMBER": "it does not use TLS, but this client does",
    r"certificate has expired": "its certificate has expired",
    r"CERTIFICATE_VERIFY_FAILED": "this client does not trust its certificate",
    r"Hostname Verification Check failed": "its certificate is not valid for this name",
    r"failed to connect.*(Socket closed|Connection reset)": "does it require TLS, or another client certificate?",
}
"""What to look at first, by what gRPC's message says; it has no codes for it."""


def _likely_cause(details: str) -> str:
    found = (cause for pattern, cause in _CAUSES.items() if re.search(pattern, details, re.DOTALL))
    return next(found, "is millraced running there?")


def _error_in_metadata(metadata: Iterable[Any], code: grpc.StatusCode) -> MillraceError | None:
    for key, value in metadata:
        if key == _STATUS_KEY and isinstance(value, bytes):
            try:
                return _error_with_reason(status_pb2.Status.FromString(value), code)
            except DecodeError:
                # A proxy wrote it; the code and the message remain.
                return None
    return None


def _error_with_reason(status: status_pb2.Status, code: grpc.StatusCode) -> MillraceError | None:
    """Returns the error that a Millrace server described; None if another program wrote the status."""
    info = error_details_pb2.ErrorInfo()
    delay = error_details_pb2.RetryInfo()
    retry_delay_seconds = None
    for detail in status.details:
        if detail.Unpack(delay):
            retry_delay_seconds = _decoding.seconds_of(delay.retry_delay)
        else:
            detail.Unpack(info)
    if info.domain != DOMAIN:
        return None
    error = ERRORS_BY_REASON.get(info.reason, MillraceError)(
        status.message,
        reason=info.reason,
        channel=info.metadata.get("channel", ""),
        txn_id=info.metadata.get("txn_id", ""),
        retry_delay_seconds=retry_delay_seconds,
        code=code,
    )
    if isinstance(error, NotOwnerError):
        error.address = info.metadata.get("address", "")
        epoch = info.metadata.get("epoch", "")
        error.epoch = int(epoch) if epoch.isdecimal() else 0
    if isinstance(error, NotAChannelError):
        capacity = info.metadata.get("transaction_capacity", "")
        error.transaction_capacity = int(capacity) if capacity.isdecimal() else None
    return error
