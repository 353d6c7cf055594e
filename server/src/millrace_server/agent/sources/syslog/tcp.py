"""Syslog over TCP."""

import asyncio
import socket

from millrace_server.agent.sources.listening import address_of
from millrace_server.agent.sources.syslog.backlog import Origin
from millrace_server.agent.sources.syslog.framing import StreamFramer
from millrace_server.agent.sources.syslog.listener import ListenerParts, client_ip
from millrace_server.agent.sources.syslog.losses import Loss
from millrace_server.network.addresses import Address

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
