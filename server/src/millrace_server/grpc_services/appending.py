"""AppendStream: appends up a stream, their answers down, in the same order."""

import asyncio

from millrace.v1 import channel_service_pb2 as pb
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import BadArgumentError
from millrace_server.grpc_services.requests import Columns, EventsRequest, events_of, parse_apart, stamp_of
from millrace_server.grpc_services.rpc import MessageStream, refusal
from millrace_server.grpc_services.status import status_of

UNDER_WAY_MAX = 64
"""Appends of one stream that wait for their turn to be answered; when there are as many, no more is read."""

UNDER_WAY_BYTES_MAX = 16 << 20
"""Bytes of their requests, unless a single one has more."""


class Appending:
    """One AppendStream.

    Each append begins as soon as its request is there, behind those before it, and is answered once it is done and
    those before it are answered. So the disk works on several at once, and a stream's events are stored in its order.
    """

    def __init__(self, registry: ChannelRegistry, stream: MessageStream) -> None:
        self._registry = registry
        self._stream = stream
        self._under_way: asyncio.Queue[asyncio.Task[pb.AppendStreamResponse] | None] = asyncio.Queue(UNDER_WAY_MAX)
        self._bytes = 0
        self._has_less = asyncio.Event()

    async def run(self) -> None:
        """Serves the stream to its end."""
        answering = asyncio.ensure_future(self._answer())
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait({answering, reading}, return_when=asyncio.FIRST_EXCEPTION)
            for task in (reading, answering):
                if task.done():
                    task.result()
        finally:
            answering.cancel()
            reading.cancel()
            while not self._under_way.empty():
                if append := self._under_way.get_nowait():
                    append.cancel()

    async def _read(self) -> None:
        while (raw := await self._stream.read()) is not None:
            await self._wait_for_room(len(raw))
            self._bytes += len(raw)
            # Tasks begin in the order in which they are made, and an append has its place before it waits for anything.
            await self._under_way.put(asyncio.create_task(self._append(raw)))
        await self._under_way.put(None)

    async def _wait_for_room(self, byte_count: int) -> None:
        while self._bytes and self._bytes + byte_count > UNDER_WAY_BYTES_MAX:
            self._has_less.clear()
            await self._has_less.wait()

    async def _answer(self) -> None:
        while (append := await self._under_way.get()) is not None:
            try:
                answer = await append
            finally:
                append.cancel()
            await self._stream.write(answer)

    async def _append(self, raw: bytes) -> pb.AppendStreamResponse:
        request = None
        try:
            with self._stream.admit(raw):
                request, columns = parse_apart(pb.AppendStreamRequest, raw)
                channel = self._registry.get(request.channel)
                receipt = await channel.append(some_events_of(request, columns), stamp_of(request))
        except Exception as error:  # noqa: BLE001 - the answer to one request, not the end of the stream
            return pb.AppendStreamResponse(error=status_of(refusal(error, request)))
        finally:
            self._bytes -= len(raw)
            self._has_less.set()
        return pb.AppendStreamResponse(
            first_sequence=receipt.first_sequence,
            last_sequence=receipt.last_sequence,
            deduplicated=receipt.is_deduplicated,
        )


def some_events_of(request: EventsRequest, columns: Columns | None) -> list[StoredColumns]:
    """The events of an append, at least one."""
    batches = events_of(request, columns)
    if not batches:
        raise BadArgumentError("events: has none; an append holds at least one event")
    return batches
