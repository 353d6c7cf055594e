import grpc
import pytest
from google.protobuf import any_pb2
from grpc import aio

from millrace.googleapis import error_details_pb2, status_pb2
from millrace_server.agent.sinks.millrace.refusals import Refusal, refusal_of_error, refusal_of_status
from tests.forward_targets import refused

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def failure(code: grpc.StatusCode, details: str, *metadata: tuple[str, str | bytes]) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*metadata), details=details)


def test_refusal_of_a_status_tells_reason_code_and_delay() -> None:
    """All that is decided by comes from there; the message is for people."""
    status = refused("CHANNEL_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED, 1.5).error
    refusal = refusal_of_status(status)
    assert refusal == Refusal("CHANNEL_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED, "the test says CHANNEL_FULL", 1.5)
    assert str(refusal) == "CHANNEL_FULL: the test says CHANNEL_FULL"
    assert refusal_of_status(refused("REPLAYING", UNAVAILABLE).error).retry_delay_seconds is None


def test_refusal_of_somebody_elses_status_has_no_reason() -> None:
    """A proxy may have reasons of its own, and codes that do not exist."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason="TXN_CAPACITY", domain="example.org"))
    refusal = refusal_of_status(status_pb2.Status(code=999, message="no", details=[detail]))
    assert refusal == Refusal("", grpc.StatusCode.UNKNOWN, "no")
    assert str(refusal) == "UNKNOWN: no"


@pytest.mark.parametrize("value", [b"\xff\xff", "text"])
def test_refusal_of_an_error_with_broken_details_keeps_its_code(value: bytes | str) -> None:
    """Whatever stands between here and there."""
    error = failure(UNAVAILABLE, "Socket closed", ("grpc-status-details-bin", value))
    assert refusal_of_error(error) == Refusal("", UNAVAILABLE, "Socket closed")


def test_refusal_of_an_error_with_details_says_what_they_say() -> None:
    """They are a status in bytes."""
    status = refused("DRAINING", UNAVAILABLE).error.SerializeToString()
    error = failure(UNAVAILABLE, "", ("other", "x"), ("grpc-status-details-bin", status))
    assert refusal_of_error(error).reason == "DRAINING"


@pytest.mark.parametrize(
    ("reason", "code", "message", "about"),
    [
        ("EVENT_TOO_LARGE", grpc.StatusCode.INVALID_ARGUMENT, "", "event"),
        ("TXN_CAPACITY", grpc.StatusCode.INVALID_ARGUMENT, "", "size"),
        ("", grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (9 vs. 4)", "stream"),
        ("", grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls", ""),
        ("", UNAVAILABLE, "larger than max", ""),
        ("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED, "", "load"),
        ("CHANNEL_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max", ""),
        ("BAD_ARGUMENT", grpc.StatusCode.INVALID_ARGUMENT, "", ""),
        ("", UNAVAILABLE, "", ""),
    ],
)
def test_refusal_by_reason_is_about_what_another_request_would_change(
    reason: str, code: grpc.StatusCode, message: str, about: str
) -> None:
    """An event, the size of a request or of a message, or how many go at once; all else is tried again as it is."""
    refusal = Refusal(reason, code, message)
    assert [
        word for word in ("event", "size", "stream", "load") if getattr(refusal, f"is_about_{word}")
    ] == about.split()
