import asyncio
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import pytest
from grpc import aio
from structlog.testing import capture_logs

from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import _settings
from millrace_client._methods import APPEND, RELEASE, ROLLBACK
from millrace_client._settings import channel_options
from millrace_server.errors import ChannelFullError, MillraceError, OverloadedError, ReplayingError
from millrace_server.grpc_services.messages import Columns
from millrace_server.grpc_services.rpc import InflightBytes, Rpcs
from millrace_server.histograms import Histograms
from tests.waiting import until


def test_admit_within_the_limits_admits() -> None:
    """Requests up to the limit may be in progress together."""
    inflight = InflightBytes(total_max=100, connection_max=60)
    with inflight.admit(60, "a"), inflight.admit(40, "b"):
        pass


def test_admit_beyond_the_connections_limit_refuses() -> None:
    """One connection is refused with a retry delay; another is not affected."""
    inflight = InflightBytes(total_max=100, connection_max=60)
    with inflight.admit(50, "a"):
        with pytest.raises(OverloadedError, match=r"this connection .* hold 50 bytes of at most 60") as caught:
            inflight.admit(11, "a").__enter__()
        assert caught.value.retry_delay_seconds
        with inflight.admit(10, "a"), inflight.admit(40, "b"):
            pass


def test_admit_beyond_the_limit_of_all_refuses() -> None:
    """The request that exceeds the limit is refused, on any connection."""
    inflight = InflightBytes(total_max=100, connection_max=60)
    with (
        inflight.admit(60, "a"),
        inflight.admit(40, "b"),
        pytest.raises(OverloadedError, match=r"the server .* hold 100 bytes of at most 100"),
    ):
        inflight.admit(1, "c").__enter__()


def test_admit_of_a_request_that_stands_alone_always_admits() -> None:
    """The message limit bounds such a request, so smaller limits never refuse it."""
    inflight = InflightBytes(total_max=10, connection_max=10)
    with inflight.admit(1_000, "a"), pytest.raises(OverloadedError):
        inflight.admit(1, "b").__enter__()


def test_admit_of_nothing_is_always_admitted() -> None:
    """A request without bytes needs no memory."""
    inflight = InflightBytes(total_max=10, connection_max=10)
    with inflight.admit(10, "a"), inflight.admit(0, "a"), inflight.admit(0, "b"):
        pass


@pytest.mark.parametrize("error", [None, ValueError])
def test_admit_when_the_request_is_done_gives_its_bytes_back(error: type[Exception] | None) -> None:
    """The bytes are released however the request ends, and idle connections are forgotten."""
    inflight = InflightBytes(total_max=10, connection_max=10)
    for _ in range(3):
        with ExitStack() as done:
            if error is not None:
                done.enter_context(pytest.raises(error))
            with inflight.admit(10, "a"):
                if error is not None:
                    raise error
    assert inflight._by_connection == {}
    assert inflight._total == 0


def durations_of(histograms: Histograms) -> dict[tuple[str, ...], int]:
    return {labels: count for labels, each in histograms.rpcs if (count := sum(each.counts))}


class Refusing:
    """A server that refuses the first calls with these errors, and a client's connection to it."""

    def __init__(self, *refusals: MillraceError) -> None:
        self._refusals = list(refusals)
        self.call_count = 0
        self.histograms = Histograms()
        self.is_called = asyncio.Event()

    async def __aenter__(self) -> aio.Channel:
        self._server = aio.server()
        rpcs = Rpcs(InflightBytes(1 << 20, 1 << 20), histograms=self.histograms)
        handlers = {
            ROLLBACK.name: rpcs.unary(pb.RollbackRequest, self._roll_back),
            APPEND.name: rpcs.unary_with_events(pb.AppendRequest, self._append),
            RELEASE.name: rpcs.unary(pb.ReleaseRequest, self._release),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ROLLBACK.service, handlers),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._connection = aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options())
        return self._connection

    async def __aexit__(self, *_exception: object) -> None:
        await self._connection.close()
        await self._server.stop(None)

    async def _roll_back(self, _request: pb.RollbackRequest) -> pb.RollbackResponse:
        self._refuse()
        return pb.RollbackResponse()

    async def _append(self, _request: pb.AppendRequest, _columns: Columns | None) -> pb.AppendResponse:
        self._refuse()
        return pb.AppendResponse()

    async def _release(self, _request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        self.is_called.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing wakes it")

    def _refuse(self) -> None:
        self.call_count += 1
        if self._refusals:
            raise self._refusals.pop(0)


async def called(connection: aio.Channel, path: str, request: bytes) -> None:
    call: Any = connection.unary_unary(path)
    await call(request)


async def test_calls_that_are_refused_for_a_moment_are_repeated_by_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that get only a status are repeated by gRPC; any response before it, even an empty one, prevents that."""
    monkeypatch.setattr(_settings, "BACKOFF_SECONDS", 0.01)
    for method, request in ((ROLLBACK, pb.RollbackRequest()), (APPEND, pb.AppendRequest())):
        refusing = Refusing(ReplayingError("not yet"), ReplayingError("not yet"))
        async with refusing as connection:
            await called(connection, method.path, request.SerializeToString())
        assert refusing.call_count == 3


async def test_calls_that_are_refused_for_longer_are_not_repeated() -> None:
    """Long retry delays are left to the caller, which receives the code and the delay."""
    refusing = Refusing(ChannelFullError("full", retry_delay_seconds=0.5))
    async with refusing as connection:
        with pytest.raises(aio.AioRpcError) as refused:
            await called(connection, APPEND.path, b"")
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    assert "grpc-status-details-bin" in dict(refused.value.trailing_metadata())
    assert refusing.call_count == 1


async def test_calls_are_timed_by_the_code_that_they_end_with() -> None:
    """Also those that are refused, and those whose caller leaves."""
    refusing = Refusing(ChannelFullError("full", retry_delay_seconds=9.0))
    async with refusing as connection:
        for _ in range(3):
            with suppress(aio.AioRpcError):
                await called(connection, APPEND.path, b"")
        leaving = asyncio.ensure_future(called(connection, RELEASE.path, b""))
        await refusing.is_called.wait()
        leaving.cancel()
        await until(lambda: len(durations_of(refusing.histograms)) == 3)
    assert durations_of(refusing.histograms) == {
        ("Append", "RESOURCE_EXHAUSTED"): 1,
        ("Append", "OK"): 2,
        ("Release", "CANCELLED"): 1,
    }


async def test_administrative_call_without_authentication_is_audited() -> None:
    """The log says from where and what, whether it succeeds or not; other calls leave no entry."""

    class Context:
        def peer(self) -> str:
            return "ipv4:10.0.0.1:5"

        def code(self) -> None:
            """There is none before the end."""

        async def abort(self, *_status: object) -> None:
            """GRPC would raise here."""

    async def serve(request: Any) -> bytes:
        if request.DESCRIPTOR.name == "ForgetProducerRequest":
            raise ChannelFullError("full")
        return b""

    rpcs = Rpcs(InflightBytes(total_max=100, connection_max=60))
    with capture_logs() as entries:
        for request in (
            admin_pb.PurgeChannelRequest(name="orders"),
            admin_pb.ForgetProducerRequest(channel="orders", producer_id="p"),
            admin_pb.GetChannelRequest(name="orders"),
        ):
            handler: Any = rpcs.unary(type(request), serve)
            await handler.unary_unary(request.SerializeToString(), Context())
    audit = [{key: entry[key] for key in ("call", "peer", "identity", "outcome")} for entry in entries]
    common = {"peer": "ipv4:10.0.0.1:5", "identity": None}
    assert audit == [
        {"call": "PurgeChannel", "outcome": "done", **common},
        {"call": "ForgetProducer", "outcome": "failed", **common},
    ]
    assert (entries[0]["name"], entries[1]["producer_id"], entries[1]["reason"]) == ("orders", "p", "CHANNEL_FULL")
