"""The synchronous connection to a server."""

import math
import os
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from functools import cache, partial
from typing import Protocol, TypeVar

import grpc

from millrace.tracing import trace_metadata
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import _methods
from millrace_client._call_sequences import CallSequence
from millrace_client._calls import Call
from millrace_client._forks import FORKS, Unpicklable, forked_error
from millrace_client._owners import Owners
from millrace_client._settings import ConnectionSettings, Numbering, stream_repeats
from millrace_client._watchdog import Watchdog
from millrace_client.errors import ClientClosedError, MillraceError
from millrace_client.grpc_errors import ErrorTranslator
from millrace_client.security import renewed

T = TypeVar("T")


class Finishable(Protocol):
    """A stream that can end cleanly."""

    def finish(self) -> None:
        """Ends the stream; waits for that, within the client's timeout."""


class _Opened:
    """The gRPC channel of one process, and what depends on it."""

    def __init__(self, settings: ConnectionSettings, former: "_Opened | None") -> None:
        FORKS.check_usable()
        self.process_id = os.getpid()
        self.numbering: Numbering = Numbering() if former is None else former.numbering
        self.watchdog: Watchdog = Watchdog() if former is None else former.watchdog
        self.file_watch = settings.watch_files()
        channel: grpc.Channel = settings.open_channel(grpc)
        self.channel = channel
        self.unary = cache(lambda method: channel.unary_unary(method.path, method.serialize, method.parse))
        self.streaming = cache(lambda method: channel.unary_stream(method.path, method.serialize, method.parse))
        self.consume: grpc.StreamStreamMultiCallable[pb.ConsumeRequest, pb.ConsumeResponse] = channel.stream_stream(
            _methods.CONSUME.path, _methods.CONSUME.serialize, _methods.CONSUME.parse
        )


class Connection(Unpicklable):
    """Executes calls. The first call opens it, in the process of the caller. Threads may share it."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        servers = settings.servers
        self._server = servers[0]
        self.waits_for_connection = settings.waits_for_connection
        self.errors = ErrorTranslator(self._server)
        self._opening = threading.Lock()
        self._opened: _Opened | None = None
        self._is_closed = False
        self.owners = Owners(servers, is_patient=settings.wait_for_ready)
        self._peers: dict[str, Connection] = {}
        self.streams: set[Finishable] = set()
        """The open streams, which add and remove themselves."""
        # One token for each call. Threads may add to a set and remove from it without a lock.
        self._calls: set[object] = set()
        FORKS.watch(self)

    def opened(self) -> _Opened:
        """Returns the gRPC channel and what depends on it; opens it unless closed or used by a parent process."""
        opened = self._opened
        if opened is None or self._is_closed or (opened.file_watch is not None and opened.file_watch.has_changed()):
            opened = self._open(opened)
        if opened.process_id != os.getpid():
            raise forked_error(opened.process_id)
        return opened

    def _open(self, former: _Opened | None) -> _Opened:
        with self._opening:
            if self._is_closed:
                raise ClientClosedError("the client is closed")
            # Unless another thread was first. Calls in progress keep the former gRPC channel until they end.
            if self._opened is former and (former is None or former.process_id == os.getpid()):
                self._opened = renewed(partial(_Opened, self.settings, former), former)
            assert self._opened is not None
            return self._opened

    @property
    def is_busy(self) -> bool:
        return bool(self._calls or self.streams)

    def at(self, endpoint: str) -> "Connection":
        """Returns the connection to one of the client's own servers, or to a channel's owner that one has named."""
        if endpoint == self._server:
            return self
        with self._opening:
            if self._is_closed:
                raise ClientClosedError("the client is closed")
            if endpoint not in self._peers:
                self._peers[endpoint] = Connection(self.settings.at(endpoint))
            return self._peers[endpoint]

    def run(self, call: Call[T]) -> T:
        """Executes a call at the server that owns its channel."""
        search = self.owners.search(call.owned_channel, self.settings.timeout_seconds)
        wait_seconds = call.wait_seconds or 0.0
        while True:
            try:
                return self.at(search.endpoint).run_once(call, search.left_seconds + wait_seconds)
            except MillraceError as error:
                if (pause_seconds := search.pause_seconds(error)) is None:
                    raise
            time.sleep(pause_seconds)

    def run_once(self, call: Call[T], timeout_seconds: float) -> T:
        """Executes a call at this server."""
        opened = self.opened()
        make = opened.unary(call.method)
        token = object()
        self._calls.add(token)
        try:
            response = make(
                call.request, timeout_seconds, metadata=trace_metadata(), wait_for_ready=self.waits_for_connection
            )
        except grpc.RpcError as failure:
            if self._has_newer_token(failure, opened):
                return self.run_once(call, timeout_seconds)
            raise self.errors.from_rpc(failure, call.channel, call.txn_id) from None
        except ValueError as error:
            raise self.error_if_closed(error) from None
        finally:
            self._calls.discard(token)
        return call.decode(response)

    def _has_newer_token(self, failure: grpc.RpcError, refused: _Opened) -> bool:
        """Whether a refused call is repeated, since its token's file has changed: the former one is gone at once."""
        if failure.code() is not grpc.StatusCode.UNAUTHENTICATED or refused.file_watch is None:
            return False
        refused.file_watch.look_now()
        return self.opened() is not refused

    def drive(self, sequence: CallSequence[T]) -> T:
        """Executes the calls of a sequence, and returns its result."""
        try:
            call = next(sequence)
            while True:
                try:
                    result = self.run(call)
                except BaseException as error:  # noqa: BLE001 - the sequence decides, and raises it again
                    call = sequence.throw(error)
                else:
                    call = sequence.send(result)
        except StopIteration as end:
            outcome: T = end.value
            return outcome

    def stream(self, call: Call[T]) -> Iterator[T]:
        """Executes a call with many responses, until its iterator is closed or dropped.

        Before the first response it goes to the server that owns the channel.
        """
        seconds = math.inf if call.wait_seconds is None else self.settings.timeout_seconds + call.wait_seconds
        repeats = stream_repeats(seconds)
        search = self.owners.search(call.owned_channel, self.settings.timeout_seconds)
        while True:
            connection = self.at(search.endpoint)
            with closing(connection.stream_once(call, repeats.left_seconds, seconds)) as responses:
                try:
                    first = next(responses, None)
                except MillraceError as error:
                    if (pause_seconds := search.pause_seconds(error)) is None:
                        pause_seconds = repeats.pause_seconds(error)
                else:
                    if first is not None:
                        yield first
                        yield from responses
                    return
            time.sleep(pause_seconds)

    def stream_once(self, call: Call[T], left_seconds: float, seconds: float) -> Generator[T]:
        """Executes it once: the first response may take `left_seconds`, and each other one `seconds`."""
        opened = self.opened()
        try:
            responses = opened.streaming(call.method)(
                call.request, metadata=trace_metadata(), wait_for_ready=self.waits_for_connection
            )
        except ValueError as error:
            raise self.error_if_closed(error) from None
        watch = opened.watchdog.watch(responses.cancel)
        self._calls.add(watch)
        try:
            while True:
                watch.arm(left_seconds)
                try:
                    response = next(responses)
                except StopIteration:
                    return
                except grpc.RpcError as failure:
                    if watch.has_fired:
                        raise self.errors.deadline(call.channel) from None
                    raise self.errors.from_rpc(failure, call.channel) from None
                finally:
                    watch.disarm()
                yield call.decode(response)
                left_seconds = seconds
                self.opened()
        finally:
            self._calls.discard(watch)
            watch.close()
            if opened.process_id == os.getpid():
                responses.cancel()

    def error_if_closed(self, error: ValueError) -> MillraceError | ValueError:
        """Returns the error for a call that gRPC refused: another thread may have closed the client in the meantime."""
        return ClientClosedError("the client is closed") if self._is_closed else error

    def close(self) -> None:
        """Ends streams cleanly, then cancels all other calls. Does nothing in a forked process."""
        for stream in tuple(self.streams):
            with suppress(MillraceError):
                stream.finish()
        with self._opening:
            was_closed, self._is_closed = self._is_closed, True
            peers = tuple(self._peers.values())
        for peer in peers:
            peer.close()
        if self._opened is not None and not was_closed and self._opened.process_id == os.getpid():
            self._opened.channel.close()
