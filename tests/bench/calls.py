"""Many calls with raw bytes, made in the same way on every server that is measured."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from millrace.v1 import channel_service_pb2 as pb

MESSAGE_BYTES_MAX = 64 << 20
_TIMEOUT_SECONDS = 120.0

OnResponse = Callable[[], None]


def connect(address: str, credentials: grpc.ChannelCredentials | None = None) -> aio.Channel:
    """A connection of its own: connections to one address would otherwise be shared."""
    options = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if credentials is None:
        return aio.insecure_channel(address, options=options)
    return aio.secure_channel(address, credentials, options=options)


def _ignore() -> None:
    pass


@dataclass(frozen=True)
class Method:
    """The method to call, with its request."""

    connection: aio.Channel
    name: str
    request: bytes
    metadata: tuple[tuple[str, str], ...] = ()


async def call_many(method: Method, count: int, callers: int, on_response: OnResponse = _ignore) -> None:
    """Makes one unary call repeatedly, divided among callers that each wait for their response."""
    call: aio.UnaryUnaryMultiCallable[bytes, bytes] = method.connection.unary_unary(method.name)
    numbers = iter(range(count))

    async def keep_calling() -> None:
        for _ in numbers:
            await call(method.request, timeout=_TIMEOUT_SECONDS, metadata=method.metadata)
            on_response()

    async with asyncio.TaskGroup() as calling:
        for _ in range(callers):
            calling.create_task(keep_calling())


async def stream_many(method: Method, count: int, in_flight: int, on_response: OnResponse = _ignore) -> None:
    """Sends a request repeatedly on one stream, with a maximum of pending ones."""
    stream_call: aio.StreamStreamMultiCallable[bytes, bytes] = method.connection.stream_stream(method.name)
    stream = stream_call(timeout=_TIMEOUT_SECONDS)
    free = asyncio.Semaphore(in_flight)

    async def send() -> None:
        for _ in range(count):
            await free.acquire()
            await stream.write(method.request)
        await stream.done_writing()

    async def receive() -> None:
        for _ in range(count):
            assert isinstance(await stream.read(), bytes)
            on_response()
            free.release()

    # As separate tasks, since otherwise both sides could wait for each other to read.
    async with asyncio.TaskGroup() as streaming:
        streaming.create_task(send())
        streaming.create_task(receive())


async def consume_many(
    connection: aio.Channel, start: pb.ConsumeRequest.Start, count: int, on_response: OnResponse = _ignore
) -> int:
    """Receives deliveries on one Consume stream, and acknowledges each; returns the bytes of the last."""
    call: Any = connection.stream_stream("/millrace.v1.ChannelService/Consume")
    stream = call(timeout=_TIMEOUT_SECONDS)
    await stream.write(pb.ConsumeRequest(start=start).SerializeToString())
    response = b""
    for delivery_id in range(1, count + 1):
        response = await stream.read()
        assert isinstance(response, bytes)
        on_response()
        ack = pb.ConsumeRequest.Ack(delivery_ids=[delivery_id])
        await stream.write(pb.ConsumeRequest(ack=ack).SerializeToString())
    await stream.done_writing()
    # Prefetched deliveries may still come; the end means that all acks are done.
    while isinstance(await stream.read(), bytes):
        pass
    return len(response)
