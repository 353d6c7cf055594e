"""The asyncio connection to a server."""

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from functools import cache, partial
from typing import Any, Protocol, TypeVar, cast

import grpc
from grpc import aio

from millrace.tracing import trace_metadata
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import _methods
from millrace_client._call_sequences import CallSequence
from millrace_client._calls import Call
from millrace_client._forks import FORKS, Unpicklable, forked_error
from millrace_client._owners import Owners
from millrace_client._settings import ConnectionSettings, Numbering, stream_repeats
from millrace_client.errors import ClientClosedError, MillraceError
from millrace_client.grpc_errors import ErrorTranslator
from millrace_client.security import renewed

T = TypeVar("T")


class Finishable(Protocol):
    """A stream that can end cleanly."""

    async def finish(self) -> None:
        """Ends the stream; waits for that, within the client's timeout."""


class _Opened:
    """The gRPC channel of one process and event loop, and what depends on it."""

    def __init__(self, settings: ConnectionSettings, former: "_Opened | None") -> None:
        FORKS.check_usable()
        self.process_id = os.getpid()
        self.numbering: Numbering = Numbering() if former is None else former.numbering
        self.file_watch = settings.watch_files()
        channel: aio.Channel = settings.open_channel(aio)
        self.channel = channel
        self.unary = cache(lambda method: channel.unary_unary(method.path, method.serialize, method.parse))
        self.streaming = cache(lambda method: channel.unary_stream(method.path, method.serialize, method.parse))
        self.consume: aio.StreamStreamMultiCallable[pb.ConsumeRequest, pb.ConsumeResponse] = channel.stream_stream(
            _methods.CONSUME.path, _methods.CONSUME.serialize, _methods.CONSUME.parse
        )


class Connection(Unpicklable):
    """Executes calls. The first call opens it and binds it to its event loop."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        servers = settings.servers
        self._server = servers[0]
        self.waits_for_connection = settings.waits_for_connection
        self.errors = ErrorTranslator(self._server)
        self._opened: _Opened | None = None
        self._is_closed = False
        self.owners = Owners(servers, is_patient=settings.wait_for_ready)
        self._peers: dict[str, Connection] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self.streams: set[Finishable] = set()
        """The open streams, which add and remove themselves."""
        FORKS.watch(self)

    def opened(self) -> _Opened:
        """Returns the gRPC channel and what depends on it; opens it unless closed or used by a parent process."""
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        opened = self._opened
        if opened is not None and opened.process_id != os.getpid():
            raise forked_error(opened.process_id)
        if opened is None or (opened.file_watch is not None and opened.file_watch.has_changed()):
            # Calls in progress keep the former gRPC channel until they end.
            opened = self._opened = renewed(partial(_Opened, self.settings, opened), opened)
        return opened

    @property
    def is_busy(self) -> bool:
        """Whether it is open: a thread of grpc.aio polls for all connections, even without calls."""
        return self._opened is not None and not self._is_closed

    def at(self, endpoint: str) -> "Connection":
        """Returns the connection to one of the client's own servers, or to a channel's owner that one has named."""
        if endpoint == self._server:
            return self
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        if endpoint not in self._peers:
            self._peers[endpoint] = Connection(self.settings.at(endpoint))
        return self._peers[endpoint]

    async def run(self, call: Call[T]) -> T:
        """Executes a call at the server that owns its channel."""
        search = self.owners.search(call.owned_channel, self.settings.timeout_seconds)
        wait_seconds = call.wait_seconds or 0.0
        while True:
            try:
                return await self.at(search.endpoint).run_once(call, search.left_seconds + wait_seconds)
            except MillraceError as error:
                if (pause_seconds := search.pause_seconds(error)) is None:
                    raise
            await asyncio.sleep(pause_seconds)

    async def run_once(self, call: Call[T], timeout_seconds: float) -> T:
        """Executes a call at this server."""
        opened = self.opened()
        make = opened.unary(call.method)
        try:
            response = await make(
                call.request,
                timeout=timeout_seconds,
                metadata=trace_metadata(),
                wait_for_ready=self.waits_for_connection,
            )
        except grpc.RpcError as failure:
            if self._has_newer_token(failure, opened):
                return await self.run_once(call, timeout_seconds)
            raise self.errors.from_rpc(failure, call.channel, call.txn_id) from None
        except asyncio.CancelledError:
            raise self.cancelled_error(call.channel, call.txn_id) from None
        return call.decode(response)

    def _has_newer_token(self, failure: grpc.RpcError, refused: _Opened) -> bool:
        """Whether a refused call is repeated, since its token's file has changed: the former one is gone at once."""
        if failure.code() is not grpc.StatusCode.UNAUTHENTICATED or refused.file_watch is None:
            return False
        refused.file_watch.look_now()
        return self.opened() is not refused

    async def drive(self, sequence: CallSequence[T]) -> T:
        """Executes the calls of a sequence, and returns its result."""
        try:
            call = next(sequence)
            while True:
                try:
                    result = await self.run(call)
                except GeneratorExit:
                    # The caller is gone, so nothing can be awaited any more.
                    sequence.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - the sequence decides, and raises it again
                    call = sequence.throw(error)
                else:
                    call = sequence.send(result)
        except StopIteration as end:
            outcome: T = end.value
            return outcome

    def run_in_background(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Runs a coroutine in its own task, which continues if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._note_background_end)
        return task

    def _note_background_end(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled():
            # The caller sees the exception; without a caller, asyncio must not report it as never retrieved.
            task.exception()

    async def stream(self, call: Call[T]) -> AsyncGenerator[T]:
        """Executes a call with many responses, until its iterator is closed or dropped.

        Before the first response it goes to the server that owns the channel.
        """
        seconds = math.inf if call.wait_seconds is None else self.settings.timeout_seconds + call.wait_seconds
        repeats = stream_repeats(seconds)
        search = self.owners.search(call.owned_channel, self.settings.timeout_seconds)
        while True:
            connection = self.at(search.endpoint)
            async with aclosing(connection.stream_once(call, repeats.left_seconds, seconds)) as responses:
                try:
                    first = await anext(responses, None)
                except MillraceError as error:
                    if (pause_seconds := search.pause_seconds(error)) is None:
                        pause_seconds = repeats.pause_seconds(error)
                else:
                    if first is not None:
                        yield first
                        async for response in responses:
                            yield response
                    return
            await asyncio.sleep(pause_seconds)

    async def stream_once(self, call: Call[T], left_seconds: float, seconds: float) -> AsyncGenerator[T]:
        """Executes it once: the first response may take `left_seconds`, and each other one `seconds`."""
        opened = self.opened()
        responses = opened.streaming(call.method)(
            call.request, metadata=trace_metadata(), wait_for_ready=self.waits_for_connection
        )
        try:
            while (response := await self.read(responses, left_seconds, call.channel)) is not None:
                yield call.decode(response)
                left_seconds = seconds
                self.opened()
        finally:
            if opened.process_id == os.getpid():
                responses.cancel()

    async def read(
        self,
        responses: "aio.UnaryStreamCall[Any, T] | aio.StreamStreamCall[Any, T]",
        seconds: float | None,
        channel: str,
    ) -> T | None:
        """Returns the next response of a stream, within this long; None once the stream has ended."""
        try:
            async with asyncio.timeout(seconds):
                response = await responses.read()
        except TimeoutError:
            raise self.errors.deadline(channel) from None
        except grpc.RpcError as failure:
            raise self.errors.from_rpc(failure, channel) from None
        except asyncio.CancelledError:
            raise self.cancelled_error(channel) from None
        return None if response is aio.EOF else cast("T", response)

    def cancelled_error(self, channel: str, txn_id: str = "") -> BaseException:
        """Returns the error for a cancelled await: closing the client cancels calls, but not their task."""
        task = asyncio.current_task()
        if self._is_closed and not (task and task.cancelling()):
            return self.errors.cancelled(channel, txn_id)
        return asyncio.CancelledError()

    async def close(self) -> None:
        """Ends streams cleanly, then cancels all other calls. Does nothing in a forked process."""
        for stream in tuple(self.streams):
            with suppress(MillraceError):
                await stream.finish()
        was_closed, self._is_closed = self._is_closed, True
        for peer in self._peers.values():
            await peer.close()
        if self._opened is not None and not was_closed and self._opened.process_id == os.getpid():
            await self._opened.channel.close(None)
