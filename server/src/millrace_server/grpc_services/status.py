"""The one table from errors to gRPC statuses."""

import grpc
from google.protobuf import any_pb2, duration_pb2

from millrace.googleapis import error_details_pb2, status_pb2
from millrace_server import errors

DOMAIN = "millrace"
"""The domain of every ErrorInfo."""

_CODES: dict[type[errors.MillraceError], grpc.StatusCode] = {
    errors.BadArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.BadNameError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.OffsetGapError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TxnCapacityError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.EventTooLargeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ChannelNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.TxnNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.ChannelExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.TxnStateError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TxnsOpenError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ChannelClaimedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotClaimedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ChannelNotEmptyError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LeaseExpiredError: grpc.StatusCode.ABORTED,
    errors.StaleEpochError: grpc.StatusCode.ABORTED,
    errors.SequenceGoneError: grpc.StatusCode.OUT_OF_RANGE,
    errors.ChannelFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.BytesFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DiskFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooManyTxnsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DrainingError: grpc.StatusCode.UNAVAILABLE,
    errors.ReplayingError: grpc.StatusCode.UNAVAILABLE,
    errors.ChannelLogFailedError: grpc.StatusCode.DATA_LOSS,
    errors.ChannelCorruptError: grpc.StatusCode.DATA_LOSS,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}


def code_of(error: errors.MillraceError) -> grpc.StatusCode:
    """The gRPC code of an error."""
    return _CODES[type(error)]


def status_of(error: errors.MillraceError) -> status_pb2.Status:
    """The error as google.rpc.Status: ErrorInfo always, RetryInfo where a retry makes sense."""
    details = [_packed(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata))]
    if error.retry_delay_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_delay_seconds * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(code=code_of(error).value[0], message=str(error), details=details)


def _packed(detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
