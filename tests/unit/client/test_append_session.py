from concurrent import futures

import grpc
import pytest

from millrace.googleapis import status_pb2
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace_client import MillraceError
from millrace_client.append_session import AppendSession, ThreadedAppendSession, append_request
from millrace_client.errors import DeadlineError
from millrace_client.grpc_errors import ErrorTranslator

STORED = pb.AppendStreamResponse(first_sequence=1, last_sequence=2)
REFUSED = pb.AppendStreamResponse(error=status_pb2.Status(code=3, message="no"))
ERRORS = ErrorTranslator("server-1:7070")


@pytest.fixture
def session() -> AppendSession[str]:
    return AppendSession(ERRORS, "orders")


def test_match_returns_requests_in_the_order_of_sending(session: AppendSession[str]) -> None:
    """Responses have no number: the oldest request in progress gets a response next."""
    for name in "abc":
        session.note_sent(name, 0.0)
    assert [session.match(STORED, 1.0) for _ in range(3)] == [("a", None), ("b", None), ("c", None)]
    with pytest.raises(IndexError):
        session.match(STORED, 1.0)


def test_match_of_a_refusal_returns_its_error_and_goes_on(session: AppendSession[str]) -> None:
    """An error concerns only its request."""
    session.note_sent("a", 0.0)
    session.note_sent("b", 0.0)
    request, error = session.match(REFUSED, 1.0)
    assert request == "a"
    assert error is not None
    assert (error.code, error.channel) == (grpc.StatusCode.INVALID_ARGUMENT, "orders")
    assert session.match(STORED, 1.0) == ("b", None)


def test_waiting_since_is_the_last_response_or_the_first_request(session: AppendSession[str]) -> None:
    """A request behind others waits for their responses first."""
    session.note_sent("a", 1.0)
    session.note_sent("b", 2.0)
    assert session.waiting_since == 1.0
    session.match(STORED, 5.0)
    assert session.waiting_since == 5.0
    assert session.take_in_flight() == ["b"]
    session.note_sent("c", 9.0)
    assert session.waiting_since == 9.0


def test_append_request_is_what_protobuf_would_write() -> None:
    """The encoded columns are copied unchanged."""
    stamp = event_pb2.ProducerStamp(producer_id="p", first_sequence=1, last_sequence=2, after_sequence=0)
    columns = event_pb2.EventColumns(count=2, body_sizes=[1, 1], bodies=b"ab")
    encoded = columns.SerializeToString()
    request = append_request("orders", stamp, (encoded[:3], encoded[3:]), len(encoded))
    assert pb.AppendStreamRequest.FromString(request) == pb.AppendStreamRequest(
        channel="orders", stamp=stamp, columns=columns
    )


def test_cancelled_stream_raises_the_given_error() -> None:
    """The caller decides why a silent stream is ended."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        session: ThreadedAppendSession[str] = ThreadedAppendSession(channel, ERRORS, "orders")
        session.cancel(DeadlineError("late"))
        with pytest.raises(MillraceError, match="late"):
            list(session.responses())
