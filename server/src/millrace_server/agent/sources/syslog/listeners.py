"""What a syslog source could not take, counted, and told without floods."""

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

import structlog

from millrace_server.agent.sources.source import address_of
from millrace_server.agent.sources.syslog.config import SyslogSourceConfig
from millrace_server.agent.sources.syslog.framing import Frame, StreamFramer, frame_datagram
from millrace_server.agent.sources.syslog.message_queue import Backlog, Origin
from millrace_server.network.addresses import Address

TELL_SECONDS = 60.0
"""Each kind of loss is told at once, then so often at most, with how much it was meanwhile."""

_log = structlog.stdlib.get_logger(__name__)


class Loss(Enum):
    """What was lost, and what to do about it."""

    DATAGRAMS = "datagrams came faster than they could be stored; raise udp_receive_buffer_bytes, or use TCP"
    LONG_MESSAGES = "messages were longer than message_bytes_max, and long_messages says that these are dropped"
    FRAMING = "a TCP stream was not of counted messages although framing says so, and was closed"
    CONNECTIONS = "TCP connections were above connections_max, and were closed"
    UNSTORED = "messages had come, but could not be stored before the source had to end"

    @property
    def is_of_messages(self) -> bool:
        """Whether it counts messages that are gone, and not what keeps them from coming."""
        return self in {Loss.DATAGRAMS, Loss.LONG_MESSAGES, Loss.UNSTORED}


class Losses:
    """Counts what was lost.

    Attributes:
        counts: How much was lost of each kind since the source was made.
        on_lost_messages: Called with how many messages are gone, each time that some are.
    """

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._told_at: dict[Loss, float] = {}
        self._told: Counter[Loss] = Counter()
        self.counts: Counter[Loss] = Counter()
        self.on_lost_messages: Callable[[int], None] = lambda _count: None

    def note(self, loss: Loss, count: int = 1) -> None:
        """Counts a loss; tells it now, or with the next of its kind, or in the end."""
        self.counts[loss] += count
        if loss.is_of_messages:
            self.on_lost_messages(count)
        now = self._clock()
        if loss not in self._told_at or now - self._told_at[loss] >= TELL_SECONDS:
            self._tell(loss)
            self._told_at[loss] = now

    def tell_rest(self) -> None:
        """Tells what was not told yet."""
        for loss in self.counts:
            if self.counts[loss] > self._told[loss]:
                self._tell(loss)

    def _tell(self, loss: Loss) -> None:
        count = self.counts[loss] - self._told[loss]
        self._told[loss] = self.counts[loss]
        _log.warning("syslog was lost", source=self._source, count=count, total=self.counts[loss], reason=loss.value)


_MAPPED_IPV4 = "::ffff:"


class ListenerParts(NamedTuple):
    """What the listeners of a source share."""

    config: SyslogSourceConfig
    backlog: Backlog
    losses: Losses


class OpenListener(Protocol):
    """Brings the backlog what comes to one address."""

    @property
    def address(self) -> Address:
        """Where it listens, with the port that was found."""

    async def start(self) -> None:
        """Lets senders in."""

    def close(self) -> None:
        """Closes the port; what has come so far goes to the backlog."""


def client_ip(host: str) -> str:
    """An address as people write it: an IPv4 address is none of IPv6, whatever took it."""
    return host.removeprefix(_MAPPED_IPV4)


MESSAGE_SECONDS_MAX = 60.0
"""A message whose end is not there after so long is taken as it is, and its connection is closed."""

_KEEPALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 20, socket.TCP_KEEPCNT: 3}


class TcpListener:
    """Takes connections on a bound socket, which belongs to it."""

    def __init__(self, bound: socket.socket, parts: ListenerParts) -> None:
        self._bound = bound
        self._parts = parts
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self.address: Address = address_of(bound)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        # Connections have it of the socket that takes them.
        _keep_alive(self._bound)
        self._server = await loop.create_server(self._make_connection, sock=self._bound)

    def _make_connection(self) -> "_Connection":
        return _Connection(self._parts, self._connections, str(self.address.port))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._bound.close()
        for connection in tuple(self._connections):
            connection.end()


class _Connection(asyncio.Protocol):
    """One sender."""

    _transport: asyncio.Transport

    def __init__(self, parts: ListenerParts, connections: "set[_Connection]", port: str) -> None:
        config = parts.config
        self._parts = parts
        self._connections = connections
        self._origin = Origin(None, port)
        self._framer = StreamFramer(config.framing, config.message_bytes_max, config.long_messages)
        self._has_ended = False
        self._loop = asyncio.get_running_loop()
        self._unfinished_since = 0.0
        self._watching: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # TCP's reads and writes
        self._transport = transport
        if len(self._connections) >= self._parts.config.connections_max:
            self._parts.losses.note(Loss.CONNECTIONS)
            self._has_ended = True
            transport.abort()
            return
        # A sender may have reset its connection behind its last message, which is to be had nevertheless.
        if (peer := transport.get_extra_info("peername")) is not None:
            self._origin = self._origin._replace(client_ip=client_ip(peer[0]))
        self._connections.add(self)
        # Not before it reads, which uvloop begins behind this: a pause would be undone.
        self._loop.call_soon(self._join_taps)

    def _join_taps(self) -> None:
        if not self._has_ended:
            self._parts.backlog.add_tap(self)

    def data_received(self, data: bytes) -> None:
        framer = self._framer
        dropped_before = framer.dropped_count
        began_anew = not framer.is_inside
        frames = framer.feed(data)
        if framer.dropped_count > dropped_before:
            self._parts.losses.note(Loss.LONG_MESSAGES, framer.dropped_count - dropped_before)
        if frames or began_anew:
            self._watch_unfinished()
        self._parts.backlog.add(frames, self._origin)
        if framer.is_lost:
            self._parts.losses.note(Loss.FRAMING)
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(is_clean=exc is None)

    def end(self) -> None:
        """Closes the connection; what it had begun goes to the backlog."""
        self._finish(is_clean=False)
        self._transport.abort()

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()
        self._watch_unfinished()

    def _finish(self, *, is_clean: bool) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._watching is not None:
            self._watching.cancel()
        self._connections.discard(self)
        self._parts.backlog.remove_tap(self)
        self._parts.backlog.add(self._framer.finish(is_clean=is_clean), self._origin)

    def _watch_unfinished(self) -> None:
        """Lets nobody hold a connection by sending a message letter by letter: its time begins now."""
        self._unfinished_since = self._loop.time()
        if self._watching is None and self._framer.is_inside:
            self._watching = self._loop.call_later(MESSAGE_SECONDS_MAX, self._end_if_unfinished)

    def _end_if_unfinished(self) -> None:
        self._watching = None
        if self._parts.backlog.is_full or not self._framer.is_inside:
            # What is closed reads nothing, and whoever has sent everything owes nothing.
            return
        remaining = self._unfinished_since + MESSAGE_SECONDS_MAX - self._loop.time()
        if remaining > 0:
            self._watching = self._loop.call_later(remaining, self._end_if_unfinished)
        else:
            self.end()


def _keep_alive(bound: socket.socket) -> None:
    """Has the system find out who is there no more, since syslog's senders may be silent for days."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        bound.setsockopt(socket.IPPROTO_TCP, option, value)


_DATAGRAM_BYTES_MAX = 65_535
_DATAGRAMS_AT_ONCE = 128
"""After so many the event loop has others do their work."""

# Linux has each datagram tell how many were dropped on this socket so far; Python has no name for it.
_SO_RXQ_OVFL = 40
_DROP_COUNT = struct.Struct("=I")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DROP_COUNT.size)
_DROP_COUNT_END = 1 << 32


class UdpListener:
    """Reads datagrams from a bound socket, which belongs to it.

    While the backlog is full nothing is read: the system keeps datagrams as far as the receive buffer reaches, and
    drops and counts what comes then.
    """

    def __init__(self, bound: socket.socket, parts: ListenerParts) -> None:
        self._bound = bound
        self._parts = parts
        self._dropped_count = 0
        self._has_started = False
        self.address = address_of(bound)

    @property
    def receive_buffer_bytes(self) -> int:
        """What the system has granted."""
        # Linux tells twice as much as can be used.
        return self._bound.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2

    async def start(self) -> None:
        self._bound.setblocking(False)
        wanted = self._parts.config.udp_receive_buffer_bytes
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
        self._bound.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        self._has_started = True
        self.resume()
        self._parts.backlog.add_tap(self)

    def close(self) -> None:
        if self._has_started:
            self._parts.backlog.remove_tap(self)
            self.pause()
            # What the system has taken already is not to be lost.
            while not self._parts.backlog.is_full and self._read_some():
                pass
        self._bound.close()

    def pause(self) -> None:
        asyncio.get_running_loop().remove_reader(self._bound)

    def resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._bound, self._read_some)

    def _read_some(self) -> bool:
        """Reads what is there, up to a number; False where nothing is."""
        backlog = self._parts.backlog
        for count in range(_DATAGRAMS_AT_ONCE):
            if backlog.is_full:
                return True
            try:
                datagram, ancillary, _, sender = self._bound.recvmsg(_DATAGRAM_BYTES_MAX, _ANCILLARY_BYTES)
            except OSError:
                # Nothing more is there, or the system tells of a trouble of the network's, once.
                return count > 0
            if ancillary:
                self._note_drops(ancillary[0][2])
            if (frame := self._frame(datagram)) is not None:
                backlog.add((frame,), Origin(client_ip(sender[0]), str(self.address.port)))
        return True

    def _frame(self, datagram: bytes) -> Frame | None:
        config = self._parts.config
        frame = frame_datagram(datagram, config.message_bytes_max)
        if frame is not None and frame.is_truncated and config.long_messages == "drop":
            self._parts.losses.note(Loss.LONG_MESSAGES)
            return None
        return frame

    def _note_drops(self, said: bytes) -> None:
        (dropped_count,) = _DROP_COUNT.unpack(said)
        if dropped_count != self._dropped_count:
            self._parts.losses.note(Loss.DATAGRAMS, (dropped_count - self._dropped_count) % _DROP_COUNT_END)
            self._dropped_count = dropped_count
