import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio

from millrace.columns import columns_from_events
from millrace.tracing import current_trace_id
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import ChannelFullError, ChannelLogFailedError
from millrace_server.grpc_services.channel_service import NAME, ChannelService
from millrace_server.grpc_services.rpc import InflightBytes, Rpcs
from millrace_server.grpc_services.streams import AppendStreamCall
from tests.recorded_spans import RecordedSpans, attributes_of, linked, recording
from tests.source_writers import memory, registry_of
from tests.unit.grpc_services.test_append_stream import FakeStream

CALLER = f"00-{7:032x}-{9:016x}-01"
PRODUCERS = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]


def append_of(channel: str, *traceparents: str) -> bytes:
    headers = [{"traceparent": each} if each else {} for each in traceparents]
    [columns] = columns_from_events([(each, b"x") for each in headers])
    return pb.AppendStreamRequest(channel=channel, columns=columns).SerializeToString()


async def appended(recorded: RecordedSpans, *requests: bytes) -> None:
    """Sends the requests in one stream, until all of them get responses."""
    registry = registry_of(orders=memory())
    stream = FakeStream()
    for request in requests:
        stream.sent.put_nowait(request)
    stream.sent.put_nowait(None)
    await AppendStreamCall(registry, stream).run()
    assert len(recorded.all()) <= len(requests)


async def test_append_of_a_stream_has_a_span_that_is_a_child_of_its_producers() -> None:
    """If they are several, it is linked to them. It says which sequences it has stored, and when."""
    with recording() as recorded:
        await appended(recorded, append_of("orders", PRODUCERS[0], ""), append_of("orders", *PRODUCERS))
    child, root = recorded.all()
    assert child.parent is not None
    assert (child.parent.span_id, root.parent) == (1, None)
    assert linked(root) == {each.split("-")[2] for each in PRODUCERS}
    assert attributes_of(root) == {
        "messaging.system": "millrace",
        "messaging.operation.name": "append",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 2,
        "rpc.response.status_code": "OK",
    }
    [committed] = root.events
    assert (committed.name, dict(committed.attributes or {})) == (
        "committed",
        {"millrace.first_sequence": 3, "millrace.last_sequence": 4},
    )


async def test_append_of_a_stream_that_is_refused_has_the_reason() -> None:
    """What the caller did wrong is no error of the server, as OpenTelemetry's conventions say."""
    with recording() as recorded:
        await appended(recorded, append_of("orders", *[""] * 200))
    [span] = recorded.all()
    assert attributes_of(span)["error.type"] == "TXN_CAPACITY"
    assert attributes_of(span)["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert span.status.is_unset


async def test_append_of_a_stream_whose_caller_leaves_ends_its_span() -> None:
    """It is not known then whether it will be stored."""
    registry = registry_of(orders=memory(capacity=1, transaction_capacity=1, keep_alive_seconds=60))
    stream = FakeStream()
    with recording() as recorded:
        serving = asyncio.ensure_future(AppendStreamCall(registry, stream).run())
        for _ in range(2):
            stream.sent.put_nowait(append_of("orders", ""))
        # Lets all ready tasks run.
        for _ in range(50):
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait({serving})
    first, second = recorded.all()
    assert attributes_of(first)["rpc.response.status_code"] == "OK"
    assert attributes_of(second)["rpc.response.status_code"] == "CANCELLED"


class Served:
    """A server in this process."""

    def __init__(self, registry: ChannelRegistry) -> None:
        self._server = aio.server()
        self.refusal: Exception | None = None
        self.traced: list[str | None] = []
        rpcs = Rpcs(InflightBytes(1 << 20, 1 << 20), self._note)
        handlers = ChannelService(registry).handlers(rpcs)
        handlers["Rollback"] = rpcs.unary(pb.RollbackRequest, self._roll_back)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))

    def _note(self, *_refusal: Any) -> None:
        """Runs after the call's context."""
        self.traced.append(current_trace_id())

    async def _roll_back(self, _request: pb.RollbackRequest) -> pb.RollbackResponse:
        if self.refusal is not None:
            raise self.refusal
        return pb.RollbackResponse()

    async def __aenter__(self) -> aio.Channel:
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._client = aio.insecure_channel(f"127.0.0.1:{port}")
        return self._client

    async def __aexit__(self, *_error: object) -> None:
        await self._client.close()
        await self._server.stop(None)


async def test_rpc_has_a_span_that_is_a_child_of_its_caller() -> None:
    """The caller's context is in the metadata; a malformed one is ignored."""
    registry = registry_of(orders=memory())
    with recording() as recorded:
        async with Served(registry) as client:
            call: Any = client.unary_unary(f"/{NAME}/Append")
            for traceparent in (CALLER, "nonsense"):
                await call(append_of("orders", ""), metadata=(("traceparent", traceparent),))
    child, root = recorded.all()
    assert child.parent is not None
    assert (child.parent.trace_id, child.parent.span_id, root.parent) == (7, 9, None)
    assert child.name == f"{NAME}/Append"
    assert attributes_of(child) == {
        "rpc.system.name": "grpc",
        "rpc.method": f"{NAME}/Append",
        "rpc.response.status_code": "OK",
        "messaging.destination.name": "orders",
    }
    assert [event.name for event in child.events] == ["committed"]


@pytest.mark.parametrize(
    ("refusal", "code", "reason", "is_fault"),
    [
        (ChannelFullError("full"), "RESOURCE_EXHAUSTED", "CHANNEL_FULL", False),
        (ChannelLogFailedError("failed"), "DATA_LOSS", "LOG_FAILED", True),
        (KeyError("a bug"), "INTERNAL", "KeyError", True),
    ],
)
async def test_rpc_that_is_refused_says_why(refusal: Exception, code: str, reason: str, *, is_fault: bool) -> None:
    """Faults of the server are errors; its trace is still known when the refusal is counted."""
    with recording() as recorded:
        served = Served(registry_of())
        served.refusal = refusal
        async with served as client:
            call: Any = client.unary_unary(f"/{NAME}/Rollback")
            with pytest.raises(aio.AioRpcError):
                await call(b"", metadata=(("traceparent", CALLER),))
    [span] = recorded.all()
    assert (attributes_of(span)["rpc.response.status_code"], attributes_of(span)["error.type"]) == (code, reason)
    assert span.status.is_unset is not is_fault
    assert served.traced == [f"{7:032x}"]
