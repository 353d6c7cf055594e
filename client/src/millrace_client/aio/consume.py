"""Deliveries of one channel, for asyncio."""

import asyncio
import os
from contextlib import suppress
from typing import Self

import grpc

from millrace.v1 import channel_service_pb2 as pb
from millrace_client import _calls
from millrace_client._calls import ConsumeLimits
from millrace_client._deliveries import DeliveredEvents, Settlement, settling_requests
from millrace_client.aio._connection import Connection
from millrace_client.errors import DeadlineError, MillraceError, StreamEndedError


class Delivery(DeliveredEvents):
    """Events to process, then to `ack` or `nack` together; see `millrace_client.Delivery`."""

    __slots__ = ("_stream",)

    def __init__(self, stream: "ConsumeStream", response: pb.ConsumeResponse) -> None:
        super().__init__(response)
        self._stream = stream

    async def ack(self) -> None:
        """Removes the events; see `millrace_client.Delivery.ack`. Waits until that is sent."""
        await self._stream.settle(Settlement(self.delivery_id, is_ack=True))

    async def nack(self) -> None:
        """Returns the events; see `millrace_client.Delivery.nack`. Waits until that is sent."""
        await self._stream.settle(Settlement(self.delivery_id, is_ack=False))


class Deliveries:
    """Deliveries as they arrive: an async iterator of `Delivery` and a context manager. See `Channel.consume`."""

    def __init__(self, connection: Connection, channel: str, limits: ConsumeLimits) -> None:
        self._connection = connection
        self._channel = channel
        self._limits = limits
        self._stream: ConsumeStream | None = None
        self._has_response = False
        self._is_closed = False
        # Validates the limits at once.
        self._start = _calls.consume_start(channel, limits)

    async def aclose(self) -> None:
        """Ends the stream; see `millrace_client.Deliveries.close`."""
        self._is_closed = True
        if self._stream is not None:
            await self._stream.finish()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        if self._is_closed:
            raise StopAsyncIteration
        if self._stream is None or not self._has_response:
            self._stream, response = await self._first_response()
            self._has_response = True
        else:
            response = await self._stream.next_response()
        if response is None:
            raise StopAsyncIteration
        return Delivery(self._stream, response)

    async def _first_response(self) -> "tuple[ConsumeStream, pb.ConsumeResponse | None]":
        """Starts the stream at the server that owns the channel, and returns it with its first response.

        If the call before was cancelled, it continues with the same stream.
        """
        connection = self._connection
        search = connection.owners.search(self._channel, connection.settings.timeout_seconds)
        stream = self._stream
        while True:
            if stream is None:
                at_owner = connection.at(search.endpoint)
                stream = self._stream = ConsumeStream(at_owner, self._channel, self._limits.idle_seconds)
                await stream.start(self._start)
            try:
                return stream, await stream.next_response()
            except MillraceError as error:
                if (pause_seconds := search.pause_seconds(error)) is None:
                    raise
                stream = None
            await asyncio.sleep(pause_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            await self.aclose()
        except MillraceError as close_error:
            if error is None:
                raise
            error.add_note(f"ending the deliveries failed too: {close_error}")

    def __del__(self) -> None:
        # Deliveries refer to the stream, not to this object: leaving a loop drops it even if its deliveries are kept.
        if (stream := getattr(self, "_stream", None)) is not None:
            stream.abandon()


class ConsumeStream:
    """One Consume stream; see `millrace_client.consume.ConsumeStream`."""

    def __init__(self, connection: Connection, channel: str, idle_seconds: float | None) -> None:
        self._connection = connection
        self._channel = channel
        self._idle_seconds = idle_seconds
        self._timeout_seconds = connection.settings.timeout_seconds
        self._is_ending = False
        self._has_ended = False
        self._settlements: list[Settlement] = []
        # gRPC sends one message at a time; settlements that arrive in the meantime are sent together.
        self._sending = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._response: asyncio.Task[pb.ConsumeResponse | None] | None = None
        self._loop = asyncio.get_running_loop()
        opened = connection.opened()
        self._process_id = opened.process_id
        self._call = opened.consume(wait_for_ready=connection.waits_for_connection)
        connection.streams.add(self)

    async def start(self, start: pb.ConsumeRequest) -> None:
        # Cancelling a write makes gRPC cancel the stream, and the caller may be cancelled.
        await asyncio.shield(self._loop.create_task(self._send_start(start)))

    async def _send_start(self, start: pb.ConsumeRequest) -> None:
        async with self._sending:
            # If it cannot be sent, reading raises the reason.
            with suppress(grpc.RpcError, asyncio.InvalidStateError):
                await self._call.write(start)

    async def settle(self, settlement: Settlement) -> None:
        if self._is_ending or self._has_ended:
            raise StreamEndedError("the stream is closed; events that were not acknowledged are back in the channel")
        self._settlements.append(settlement)
        # As with the start.
        await asyncio.shield(self._loop.create_task(self._send_settlements()))

    async def _send_settlements(self) -> None:
        async with self._sending:
            gathered, self._settlements = self._settlements, []
            for request in settling_requests(gathered):
                # The next read raises the reason if the stream broke.
                with suppress(grpc.RpcError, asyncio.InvalidStateError):
                    await self._call.write(request)

    async def wait_for_server(self) -> bool:
        """Waits until the server has responded to the start of the stream; returns False if the stream has ended."""
        # Also returns at the end of a call without a response.
        await self._call.initial_metadata()
        return not self._call.done()

    async def next_response(self) -> pb.ConsumeResponse | None:
        """Returns the next delivery; None once the stream has ended. Ignores deliveries while the stream is ending."""
        async with self._reading:
            while not self._has_ended:
                try:
                    response = await self._read(self._timeout_seconds if self._is_ending else self._idle_seconds)
                except TimeoutError:
                    if self._is_ending:
                        raise self._cancel() from None
                    await self._close_sending()
                else:
                    if response is not None and not self._is_ending:
                        return response
        return None

    async def _read(self, seconds: float | None) -> pb.ConsumeResponse | None:
        # Cancelling gRPC's read would cancel the stream; so the read is a task that outlives its caller.
        if self._response is None:
            reading = self._connection.read(self._call, None, self._channel)
            self._response = self._connection.run_in_background(reading)
        await asyncio.wait((self._response,), timeout=seconds)
        if not self._response.done():
            raise TimeoutError
        responded, self._response = self._response, None
        try:
            response = responded.result()
        except BaseException:
            self._note_end()
            # If gRPC itself failed, the call may live on and keep its deliveries.
            self._call.cancel()
            raise
        if response is None:
            self._note_end()
        return response

    async def finish(self, timeout_seconds: float | None = None) -> None:
        """Ends the stream cleanly within the timeout, by default the client's; otherwise cancels it."""
        if self._has_ended or self._process_id != os.getpid():
            return
        if timeout_seconds is not None:
            self._timeout_seconds = timeout_seconds
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._close_sending()
                while await self.next_response() is not None:
                    pass
        except TimeoutError:
            raise self._cancel() from None

    def abandon(self) -> None:
        """Ends the stream. For a finalizer, which may run in any thread and cannot await."""
        if self._has_ended or self._is_ending or self._process_id != os.getpid():
            return
        self._is_ending = True
        # A closed loop has ended its streams.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish_in_background)

    def _finish_in_background(self) -> None:
        self._finishing = self._loop.create_task(self._finish_quietly())

    async def _finish_quietly(self) -> None:
        with suppress(MillraceError):
            await self.finish()

    async def _close_sending(self) -> None:
        self._is_ending = True
        async with self._sending:
            await self._call.done_writing()

    def _cancel(self) -> DeadlineError:
        self._call.cancel()
        self._note_end()
        return self._connection.errors.deadline(self._channel)

    def _note_end(self) -> None:
        self._has_ended = True
        self._connection.streams.discard(self)
