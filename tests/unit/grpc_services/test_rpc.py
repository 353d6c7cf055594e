from typing import Any

import grpc
import pytest
from grpc import aio

from millrace.v1 import channel_service_pb2 as pb
from millrace_client._methods import APPEND, ROLLBACK
from millrace_client._settings import channel_options
from millrace_server.errors import ChannelFullError, MillraceError, ReplayingError
from millrace_server.grpc_services.messages import Columns
from millrace_server.grpc_services.rpc import InflightBytes, Rpcs


class Refusing:
    """A server whose first calls are refused with these errors, and a client's connection to it."""

    def __init__(self, *refusals: MillraceError) -> None:
        self._refusals = list(refusals)
        self.call_count = 0

    async def __aenter__(self) -> aio.Channel:
        self._server = aio.server()
        rpcs = Rpcs(InflightBytes(1 << 20, 1 << 20))
        handlers = {
            ROLLBACK.name: rpcs.unary(pb.RollbackRequest, self._roll_back),
            APPEND.name: rpcs.unary_with_events(pb.AppendRequest, self._append),
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

    def _refuse(self) -> None:
        self.call_count += 1
        if self._refusals:
            raise self._refusals.pop(0)


async def called(connection: aio.Channel, path: str, request: bytes) -> None:
    call: Any = connection.unary_unary(path)
    await call(request)


async def test_calls_that_are_refused_for_a_moment_are_repeated_by_the_client() -> None:
    """What is answered with a status alone gRPC repeats; an answer before it, be it empty, counts as one."""
    for method, request in ((ROLLBACK, pb.RollbackRequest()), (APPEND, pb.AppendRequest())):
        refusing = Refusing(ReplayingError("not yet"), ReplayingError("not yet"))
        async with refusing as connection:
            await called(connection, method.path, request.SerializeToString())
        assert refusing.call_count == 3


async def test_calls_that_are_refused_for_longer_are_not_repeated() -> None:
    """That is for whoever called; the error says what and when."""
    refusing = Refusing(ChannelFullError("full", retry_delay_seconds=0.5))
    async with refusing as connection:
        with pytest.raises(aio.AioRpcError) as refused:
            await called(connection, APPEND.path, b"")
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    assert "grpc-status-details-bin" in dict(refused.value.trailing_metadata())
    assert refusing.call_count == 1
