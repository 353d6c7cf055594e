import grpc
import pytest
from google.protobuf import any_pb2
from grpc import aio

from millrace.googleapis import error_details_pb2, status_pb2
from millrace_client import errors
from millrace_client.errors import MillraceError
from millrace_client.grpc_errors import ErrorTranslator
from tests.forward_targets import refused

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
TRANSLATOR = ErrorTranslator("server-1:7070")
SINK_TRANSLATOR = ErrorTranslator("server-1:7070", "larger than max")


def failure(code: grpc.StatusCode, details: str, *metadata: tuple[str, str | bytes]) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*metadata), details=details)


def test_from_status_has_reason_code_and_delay() -> None:
    """The class follows the reason; the message is for people."""
    error = TRANSLATOR.from_status(refused("CHANNEL_FULL", EXHAUSTED, 1.5).error, "orders")
    assert type(error) is errors.ChannelFullError
    assert (error.code, error.retry_delay_seconds, error.channel) == (EXHAUSTED, 1.5, "orders")
    assert error.message == "the test says CHANNEL_FULL"
    assert TRANSLATOR.from_status(refused("REPLAYING", UNAVAILABLE).error, "").retry_delay_seconds is None


def test_from_status_of_another_domain_has_the_code_as_its_reason() -> None:
    """A proxy may use reasons of its own, and unknown codes."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason="TXN_CAPACITY", domain="example.org"))
    error = TRANSLATOR.from_status(status_pb2.Status(code=999, message="no", details=[detail]), "orders")
    assert type(error) is MillraceError
    assert error.reason == "UNKNOWN"
    assert error.message == "server-1:7070 refused the request: UNKNOWN: no"


@pytest.mark.parametrize("value", [b"\xff\xff", "text"])
def test_from_rpc_with_broken_details_keeps_its_code(value: bytes | str) -> None:
    """The details may come from a proxy."""
    error = TRANSLATOR.from_rpc(failure(UNAVAILABLE, "Socket closed", ("grpc-status-details-bin", value)), "orders")
    assert type(error) is errors.UnavailableError
    assert "Socket closed" in error.message


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        ("failed to connect to all addresses: Connection refused", "is millraced running there?"),
        (
            "errors resolving a:1: [field:hostname lookup error: Domain name not found]",
            "the name of its host cannot be",
        ),
        ("Failed parsing HTTP/2 (Trying to connect an http1.x server (HTTP status 405))", "this port speaks HTTP, but"),
        ("Cannot check peer: missing selected ALPN property.", "this port speaks HTTP, but not gRPC"),
        (
            "Custom verification check failed: Hostname Verification Check failed.",
            "its certificate is not valid for this name",
        ),
        ("Tls handshake failed: OPENSSL_internal:CERTIFICATE_VERIFY_FAILED", "this client does not trust its certifi"),
        ("OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", "its certificate has expired"),
        ("Tls handshake failed: OPENSSL_internal:WRONG_VERSION_NUMBER", "it does not use TLS, but this client does"),
        (
            "failed to connect to all addresses: Socket closed",
            "does it require TLS, or another client certificate?",
        ),
        ("failed to connect to all addresses: Connection reset by peer", "does it require TLS, or another client"),
        ("Socket closed", "is millraced running there?"),
    ],
)
def test_from_rpc_without_a_connection_says_what_to_look_at(details: str, cause: str) -> None:
    """Servers with TLS close connections without, which gRPC tells in its message only."""
    error = TRANSLATOR.from_rpc(failure(UNAVAILABLE, details), "orders")
    assert error.message.startswith(f"cannot reach a Millrace server at server-1:7070; {cause}")


def test_from_rpc_with_details_has_their_reason() -> None:
    """The details are an encoded status."""
    status = refused("DRAINING", UNAVAILABLE).error.SerializeToString()
    error = TRANSLATOR.from_rpc(failure(UNAVAILABLE, "", ("other", "x"), ("grpc-status-details-bin", status)), "")
    assert type(error) is errors.DrainingError


@pytest.mark.parametrize(
    ("code", "details", "reason"),
    [
        (EXHAUSTED, "SERVER: Received message larger than max (9 vs. 4)", "MESSAGE_TOO_LARGE"),
        (EXHAUSTED, "too many calls", "RESOURCE_EXHAUSTED"),
        (UNAVAILABLE, "larger than max", "UNAVAILABLE"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", "DEADLINE"),
        (grpc.StatusCode.CANCELLED, "Channel closed!", "CANCELLED"),
        (grpc.StatusCode.CANCELLED, "CANCELLED", "UNAVAILABLE"),
        (grpc.StatusCode.UNIMPLEMENTED, "", "UNIMPLEMENTED"),
        (grpc.StatusCode.INTERNAL, "", "INTERNAL"),
    ],
)
def test_from_rpc_without_details_follows_the_code(code: grpc.StatusCode, details: str, reason: str) -> None:
    """Too large messages and too many calls have the same code in gRPC; only the first is about the message."""
    assert SINK_TRANSLATOR.from_rpc(failure(code, details), "orders").reason == reason


def test_from_rpc_of_an_exhausted_resource_is_a_message_above_a_limit_for_clients() -> None:
    """Without a known text, the code alone decides."""
    assert TRANSLATOR.from_rpc(failure(EXHAUSTED, "too many calls"), "").reason == "MESSAGE_TOO_LARGE"
