"""The only mapping from errors to gRPC statuses."""

from typing import NamedTuple

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message

from millrace.googleapis import error_details_pb2, status_pb2
from millrace_server import errors

DOMAIN = "millrace"
"""The domain of every ErrorInfo."""

_NAMES = {"channel": "channel", "name": "channel", "txn_id": "txn_id"}
"""The key in an error's metadata, by the request's field."""
_METADATA_LENGTH_MAX = 256
_NO_RETRY = ("grpc-retry-pushback-ms", "-1")
"""gRPC's own word to clients: no repeat of this call at this server, although the code is one that they repeat."""

_log = structlog.get_logger(__name__)

_CODES: dict[type[errors.MillraceError], grpc.StatusCode] = {
    errors.BadArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.BadNameError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.OffsetGapError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TxnCapacityError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.EventTooLargeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.TokenExpiredError: grpc.StatusCode.UNAUTHENTICATED,
    errors.ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    errors.ChannelNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.ProducerNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.ComponentNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.TxnNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.ChannelExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.NotAChannelError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TxnStateError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TxnsOpenError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ChannelClaimedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotClaimedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ChannelNotEmptyError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ChannelConfiguredError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LeaseExpiredError: grpc.StatusCode.ABORTED,
    errors.StaleEpochError: grpc.StatusCode.ABORTED,
    errors.SequenceGoneError: grpc.StatusCode.OUT_OF_RANGE,
    errors.ChannelFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.BytesFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DiskFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooManyTxnsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooManyChannelsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.QuotaExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DrainingError: grpc.StatusCode.UNAVAILABLE,
    errors.ReplayingError: grpc.StatusCode.UNAVAILABLE,
    errors.NotOwnerError: grpc.StatusCode.UNAVAILABLE,
    errors.ChannelLogFailedError: grpc.StatusCode.DATA_LOSS,
    errors.ChannelCorruptError: grpc.StatusCode.DATA_LOSS,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}


def code_of(error: errors.MillraceError) -> grpc.StatusCode:
    """Returns the gRPC code of an error."""
    return _CODES[type(error)]


def status_of(error: errors.MillraceError) -> status_pb2.Status:
    """Returns the error as google.rpc.Status: always with ErrorInfo, with RetryInfo if a retry makes sense."""
    details = [_packed(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata))]
    if error.retry_delay_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_delay_seconds * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(code=code_of(error).value[0], message=str(error), details=details)


def refusal(error: Exception, request: Message | None) -> errors.MillraceError:
    """Returns the error that the caller gets, with the channel or transaction of the request in its metadata."""
    if not isinstance(error, errors.MillraceError):
        _log.error("internal error", request=type(request).__name__, exc_info=error)
        error = errors.InternalError("internal error; see the server's log")
    for field, key in _NAMES.items():
        if request is not None and field in request.DESCRIPTOR.fields_by_name:
            error.metadata.setdefault(key, getattr(request, field))
    # A caller may send any name; an error that quotes it must stay within gRPC's limit on metadata.
    error.metadata = {key: value[:_METADATA_LENGTH_MAX] for key, value in error.metadata.items() if value}
    return error


class EndStatus(NamedTuple):
    """How a call ends."""

    code: grpc.StatusCode
    sentence: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def end_status(error: Exception, request: Message | None) -> EndStatus:
    """Returns how a call that failed with the error ends."""
    refused = refusal(error, request)
    details = ("grpc-status-details-bin", status_of(refused).SerializeToString())
    # A client that knows the address is to go there at once.
    is_elsewhere = isinstance(refused, errors.NotOwnerError) and "address" in refused.metadata
    return EndStatus(code_of(refused), str(refused), (details, _NO_RETRY) if is_elsewhere else (details,))


def _packed(detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
