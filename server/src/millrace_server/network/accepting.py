"""Accepting connections within limits, so that idle ones do not keep others out."""

import asyncio
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Self

HANDSHAKE_SECONDS = 5.0
"""How long a TLS handshake may take; then the connection is closed."""

_BACKLOG = 2_048
_NO_FILES_SECONDS = 0.1
_FILES_FOR_OTHERS = 64
_GRPC_SHARE = 0.75

_MAPPED_IPV4_PREFIX = "::ffff:"
_KEEPALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 20, socket.TCP_KEEPCNT: 3}


def client_ip(host: str) -> str:
    """Returns an address without the prefix of an IPv4 address that is mapped to IPv6."""
    return host.removeprefix(_MAPPED_IPV4_PREFIX)


def detect_dead_peers(bound: socket.socket) -> None:
    """Enables TCP keepalive, which detects dead peers, on a listening socket; accepted connections inherit it.

    For senders that may be idle for hours or days.
    """
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        bound.setsockopt(socket.IPPROTO_TCP, option, value)


class ConnectionLimits(NamedTuple):
    """Maximum numbers of connections, in total and from one address."""

    total_max: int
    address_max: int

    @classmethod
    def of_grpc(cls, connections_max: int, address_max: int | None) -> Self:
        """Returns the limits of gRPC, which are lower than configured if the process may not open as many files.

        By default, one address may have half of the connections, so that it cannot lock out others.
        """
        return cls._within_files(connections_max, address_max, _GRPC_SHARE)

    @classmethod
    def of_http(cls, connections_max: int, address_max: int | None) -> Self:
        """Returns the limits of HTTP, for which gRPC leaves some open files, so that probes are answered."""
        return cls._within_files(connections_max, address_max, 1 - _GRPC_SHARE)

    @classmethod
    def _within_files(cls, connections_max: int, address_max: int | None, share: float) -> Self:
        files = _files_for_connections() * share
        total_max = connections_max if files > connections_max else int(files)
        return cls(total_max, max(total_max // 2, 1) if address_max is None else min(address_max, total_max))


def _files_for_connections() -> float:
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return float("inf")
    return max(files_max - _FILES_FOR_OTHERS, files_max // 2)


class ConnectionSlot:
    """One of the connections that a listener may have open."""

    def __init__(self, slots: "ConnectionSlots", address: str) -> None:
        self._slots = slots
        self.address = address
        self.abort: Callable[[], object] = lambda: None
        """Closes the connection at once, for a new one that needs the slot."""

    def mark_idle(self) -> None:
        """Marks the connection as idle, so that a new one may replace it."""
        self._slots.mark_idle(self)

    def mark_busy(self) -> None:
        """Marks the connection as busy."""
        self._slots.mark_busy(self)

    def release(self) -> None:
        """Releases the slot; further calls do nothing."""
        self._slots.release(self)


class ConnectionSlots:
    """The slots of a listener's connections, limited in total and for each address.

    If none is free, a new connection replaces the one that has been idle longest, or the longest idle one of its own
    address if that has reached its limit. While all others are busy, there are `spare_count` more slots, in which
    requests can be refused with a response.
    """

    def __init__(self, total_max: int, address_max: int | None = None, spare_count: int = 0) -> None:
        self._total_max = total_max
        self._address_max = total_max + spare_count if address_max is None else address_max
        self._spare_count = spare_count
        self._taken: set[ConnectionSlot] = set()
        self._counts: Counter[str] = Counter()
        # The longest idle first.
        self._idle: dict[ConnectionSlot, None] = {}
        self._idle_by_address: dict[str, dict[ConnectionSlot, None]] = {}

    def acquire(self, address: str) -> ConnectionSlot | None:
        """Returns a slot for a new connection, which is idle; None if there is none."""
        if not self._make_space(address):
            return None
        slot = ConnectionSlot(self, address)
        self._taken.add(slot)
        self._counts[address] += 1
        self.mark_idle(slot)
        return slot

    def _make_space(self, address: str) -> bool:
        if self._counts[address] >= self._address_max:
            return self._close_longest_idle(self._idle_by_address.get(address, {}))
        busy_count = len(self._taken) - len(self._idle)
        limit = self._total_max + (self._spare_count if busy_count >= self._total_max else 0)
        return len(self._taken) < limit or self._close_longest_idle(self._idle)

    def _close_longest_idle(self, idle: dict[ConnectionSlot, None]) -> bool:
        slot = next(iter(idle), None)
        if slot is None:
            return False
        self.release(slot)
        slot.abort()
        return True

    def mark_idle(self, slot: ConnectionSlot) -> None:
        self.mark_busy(slot)
        if slot in self._taken:
            self._idle[slot] = None
            self._idle_by_address.setdefault(slot.address, {})[slot] = None

    def mark_busy(self, slot: ConnectionSlot) -> None:
        if slot in self._idle:
            del self._idle[slot]
            of_address = self._idle_by_address[slot.address]
            del of_address[slot]
            if not of_address:
                del self._idle_by_address[slot.address]

    def release(self, slot: ConnectionSlot) -> None:
        self.mark_busy(slot)
        if slot in self._taken:
            self._taken.remove(slot)
            self._counts[slot.address] -= 1
            if not self._counts[slot.address]:
                del self._counts[slot.address]


def end_stream(connected: socket.socket) -> None:
    """Ends a connection, unless its peer has ended it already."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


class Acceptor:
    """Accepts connections on a bound socket, which it owns. A connection has its slot during its handshake too."""

    def __init__(  # noqa: PLR0913 - most listeners leave the last four out
        self,
        bound: socket.socket,
        slots: ConnectionSlots,
        make_protocol: Callable[[ConnectionSlot], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
        on_refused: Callable[[], None] = lambda: None,
        *,
        admits: Callable[[str], Awaitable[bool]] | None = None,
        on_failed: Callable[[str, OSError], None] = lambda _address, _error: None,
    ) -> None:
        """`make_protocol` makes the protocol of a slot's connection, which must release the slot when it ends.

        `admits` decides by a client's address, before anything else, whether it may connect. `on_failed` gets the
        address of a client that may not connect, or whose TLS handshake failed, and the error.
        """
        self._bound = bound
        self._slots = slots
        self._make_protocol = make_protocol
        self._tls = tls
        self._on_refused = on_refused
        self._admits = admits
        self._on_failed = on_failed
        self._connecting: dict[asyncio.Task[None], ConnectionSlot] = {}
        bound.setblocking(False)
        bound.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._bound)
            except OSError:
                # The client has disconnected already, or the process has too many open files at the moment.
                await asyncio.sleep(_NO_FILES_SECONDS)
                continue
            slot = self._slots.acquire(str(peer[0]))
            if slot is None:
                self._on_refused()
                accepted.close()
                continue
            connecting = asyncio.create_task(self._connect(accepted, slot))
            # Without TLS, a cancellation could come after the protocol was created and before it gets its connection;
            # the protocol would never be notified of the end.
            slot.abort = partial(end_stream, accepted) if self._tls is None else connecting.cancel
            self._connecting[connecting] = slot
            connecting.add_done_callback(partial(self._end_connecting, accepted, slot))

    async def _connect(self, accepted: socket.socket, slot: ConnectionSlot) -> None:
        if self._admits is not None and not await self._admits(slot.address):
            raise ConnectionRefusedError("its address may not connect")
        in_tls: dict[str, Any] = {"ssl": self._tls, "ssl_handshake_timeout": HANDSHAKE_SECONDS} if self._tls else {}
        make = partial(self._make_protocol, slot)
        await asyncio.get_running_loop().connect_accepted_socket(make, accepted, **in_tls)
        if self._bound.fileno() < 0:
            # `close` did not cancel this connection, for the same reason.
            slot.abort()

    def _end_connecting(self, accepted: socket.socket, slot: ConnectionSlot, ended: "asyncio.Task[None]") -> None:
        del self._connecting[ended]
        error = None if ended.cancelled() else ended.exception()
        if ended.cancelled() or error is not None:
            # The protocol is not notified of a failed handshake.
            slot.release()
            accepted.close()
        if isinstance(error, ssl.SSLError | ConnectionRefusedError):
            self._on_failed(slot.address, error)
        elif error is not None and not isinstance(error, OSError):
            raise error

    def close(self) -> None:
        """Closes the port, and the connections whose TLS handshake is in progress."""
        self._accepting.cancel()
        self._bound.close()
        if self._tls is not None:
            for connecting, slot in self._connecting.items():
                # If the handshake has ended, the protocol may already have a request.
                if slot.abort == connecting.cancel:
                    connecting.cancel()

    async def wait_closed(self) -> None:
        """Returns once no new connection can begin."""
        await asyncio.wait([self._accepting, *self._connecting])
