"""Calls in numbers, with raw bytes, the same way for every server that is measured."""

import asyncio
from collections.abc import Callable

from grpc import aio

MESSAGE_BYTES_MAX = 64 << 20
_TIMEOUT_SECONDS = 120.0

UnaryCall = Callable[[bytes], "asyncio.Future[bytes]"]


def connect(address: str) -> aio.Channel:
    """A connection of its own: connections to one address would otherwise be shared."""
    return aio.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


async def call_many(connection: aio.Channel, method: str, request: bytes, count: int, callers: int) -> None:
    """Makes one unary call so many times, shared among callers that each wait for their answer."""
    call: aio.UnaryUnaryMultiCallable[bytes, bytes] = connection.unary_unary(method)
    numbers = iter(range(count))

    async def keep_calling() -> None:
        for _ in numbers:
            await call(request, timeout=_TIMEOUT_SECONDS)

    async with asyncio.TaskGroup() as calling:
        for _ in range(callers):
            calling.create_task(keep_calling())


async def stream_many(connection: aio.Channel, method: str, request: bytes, count: int, in_flight: int) -> None:
    """Sends a request so many times down one stream, at most so many of them not answered yet."""
    stream_call: aio.StreamStreamMultiCallable[bytes, bytes] = connection.stream_stream(method)
    stream = stream_call(timeout=_TIMEOUT_SECONDS)
    free = asyncio.Semaphore(in_flight)

    async def send() -> None:
        for _ in range(count):
            await free.acquire()
            await stream.write(request)
        await stream.done_writing()

    async def receive() -> None:
        for _ in range(count):
            assert isinstance(await stream.read(), bytes)
            free.release()

    # Apart, or both sides could wait for each other to read.
    async with asyncio.TaskGroup() as streaming:
        streaming.create_task(send())
        streaming.create_task(receive())
