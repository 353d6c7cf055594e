"""Why a server does not take events, as gRPC tells it."""

from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from millrace.googleapis import error_details_pb2, status_pb2

_DOMAIN = "millrace"
_STATUS_KEY = "grpc-status-details-bin"
_TOO_LARGE = "larger than max"
"""Stands in what gRPC, in all of its languages, says of a message that is too large for whoever gets it."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status that is not OK."""

    reason: str
    """Millrace's stable name for it; empty where Millrace has not said it."""
    code: grpc.StatusCode
    message: str
    retry_delay_seconds: float | None = None
    """After how long a repeat makes sense, where the server has said so."""

    @property
    def is_about_event(self) -> bool:
        """Whether some event will never be taken, however it comes."""
        return self.reason == "EVENT_TOO_LARGE"

    @property
    def is_about_stream(self) -> bool:
        """Whether a message was too large for gRPC itself, which ends the stream and does not say which it was."""
        # By its words, for want of a reason: a proxy ends streams with the same code when there are too many calls,
        # and no event is at fault then.
        is_too_much = self.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        return not self.reason and is_too_much and _TOO_LARGE in self.message

    @property
    def is_about_load(self) -> bool:
        """Whether it may be taken where nothing else is on its way."""
        return self.reason == "OVERLOADED"

    @property
    def is_about_size(self) -> bool:
        """Whether a smaller request may be taken."""
        return self.reason == "TXN_CAPACITY"

    def __str__(self) -> str:
        return f"{self.reason or self.code.name}: {self.message}"


def refusal_of_status(status: status_pb2.Status) -> Refusal:
    """What a google.rpc.Status says."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    reason, delay_seconds = "", None
    for detail in status.details:
        if detail.Unpack(info) and info.domain == _DOMAIN:
            reason = info.reason
        elif detail.Unpack(retry):
            delay_seconds = retry.retry_delay.ToNanoseconds() / 1e9
    return Refusal(reason, _CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, delay_seconds)


def refusal_of_error(error: aio.AioRpcError) -> Refusal:
    """What a failed call says."""
    for key, value in error.trailing_metadata() or ():
        if key == _STATUS_KEY and isinstance(value, bytes):
            try:
                return refusal_of_status(status_pb2.Status.FromString(value))
            except DecodeError:
                # Somebody between here and there speaks another language; the code and the words remain.
                break
    return Refusal("", error.code(), error.details() or "")
