"""Servers for a forwarding sink in this process: one whose responses a test controls, and real ones."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from grpc import aio

from millrace.columns import ColumnsCutter
from millrace.googleapis import error_details_pb2, status_pb2
from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.access.control import AccessControl
from millrace_server.agent.channel_reader import ChannelReader, ReaderLimits
from millrace_server.agent.components import ComponentKind, Components
from millrace_server.agent.sinks.millrace.config import MillraceSinkConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.configuration.settings import ServerSettings
from millrace_server.grpc_services.server import GrpcServer
from millrace_server.hosting.channel_changes import ChannelChanges
from millrace_server.hosting.data_dir import Catalog
from tests.free_ports import free_port
from tests.waiting import WAIT_SECONDS_MAX

Request = pb.AppendStreamRequest
Response = pb.AppendStreamResponse
Respond = Callable[[Request], Awaitable[Response]]

STORED = Response(first_sequence=1, last_sequence=1)


class EndOfStreamError(Exception):
    """Ends a stream with a status code, as gRPC itself does; without one, it ends normally."""

    def __init__(self, code: grpc.StatusCode | None = None, details: str = "") -> None:
        super().__init__(details)
        self.code = code


def refused(reason: str, code: grpc.StatusCode, retry_delay_seconds: float | None = None) -> Response:
    """A response that refuses an append."""
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=reason, domain="millrace")]
    if retry_delay_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(retry_delay_seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code.value[0], message=f"the test says {reason}", details=map(_packed, details))
    return Response(error=status)


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


class FakeTarget:
    """A server with one channel.

    Attributes:
        address: The address at which it listens.
        found: The channel in its responses to GetChannel; None if it has none.
        respond: Returns the response to each append; by default all are stored.
        streams: The requests of each stream so far.
        responses_each: The number of responses to each append.
        ends_streams: Whether each stream ends in order at once.
    """

    def __init__(self) -> None:
        self.address = ""
        self.found: admin_pb.Channel | None = admin_pb.Channel(
            name="orders",
            channel_id="the-target",
            config=admin_pb.ChannelConfig(transaction_capacity=10_000),
            state=admin_pb.CHANNEL_STATE_OPEN,
        )
        self.respond: Respond = _store
        self.streams: list[list[Request]] = []
        self.ends_streams = False
        self.responses_each = 1

    @property
    def requests(self) -> list[Request]:
        """All requests of all streams."""
        return [request for stream in self.streams for request in stream]

    async def get_channel(self, raw: bytes, context: Any) -> bytes:
        assert admin_pb.GetChannelRequest.FromString(raw).name == "orders"
        if self.found is None:
            status = refused("CHANNEL_NOT_FOUND", grpc.StatusCode.NOT_FOUND).error
            metadata = (("grpc-status-details-bin", status.SerializeToString()),)
            await context.abort(grpc.StatusCode.NOT_FOUND, status.message, metadata)
        return admin_pb.GetChannelResponse(channel=self.found).SerializeToString()

    async def append_stream(self, _requests: Any, context: Any) -> None:
        stream: list[Request] = []
        self.streams.append(stream)
        if self.ends_streams:
            return
        responses: asyncio.Queue[asyncio.Task[Response] | None] = asyncio.Queue()
        writing = asyncio.create_task(self._write(responses, context))
        reading = asyncio.create_task(self._read(stream, responses, context))
        try:
            await asyncio.gather(reading, writing)
        except EndOfStreamError as end:
            if end.code is not None:
                await context.abort(end.code, str(end))
        finally:
            reading.cancel()
            writing.cancel()

    async def _read(self, stream: list[Request], responses: "asyncio.Queue[Any]", context: Any) -> None:
        while isinstance(raw := await context.read(), bytes):
            stream.append(Request.FromString(raw))
            responses.put_nowait(asyncio.ensure_future(self.respond(stream[-1])))
        responses.put_nowait(None)

    async def _write(self, responses: "asyncio.Queue[Any]", context: Any) -> None:
        while (response := await responses.get()) is not None:
            encoded = (await response).SerializeToString()
            for _ in range(self.responses_each):
                await context.write(encoded)


async def _store(_request: Request) -> Response:
    return STORED


@asynccontextmanager
async def fake_target() -> AsyncIterator[FakeTarget]:
    """A server whose responses a test controls."""
    target = FakeTarget()
    server = aio.server(options=[("grpc.max_receive_message_length", -1)])
    admin: dict[str, Any] = {"GetChannel": grpc.unary_unary_rpc_method_handler(target.get_channel)}
    channels: dict[str, Any] = {"AppendStream": grpc.stream_stream_rpc_method_handler(target.append_stream)}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("millrace.v1.AdminService", admin),
            grpc.method_handlers_generic_handler("millrace.v1.ChannelService", channels),
        )
    )
    target.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield target
    finally:
        await server.stop(None)


@asynccontextmanager
async def served(
    registry: ChannelRegistry, scratch: Path, access: AccessControl | None = None, **settings: Any
) -> AsyncIterator[str]:
    """Serves channels as the daemon does; yields the address."""
    server = GrpcServer(
        registry,
        ServerSettings(listen=f"127.0.0.1:{free_port()}", **settings),
        ChannelChanges(registry, Catalog(scratch / "catalog")),
        Components(),
        access=access,
    )
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0.0)


def reader_of(registry: ChannelRegistry, channel: str = "orders", **limits: Any) -> ChannelReader:
    """The channel reader from which a sink gets its events."""
    named: dict[str, Any] = {"batch_events_max": 10, "deliveries_max": 5, "dead_letter_channel": None} | limits
    component = Components().add(ComponentKind.SINK, "forward", "millrace")
    return ChannelReader(registry, channel, ReaderLimits(**named), component)


def config_of(*endpoints: str, **settings: Any) -> MillraceSinkConfig:
    """A sink that forwards to channel `orders` of this server."""
    named: dict[str, Any] = {
        "type": "millrace",
        "channel": "orders",
        "target_channel": "orders",
        "timeout_seconds": WAIT_SECONDS_MAX,
        "connect_timeout_seconds": WAIT_SECONDS_MAX,
    } | settings
    return MillraceSinkConfig(endpoints=list(endpoints), **named)


def bodies_in(requests: Sequence[Request]) -> list[bytes]:
    """The bodies of all events of some requests."""
    cutters = [ColumnsCutter(request.columns) for request in requests]
    return [body for cutter in cutters for _, body in cutter.rows(0, cutter.count)]
