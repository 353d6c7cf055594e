import grpc
import pytest
from google.protobuf.message import Message

from millrace.googleapis import error_details_pb2
from millrace_server import errors
from millrace_server.errors import MillraceError
from millrace_server.grpc_services.status import DOMAIN, code_of, end_status, status_of

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MillraceError) and kind is not MillraceError
]

DOCUMENTED_CODES = {
    grpc.StatusCode.UNAUTHENTICATED: {"UNAUTHENTICATED", "TOKEN_EXPIRED"},
    grpc.StatusCode.PERMISSION_DENIED: {"FORBIDDEN"},
    grpc.StatusCode.NOT_FOUND: {"CHANNEL_NOT_FOUND", "PRODUCER_NOT_FOUND", "COMPONENT_NOT_FOUND", "TXN_NOT_FOUND"},
    grpc.StatusCode.ALREADY_EXISTS: {"CHANNEL_EXISTS"},
    grpc.StatusCode.FAILED_PRECONDITION: {
        "TXN_STATE",
        "CHANNEL_CLAIMED",
        "CHANNEL_NOT_EMPTY",
        "NOT_A_CHANNEL",
        "CHANNEL_CONFIGURED",
        "TXNS_OPEN",
        "NOT_CLAIMED",
    },
    grpc.StatusCode.ABORTED: {"LEASE_EXPIRED", "STALE_EPOCH"},
    grpc.StatusCode.RESOURCE_EXHAUSTED: {
        "CHANNEL_FULL",
        "BYTES_FULL",
        "DISK_FULL",
        "TOO_MANY_TXNS",
        "TOO_MANY_CHANNELS",
        "QUOTA_EXCEEDED",
        "OVERLOADED",
    },
    grpc.StatusCode.INVALID_ARGUMENT: {"TXN_CAPACITY", "EVENT_TOO_LARGE", "BAD_NAME", "OFFSET_GAP", "BAD_ARGUMENT"},
    grpc.StatusCode.UNAVAILABLE: {"REPLAYING", "NOT_OWNER", "DRAINING"},
    grpc.StatusCode.OUT_OF_RANGE: {"SEQUENCE_GONE"},
    grpc.StatusCode.DATA_LOSS: {"LOG_FAILED", "CORRUPT"},
    grpc.StatusCode.INTERNAL: {"INTERNAL"},
}


def unpacked(packed: Message, kind: type[Message]) -> Message:
    detail = kind()
    assert packed.Unpack(detail)  # type: ignore[attr-defined] # the stub lacks it
    return detail


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.reason)
def test_code_of_each_error_is_the_documented_one(kind: type[MillraceError]) -> None:
    """Every error of the server is in the table, with the documented code."""
    [documented] = [code for code, reasons in DOCUMENTED_CODES.items() if kind.reason in reasons]
    assert code_of(kind("sentence")) is documented


def test_reasons_are_unique_and_named_after_their_errors() -> None:
    """Callers use the reason: it is unique, and derived from the name of the type."""
    assert len({kind.reason for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        name = "".join(word.capitalize() for word in kind.reason.split("_")) + "Error"
        # Some have a prefix, since the log has errors of its own.
        assert kind.__name__ in {name, f"Channel{name}"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.reason)
def test_status_of_an_error_holds_its_details(kind: type[MillraceError]) -> None:
    """The details are code, sentence and ErrorInfo with reason, domain and metadata; no RetryInfo without sense."""
    status = status_of(kind("what is wrong", channel="orders", txn_id="t"))
    assert (status.code, status.message) == (code_of(kind("")).value[0], "what is wrong")
    [info] = status.details
    assert unpacked(info, error_details_pb2.ErrorInfo) == error_details_pb2.ErrorInfo(
        reason=kind.reason, domain=DOMAIN, metadata={"channel": "orders", "txn_id": "t"}
    )


@pytest.mark.parametrize("delay_seconds", [0.0, 0.5, 3600.0])
def test_status_of_an_error_that_passes_tells_when_to_retry(delay_seconds: float) -> None:
    """RetryInfo comes second, with the delay."""
    status = status_of(errors.ChannelFullError("full", retry_delay_seconds=delay_seconds))
    _, packed = status.details
    retry = unpacked(packed, error_details_pb2.RetryInfo)
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToTimedelta().total_seconds() == delay_seconds


def test_call_for_an_owner_that_is_known_is_not_repeated_by_grpc() -> None:
    """Clients go to the address at once; without one, they repeat the call at this server after a while."""
    pushback = ("grpc-retry-pushback-ms", "-1")
    assert pushback in end_status(errors.NotOwnerError("", address="mill-2:7070"), None).trailing_metadata
    assert pushback not in end_status(errors.NotOwnerError("", address=""), None).trailing_metadata
