"""Deliveries of one channel, for threads."""

import contextlib
import math
import os
import queue
import sys
import threading
import time
from typing import Self

import grpc

from millrace.v1 import channel_service_pb2 as pb
from millrace_client import _calls
from millrace_client._calls import ConsumeLimits
from millrace_client._connection import Connection
from millrace_client._deliveries import DeliveredEvents, Settlement, settlement_requests
from millrace_client.errors import MillraceError, StreamEndedError


class Delivery(DeliveredEvents):
    """Events to process, then to `ack` or `nack` together. May be passed to another thread.

    Iteration yields `Event`s, oldest first; `bodies()` returns the bodies faster.
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: "ConsumeStream", response: pb.ConsumeResponse) -> None:
        super().__init__(response)
        self._stream = stream

    def ack(self) -> None:
        """Removes the events from the channel. Returns at once; may be repeated.

        Raises:
            StreamEndedError: It is too late: the events have returned to the channel.
        """
        self._stream.settle(Settlement(self.delivery_id, is_ack=True))

    def nack(self) -> None:
        """Returns the events to their positions in the channel; they will be delivered again, to any consumer.

        Raises:
            StreamEndedError: It is too late: they have returned already.
        """
        self._stream.settle(Settlement(self.delivery_id, is_ack=False))


class Deliveries:
    """Deliveries as they arrive: an iterator of `Delivery` and a context manager. See `Channel.consume`."""

    def __init__(self, connection: Connection, channel: str, limits: ConsumeLimits) -> None:
        self._connection = connection
        self._channel = channel
        self._limits = limits
        self._stream: ConsumeStream | None = None
        self._is_closed = False
        # Validates the limits at once.
        self._start = _calls.consume_start(channel, limits)

    def close(self) -> None:
        """Ends the stream: acks take effect, and events that were not acknowledged return to the channel.

        Raises:
            MillraceError: The server did not confirm the end in time; it will notice automatically.
        """
        self._is_closed = True
        if self._stream is not None:
            self._stream.finish()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        if self._is_closed:
            raise StopIteration
        stream, response = (
            self._first_response() if self._stream is None else (self._stream, self._stream.next_response())
        )
        if response is None:
            raise StopIteration
        return Delivery(stream, response)

    def _first_response(self) -> "tuple[ConsumeStream, pb.ConsumeResponse | None]":
        """Starts the stream at the server that owns the channel, and returns it with its first response."""
        connection = self._connection
        search = connection.owners.search(self._channel, connection.settings.timeout_seconds)
        while True:
            stream = self._stream = ConsumeStream(
                connection.at(search.endpoint), self._channel, self._start, self._limits.idle_seconds
            )
            try:
                return stream, stream.next_response()
            except MillraceError as error:
                if (pause_seconds := search.pause_seconds(error)) is None:
                    raise
            time.sleep(pause_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            self.close()
        except MillraceError as close_error:
            if error is None:
                raise
            error.add_note(f"ending the deliveries failed too: {close_error}")

    def __del__(self) -> None:
        # Deliveries refer to the stream, not to this object: leaving a loop drops it even if its deliveries are kept.
        if (stream := getattr(self, "_stream", None)) is not None:
            stream.abandon()


class ConsumeStream:
    """One Consume stream.

    One thread at a time reads; any thread may settle. Closing the sending side ends the stream: the server executes the
    acks, returns all other events, and then ends the stream.
    """

    def __init__(
        self, connection: Connection, channel: str, start: pb.ConsumeRequest, idle_seconds: float | None
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._idle_seconds = math.inf if idle_seconds is None else idle_seconds
        self._timeout_seconds = connection.settings.timeout_seconds
        self._reading = threading.Lock()
        self._is_ending = False
        self._is_over = False
        self._has_ended = False
        self._has_settled = False
        # A finalizer may put into a SimpleQueue.
        self._settlements: queue.SimpleQueue[Settlement | None] = queue.SimpleQueue()
        opened = connection.opened()
        self._process_id = opened.process_id
        requests = settlement_requests(start, self._settlements)
        try:
            self._call = opened.consume(requests, wait_for_ready=connection.waits_for_connection)
        except ValueError as error:
            raise connection.error_if_closed(error) from None
        self._watch = opened.watchdog.watch(self._expire)
        connection.streams.add(self)
        if not self._call.add_callback(self._note_over):
            self._note_over()

    def settle(self, settlement: Settlement) -> None:
        """Sends an ack or nack to the server."""
        if self._is_ending or self._is_over:
            raise StreamEndedError("the stream is closed; events that were not acknowledged are back in the channel")
        self._has_settled = True
        self._settlements.put(settlement)

    def wait_for_server(self) -> bool:
        """Waits until the server has responded to the start of the stream; returns False if the stream has ended."""
        # Also returns at the end of a call without a response.
        self._call.initial_metadata()
        return bool(self._call.is_active())

    def next_response(self) -> pb.ConsumeResponse | None:
        """Returns the next delivery; None once the stream has ended. Ignores deliveries while the stream is ending."""
        with self._reading:
            while not self._has_ended:
                response = self._read()
                if response is not None and not self._is_ending:
                    return response
        return None

    def _read(self) -> pb.ConsumeResponse | None:
        self._connection.opened()
        self._watch.arm(self._timeout_seconds if self._is_ending else self._idle_seconds)
        try:
            return next(self._call)
        except StopIteration:
            self._has_ended = True
            return None
        except grpc.RpcError as failure:
            self._has_ended = True
            if self._watch.has_fired:
                raise self._connection.errors.deadline(self._channel) from None
            raise self._connection.errors.from_rpc(failure, self._channel) from None
        finally:
            self._watch.disarm()

    def finish(self) -> None:
        """Ends the stream cleanly, within the client's timeout."""
        if self._has_ended or self._process_id != os.getpid():
            return
        self.end_sending(self._timeout_seconds)
        while self.next_response() is not None:
            pass

    def end_sending(self, seconds: float) -> None:
        """Closes the sending side; the reader finds the end of the stream once the server has executed the acks.

        Args:
            seconds: The stream is cancelled if it has not ended after this long.
        """
        self._timeout_seconds = seconds
        self._close_sending()
        self._watch.arm(seconds)

    def abandon(self) -> None:
        """Ends the stream. For a finalizer, which may run in any thread and must not wait."""
        if self._is_over or self._is_ending or self._process_id != os.getpid():
            return
        if sys.is_finalizing():
            # gRPC's threads have stopped, perhaps while they held a lock. The end of the process ends the stream.
            return
        if self._has_settled:
            with contextlib.suppress(RuntimeError):
                # Not a daemon: the interpreter waits for it, so that no ack is lost when the program exits.
                threading.Thread(target=self._finish_quietly, name="millrace-consume-end").start()
                return
        self._call.cancel()

    def _finish_quietly(self) -> None:
        with contextlib.suppress(MillraceError):
            self.finish()

    def _close_sending(self) -> None:
        self._is_ending = True
        self._settlements.put(None)

    def _expire(self) -> None:
        """Runs when nothing was delivered for too long: ends the stream cleanly, or cancels it if that fails."""
        if self._is_ending:
            self._call.cancel()
        else:
            self._watch.has_fired = False
            self._close_sending()
            self._watch.arm(self._timeout_seconds)

    def _note_over(self) -> None:
        """Runs when the call has ended; deliveries that arrived before may still be read."""
        self._is_over = True
        # Releases gRPC's thread, which waits for requests.
        self._settlements.put(None)
        self._watch.close()
        self._connection.streams.discard(self)


__all__ = ["Deliveries", "Delivery"]
