"""TCP and UDP listeners, and the counters of their losses."""

import asyncio
import logging
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

import structlog

from millrace_server.agent.rate_limited_log import RateLimitedLog
from millrace_server.agent.sources.listening import bound_address
from millrace_server.agent.sources.syslog.config import SyslogSourceConfig
from millrace_server.agent.sources.syslog.framing import Frame, StreamFramer, frame_datagram
from millrace_server.agent.sources.syslog.message_queue import MessageQueue, Origin
from millrace_server.network.accepting import Acceptor, ConnectionSlot, ConnectionSlots, client_ip, detect_dead_peers

_log = structlog.stdlib.get_logger(__name__)


class Loss(Enum):
    """A kind of loss; the value is a sentence that says what was lost, and why."""

    DATAGRAMS = "datagrams came faster than they could be stored; raise udp_receive_buffer_bytes, or use TCP"
    LONG_MESSAGES = 'messages were longer than message_bytes_max, and were dropped because long_messages is "drop"'
    FRAMING = 'a TCP stream was closed because a message had no length, which framing = "octet_counting" requires'
    CONNECTIONS = "TCP connections were closed because there were more than connections_max"
    UNSTORED = "messages were received, but could not be stored before the source had to stop"

    @property
    def is_of_messages(self) -> bool:
        return self in {Loss.DATAGRAMS, Loss.LONG_MESSAGES, Loss.UNSTORED}


class LossCounter:
    """Counts and logs losses.

    Attributes:
        counts: The number of losses of each kind since the source was created.
        on_lost_messages: Called with the number of messages whenever some are lost.
    """

    def __init__(self, source: str) -> None:
        self._log = RateLimitedLog(_log.bind(source=source))
        self.counts: Counter[Loss] = Counter()
        self.on_lost_messages: Callable[[int], None] = lambda _count: None

    def count(self, loss: Loss, count: int = 1) -> None:
        self.counts[loss] += count
        if loss.is_of_messages:
            self.on_lost_messages(count)
        self._log.log(logging.WARNING, "syslog messages were lost", loss.name, count, reason=loss.value)

    def log_remaining(self) -> None:
        self._log.flush()


class ListenerContext(NamedTuple):
    """What the listeners of a source share."""

    config: SyslogSourceConfig
    queue: MessageQueue
    losses: LossCounter
    tls: ssl.SSLContext | None
    """For TCP; None for plain text."""


MESSAGE_SECONDS_MAX = 60.0
"""A connection is closed if a message is incomplete for this long; the incomplete message is stored."""


class TcpListener:
    """Accepts connections on a bound socket, which it owns."""

    def __init__(self, bound: socket.socket, parts: ListenerContext) -> None:
        self._bound = bound
        self._context = parts
        self._acceptor: Acceptor | None = None
        self._connections: set[_Connection] = set()
        self.address = bound_address(bound)

    async def start(self) -> None:
        config, losses = self._context.config, self._context.losses
        detect_dead_peers(self._bound)
        slots = ConnectionSlots(config.connections_max, config.connections_per_address_max)
        on_refused = partial(losses.count, Loss.CONNECTIONS)
        self._acceptor = Acceptor(self._bound, slots, self._make_connection, self._context.tls, on_refused)

    def _make_connection(self, slot: ConnectionSlot) -> "_Connection":
        return _Connection(slot, self._context, self._connections, str(self.address.port))

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        self._bound.close()
        for connection in tuple(self._connections):
            connection.end()


class _Connection(asyncio.Protocol):
    """The connection of one sender."""

    _transport: asyncio.Transport

    def __init__(
        self, slot: ConnectionSlot, parts: ListenerContext, connections: "set[_Connection]", port: str
    ) -> None:
        config = parts.config
        self._slot = slot
        self._context = parts
        self._connections = connections
        self._origin = Origin(client_ip(slot.address), port)
        self._framer = StreamFramer(config.framing, config.message_bytes_max, config.long_messages)
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._progress_at = 0.0
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # TCP's is bidirectional
        self._transport = transport
        self._slot.abort = self.end
        self._slot.mark_busy()
        self._connections.add(self)
        # uvloop starts reading after this method, which would undo a pause.
        self._loop.call_soon(self._register)

    def _register(self) -> None:
        if not self._is_closed:
            self._context.queue.add_receiver(self)

    def data_received(self, data: bytes) -> None:
        framer = self._framer
        dropped_before = framer.dropped_count
        was_between = not framer.is_inside
        frames = framer.feed(data)
        if framer.dropped_count > dropped_before:
            self._context.losses.count(Loss.LONG_MESSAGES, framer.dropped_count - dropped_before)
        if frames or was_between:
            self._restart_timeout()
        self._context.queue.add(frames, self._origin)
        if framer.is_out_of_sync:
            self._context.losses.count(Loss.FRAMING)
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(is_clean=exc is None)

    def end(self) -> None:
        """Closes the connection; adds its unfinished message to the queue."""
        self._finish(is_clean=False)
        self._transport.abort()

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()
        self._restart_timeout()

    def _finish(self, *, is_clean: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._timeout is not None:
            self._timeout.cancel()
        self._connections.discard(self)
        self._slot.release()
        self._context.queue.remove_receiver(self)
        self._context.queue.add(self._framer.finish(is_clean=is_clean), self._origin)

    def _restart_timeout(self) -> None:
        """Restarts the timeout, which prevents senders from keeping a connection by sending a message byte by byte."""
        self._progress_at = self._loop.time()
        if self._timeout is None and self._framer.is_inside:
            self._timeout = self._loop.call_later(MESSAGE_SECONDS_MAX, self._check_timeout)

    def _check_timeout(self) -> None:
        self._timeout = None
        if self._context.queue.is_full or not self._framer.is_inside:
            # A paused connection does not read, and a connection without an unfinished message is idle.
            return
        remaining = self._progress_at + MESSAGE_SECONDS_MAX - self._loop.time()
        if remaining > 0:
            self._timeout = self._loop.call_later(remaining, self._check_timeout)
        else:
            self.end()


_DATAGRAM_BYTES_MAX = 65_535
_DATAGRAMS_AT_ONCE = 128
"""After this many datagrams, other tasks of the event loop get their turn."""

# With this option, Linux reports with each datagram how many the socket has dropped; Python has no constant for it.
_SO_RXQ_OVFL = 40
_DROP_COUNT = struct.Struct("=I")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DROP_COUNT.size)
_DROP_COUNT_END = 1 << 32


class UdpListener:
    """Reads datagrams from a bound socket, which it owns.

    While the queue is full, it does not read: the system buffers datagrams up to the size of the receive buffer, and
    drops and counts further ones.
    """

    def __init__(self, bound: socket.socket, parts: ListenerContext) -> None:
        self._bound = bound
        self._context = parts
        self._dropped_count = 0
        self._has_started = False
        self.address = bound_address(bound)

    @property
    def receive_buffer_bytes(self) -> int:
        # Linux reports twice the usable size.
        return self._bound.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2

    async def start(self) -> None:
        self._bound.setblocking(False)
        wanted = self._context.config.udp_receive_buffer_bytes
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
        self._bound.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        self._has_started = True
        self.resume()
        self._context.queue.add_receiver(self)

    def close(self) -> None:
        if self._has_started:
            self._context.queue.remove_receiver(self)
            self.pause()
            # Datagrams that the system has already received must not be lost.
            while not self._context.queue.is_full and self._read_datagrams():
                pass
        self._bound.close()

    def pause(self) -> None:
        asyncio.get_running_loop().remove_reader(self._bound)

    def resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._bound, self._read_datagrams)

    def _read_datagrams(self) -> bool:
        """Reads a limited number of datagrams; returns False if there are none."""
        queue = self._context.queue
        for count in range(_DATAGRAMS_AT_ONCE):
            if queue.is_full:
                return True
            try:
                datagram, ancillary, _, sender = self._bound.recvmsg(_DATAGRAM_BYTES_MAX, _ANCILLARY_BYTES)
            except OSError:
                # Nothing more is available, or the system reports a network error, which it does once.
                return count > 0
            if ancillary:
                self._count_drops(ancillary[0][2])
            if (frame := self._frame(datagram)) is not None:
                queue.add((frame,), Origin(client_ip(sender[0]), str(self.address.port)))
        return True

    def _frame(self, datagram: bytes) -> Frame | None:
        config = self._context.config
        frame = frame_datagram(datagram, config.message_bytes_max)
        if frame is not None and frame.is_truncated and config.long_messages == "drop":
            self._context.losses.count(Loss.LONG_MESSAGES)
            return None
        return frame

    def _count_drops(self, said: bytes) -> None:
        (dropped_count,) = _DROP_COUNT.unpack(said)
        if dropped_count != self._dropped_count:
            self._context.losses.count(Loss.DATAGRAMS, (dropped_count - self._dropped_count) % _DROP_COUNT_END)
            self._dropped_count = dropped_count
