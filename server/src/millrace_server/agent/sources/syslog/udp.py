"""Syslog over UDP."""

import asyncio
import socket
import struct

from millrace_server.agent.sources.listening import address_of
from millrace_server.agent.sources.syslog.backlog import Origin
from millrace_server.agent.sources.syslog.framing import Frame, frame_datagram
from millrace_server.agent.sources.syslog.listener import ListenerParts, client_ip
from millrace_server.agent.sources.syslog.losses import Loss

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
