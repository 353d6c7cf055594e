"""Closes connections to the gRPC port that exceed limits which gRPC itself does not enforce.

gRPC limits its connections only in total, and it buffers whole requests, and headers of any size, from unauthenticated
clients.
"""

import asyncio
import os
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import structlog

from millrace_server.network.accepting import client_ip, end_stream

_SWEEP_SECONDS, _SWEEP_SECONDS_MAX = 1.0, 5.0
_SWEEP_SHARE = 0.02
_FILES = Path("/proc/self/fd")

# Where Linux has tcpi_bytes_received in struct tcp_info.
_TCP_INFO_BYTES = 256
_BYTES_RECEIVED = struct.Struct("=Q")
_BYTES_RECEIVED_OFFSET = 128

_log = structlog.stdlib.get_logger(__name__)


class UnauthenticatedLimits(NamedTuple):
    """How much unauthenticated connections may send."""

    connection_bytes_max: int
    """Maximum of one connection: the size of its first calls."""
    total_bytes_max: int


class ConnectionWatch:
    """Closes connections to a port that exceed the limit of their address, or the limits without authentication."""

    def __init__(self, address_max: int, unauthenticated: UnauthenticatedLimits | None) -> None:
        """`unauthenticated` applies to connections without a call of `admit`; None if they need no authentication."""
        self._address_max = address_max
        self._limits = unauthenticated
        self._authenticated: set[str] = set()
        self._counted: set[int] = set()
        """The inodes of the sockets whose connections were within the limits at the last sweep."""

    def admit(self, peer: str) -> None:
        """Notes that a peer, as gRPC writes it, is authenticated."""
        self._authenticated.add(peer)

    async def follow(self, port: int) -> None:
        """Checks the connections every second, or less often if there are thousands, until it is cancelled."""
        seconds = 0.0
        while True:
            await asyncio.sleep(min(max(_SWEEP_SECONDS, seconds / _SWEEP_SHARE), _SWEEP_SECONDS_MAX))
            begun = time.monotonic()
            try:
                await asyncio.to_thread(self.sweep, port)
            except Exception:  # noqa: BLE001 - later connections must be limited all the same
                _log.exception("the connections could not be counted")
            seconds = time.monotonic() - begun

    def sweep(self, port: int) -> None:
        """Closes the newest connections above the limit of an address, and unauthenticated ones that sent too much."""
        # Usually the process has fewer open files than an address may have connections.
        if self._limits is None and sum(1 for _ in _FILES.iterdir()) <= self._address_max:
            return
        authenticated = frozenset(self._authenticated)
        with ExitStack() as opened:
            found = [(inode, opened.enter_context(closing(one))) for inode, one in _open_sockets()]
            kept = self._close_excess([(inode, one) for inode, one in found if _is_connected_to(port, one)])
            self._authenticated -= authenticated - {peer for peer, _ in kept}
            if self._limits is not None:
                _close_largest([one for peer, one in kept if peer not in authenticated], self._limits)

    def _close_excess(self, found: list[tuple[int, socket.socket]]) -> list[tuple[str, socket.socket]]:
        """Closes connections above the limit of their address; returns the others, with their peers."""
        kept, kept_inodes, counts = list[tuple[str, socket.socket]](), set[int](), Counter[str]()
        # Connections that were within the limit before are kept.
        for inode, one in sorted(found, key=lambda each: each[0] not in self._counted):
            peer = _peer(one)
            address = peer.rpartition(":")[0]
            counts[address] += 1
            if counts[address] > self._address_max:
                end_stream(one)
            else:
                kept.append((peer, one))
                kept_inodes.add(inode)
        self._counted = kept_inodes
        return kept


def _close_largest(connections: list[socket.socket], limits: UnauthenticatedLimits) -> None:
    """Closes connections that have sent too much, largest first, until the total is within its limit too."""
    sent = sorted(((_bytes_received(one), one) for one in connections), key=lambda each: -each[0])
    total = sum(byte_count for byte_count, _ in sent)
    for byte_count, one in sent:
        if byte_count <= limits.connection_bytes_max and total <= limits.total_bytes_max:
            return
        total -= byte_count
        end_stream(one)


def _is_connected_to(port: int, found: socket.socket) -> bool:
    with suppress(OSError):
        return bool(found.getsockname()[1] == port and found.getpeername())
    return False


def _peer(connection: socket.socket) -> str:
    """Returns the peer as gRPC writes it."""
    host, port = connection.getpeername()[:2]
    host = client_ip(host)
    return f"ipv6:%5B{quote(host, safe=':')}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _bytes_received(connection: socket.socket) -> int:
    with suppress(OSError, struct.error):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        (byte_count,) = _BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_OFFSET)
        return int(byte_count)
    return 0


def _open_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yields duplicates of this process's TCP sockets, which may be closed in the meantime, with their inodes."""
    for file in tuple(_FILES.iterdir()):
        with suppress(OSError):
            duplicate = os.dup(int(file.name))
            status = os.fstat(duplicate)
            if not stat.S_ISSOCK(status.st_mode):
                os.close(duplicate)
                continue
            found = socket.socket(fileno=duplicate)
            if found.type == socket.SOCK_STREAM and found.family in {socket.AF_INET, socket.AF_INET6}:
                yield status.st_ino, found
            else:
                found.close()
