"""AppendStream: requests are sent in order, and the server responds to each of them once, in the same order.

The producer, the replay of dead letters and the server's `millrace` sink share what is here.
"""

import asyncio
import queue
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import grpc
from grpc import aio

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer, field_head
from millrace_client._methods import APPEND_STREAM
from millrace_client.errors import MillraceError
from millrace_client.grpc_errors import ErrorTranslator

RequestT = TypeVar("RequestT")

_COLUMNS_FIELD = pb.AppendStreamRequest.COLUMNS_FIELD_NUMBER


def append_request(
    channel: str, stamp: event_pb2.ProducerStamp, columns: Sequence[Buffer], columns_bytes: int
) -> bytes:
    """Encodes an AppendStreamRequest around columns that are encoded already."""
    head = pb.AppendStreamRequest(channel=channel, stamp=stamp).SerializeToString()
    return b"".join((head, field_head(_COLUMNS_FIELD, columns_bytes), *columns))


class AppendSession(Generic[RequestT]):
    """The requests of one AppendStream that await their responses. A driver adds the I/O.

    An error in a response concerns its request alone and does not end the stream.

    Attributes:
        pending: The requests in progress, oldest first: whatever the caller wants to find again with the response.
        waiting_since: Since when the oldest of them has waited for its response, on the caller's clock.
    """

    def __init__(self, errors: ErrorTranslator, channel: str) -> None:
        self.in_flight: deque[RequestT] = deque()
        self.waiting_since = 0.0
        self._errors = errors
        self._channel = channel

    def note_sent(self, request: RequestT, now: float) -> None:
        if not self.in_flight:
            self.waiting_since = now
        self.in_flight.append(request)

    def match(self, response: pb.AppendStreamResponse, now: float) -> tuple[RequestT, MillraceError | None]:
        """Returns the request that a response belongs to, and its error if it was refused."""
        request = self.in_flight.popleft()
        self.waiting_since = now
        return request, self._errors.from_status(response.error, self._channel) if response.HasField("error") else None

    def take_in_flight(self) -> list[RequestT]:
        """Removes and returns all requests in progress, for example after the end of the stream."""
        requests = list(self.in_flight)
        self.in_flight.clear()
        return requests


class ThreadedAppendSession(AppendSession[RequestT]):
    """Drives an AppendStream by gRPC's synchronous API: gRPC's own thread sends, one of the caller's threads reads.

    All methods but `responses` belong to one thread, or to the event loop that a reading thread hands responses to.
    """

    def __init__(
        self, channel: grpc.Channel, errors: ErrorTranslator, name: str, timeout_seconds: float | None = None
    ) -> None:
        """Starts the stream."""
        super().__init__(errors, name)
        stub: grpc.StreamStreamMultiCallable[bytes, pb.AppendStreamResponse]
        stub = channel.stream_stream(APPEND_STREAM.path, None, APPEND_STREAM.parse)
        self._encoded: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = stub(iter(self._encoded.get, None), timeout_seconds)
        self._cancel_error: MillraceError | None = None

    def send(self, request: RequestT, encoded: bytes, now: float) -> None:
        """Queues a request to be sent; does not wait."""
        self.note_sent(request, now)
        self._encoded.put(encoded)

    def half_close(self) -> None:
        """Ends the sending side; the server ends the stream after its last response."""
        self._encoded.put(None)

    def cancel(self, error: MillraceError | None = None) -> None:
        """Ends the stream at once. `responses` raises the error, if there is one."""
        self._cancel_error = error
        self._call.cancel()
        self._encoded.put(None)

    def responses(self) -> Iterator[pb.AppendStreamResponse]:
        """Waits for responses until the server ends the stream; raises MillraceError if it fails or is cancelled."""
        try:
            yield from self._call
        except grpc.RpcError as failure:
            raise self._cancel_error or self._errors.from_rpc(failure, self._channel) from None
        finally:
            # Releases gRPC's thread, which waits for requests.
            self._encoded.put(None)


class AsyncAppendSession(AppendSession[RequestT]):
    """Drives an AppendStream by gRPC's asyncio API."""

    def __init__(self, channel: aio.Channel, errors: ErrorTranslator, name: str) -> None:
        """Starts the stream; see `ThreadedAppendSession`."""
        super().__init__(errors, name)
        stub: Any = channel.stream_stream(APPEND_STREAM.path, None, APPEND_STREAM.parse)
        self._call: aio.StreamStreamCall[bytes, pb.AppendStreamResponse] = stub()

    async def write(self, encoded: bytes) -> bool:
        """Sends a request; waits while gRPC's flow control does not admit it. Returns False if the stream has ended.

        The caller calls `note_sent`, before: the response may arrive while this still waits.
        """
        try:
            await self._call.write(encoded)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def half_close(self) -> None:
        """Ends the sending side; the server ends the stream after its last response."""
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    async def read(self) -> pb.AppendStreamResponse | None:
        """Waits for the next response; returns None at the end of the stream. Raises MillraceError if it fails."""
        try:
            response = await self._call.read()
        except aio.AioRpcError as failure:
            raise self._errors.from_rpc(failure, self._channel) from None
        return response if isinstance(response, pb.AppendStreamResponse) else None

    def cancel(self) -> None:
        self._call.cancel()
