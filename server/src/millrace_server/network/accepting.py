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
    """Returns an address as people write it: without the IPv6 prefix of an IPv4 address."""
    return host.removeprefix(_MAPPED_IPV4_PREFIX)


def detect_dead_peers(bound: socket.socket) -> None:
    """Lets the system close connections whose peers have gone without a word; accepted ones inherit the options.

    For senders that may rightly be silent for hours or days.
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
        """Returns the limits of gRPC: fewer than allowed if the process may not open as many files.

        By default one address may have half of them, so that it does not keep others out.
        """
        return cls._within_files(connections_max, address_max, _GRPC_SHARE)

    @classmethod
    def of_http(cls, connections_max: int, address_max: int | None) -> Self:
        """Returns the limits of HTTP, for which gRPC leaves some files, so that probes get responses."""
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


class Place:
    """The place of a connection among those of a listener."""

    def __init__(self, places: "Places", address: str) -> None:
        self._places = places
        self.address = address
        self.abort: Callable[[], object] = lambda: None
        """Closes the connection at once, for another that needs its place."""

    def wait(self) -> None:
        """Marks the connection as idle, so that a new one may replace it."""
        self._places.queue(self)

    def work(self) -> None:
        """Marks the connection as busy."""
        self._places.unqueue(self)

    def leave(self) -> None:
        """Gives the place back; does nothing the second time."""
        self._places.remove(self)


class Places:
    """The places of a listener's connections, in all and for each address.

    A new connection takes the place of the one that has waited longest, of its own address if that has too many. If
    all others are at work, there are `spare_count` more places, in which requests can be refused with a response.
    """

    def __init__(self, total_max: int, address_max: int | None = None, spare_count: int = 0) -> None:
        self._total_max = total_max
        self._address_max = total_max + spare_count if address_max is None else address_max
        self._spare_count = spare_count
        self._taken: set[Place] = set()
        self._counts: Counter[str] = Counter()
        # The longest first.
        self._waiting: dict[Place, None] = {}
        self._waiting_of: dict[str, dict[Place, None]] = {}

    def take(self, address: str) -> Place | None:
        """Returns a place for an idle connection; None if there is none."""
        if not self._make_space(address):
            return None
        place = Place(self, address)
        self._taken.add(place)
        self._counts[address] += 1
        self.queue(place)
        return place

    def _make_space(self, address: str) -> bool:
        if self._counts[address] >= self._address_max:
            return self._end_oldest(self._waiting_of.get(address, {}))
        busy_count = len(self._taken) - len(self._waiting)
        limit = self._total_max + (self._spare_count if busy_count >= self._total_max else 0)
        return len(self._taken) < limit or self._end_oldest(self._waiting)

    def _end_oldest(self, waiting: dict[Place, None]) -> bool:
        place = next(iter(waiting), None)
        if place is None:
            return False
        self.remove(place)
        place.abort()
        return True

    def queue(self, place: Place) -> None:
        self.unqueue(place)
        if place in self._taken:
            self._waiting[place] = None
            self._waiting_of.setdefault(place.address, {})[place] = None

    def unqueue(self, place: Place) -> None:
        if place in self._waiting:
            del self._waiting[place]
            of_address = self._waiting_of[place.address]
            del of_address[place]
            if not of_address:
                del self._waiting_of[place.address]

    def remove(self, place: Place) -> None:
        self.unqueue(place)
        if place in self._taken:
            self._taken.remove(place)
            self._counts[place.address] -= 1
            if not self._counts[place.address]:
                del self._counts[place.address]


def end_stream(connected: socket.socket) -> None:
    """Ends a connection, unless its peer has ended it already."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


class Acceptor:
    """Accepts connections on a bound socket, which it owns. A connection has its place also during its handshake."""

    def __init__(  # noqa: PLR0913 - most listeners leave the last four out
        self,
        bound: socket.socket,
        places: Places,
        make_protocol: Callable[[Place], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
        on_refused: Callable[[], None] = lambda: None,
        *,
        admits: Callable[[str], Awaitable[bool]] | None = None,
        on_failed: Callable[[str, OSError], None] = lambda _address, _error: None,
    ) -> None:
        """`make_protocol` makes what serves the connection of a place, and gives the place back at its end.

        `admits` decides by its address, before anything else, whether a client may connect. `on_failed` gets the
        address of one that may not, or with which TLS was not agreed on, and why.
        """
        self._bound = bound
        self._places = places
        self._make_protocol = make_protocol
        self._tls = tls
        self._on_refused = on_refused
        self._admits = admits
        self._on_failed = on_failed
        self._connecting: dict[asyncio.Task[None], Place] = {}
        bound.setblocking(False)
        bound.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._bound)
            except OSError:
                # Its client has left already, or there are no files left at the moment.
                await asyncio.sleep(_NO_FILES_SECONDS)
                continue
            place = self._places.take(str(peer[0]))
            if place is None:
                self._on_refused()
                accepted.close()
                continue
            connecting = asyncio.create_task(self._connect(accepted, place))
            # Without a handshake, a cancellation would come between a protocol and its connection: the protocol would
            # never learn of the end.
            place.abort = partial(end_stream, accepted) if self._tls is None else connecting.cancel
            self._connecting[connecting] = place
            connecting.add_done_callback(partial(self._end_connecting, accepted, place))

    async def _connect(self, accepted: socket.socket, place: Place) -> None:
        if self._admits is not None and not await self._admits(place.address):
            raise ConnectionRefusedError("its address may not connect")
        in_tls: dict[str, Any] = {"ssl": self._tls, "ssl_handshake_timeout": HANDSHAKE_SECONDS} if self._tls else {}
        make = partial(self._make_protocol, place)
        await asyncio.get_running_loop().connect_accepted_socket(make, accepted, **in_tls)
        if self._bound.fileno() < 0:
            # Not cancelled by `close`: without a handshake, that would come between a protocol and its connection.
            place.abort()

    def _end_connecting(self, accepted: socket.socket, place: Place, ended: "asyncio.Task[None]") -> None:
        del self._connecting[ended]
        error = None if ended.cancelled() else ended.exception()
        if ended.cancelled() or error is not None:
            # A protocol does not learn that its handshake has failed.
            place.leave()
            accepted.close()
        if isinstance(error, ssl.SSLError | ConnectionRefusedError):
            self._on_failed(place.address, error)
        elif error is not None and not isinstance(error, OSError):
            raise error

    def close(self) -> None:
        """Closes the port, and the connections whose handshake is not over."""
        self._accepting.cancel()
        self._bound.close()
        if self._tls is not None:
            for connecting, place in self._connecting.items():
                # Unless it has ended: then the protocol may have a request already.
                if place.abort == connecting.cancel:
                    connecting.cancel()

    async def wait_closed(self) -> None:
        """Returns once no connection begins any more."""
        await asyncio.wait([self._accepting, *self._connecting])
