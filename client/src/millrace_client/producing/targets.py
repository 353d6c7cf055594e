"""Where a producer's servers are, and whether they can be reached."""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVarTuple

import grpc

from millrace_client._endpoints import servers_of
from millrace_client._retries import Backoff
from millrace_client.security import Tls, Token

_Arguments = TypeVarTuple("_Arguments")

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, each as `host:port`."""

HealthReport: TypeAlias = Callable[[bool, bool], None]

_WATCH_PATH = "/grpc.health.v1.Health/Watch"
# Messages of grpc.health.v1, which need no generated code: a request about the whole server is empty, and a status is
# one number.
_WHOLE_SERVER = b""
_SERVING = b"\x08\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The address of one server."""

    address: str
    authority: str
    """The name in its certificate and in requests; empty: the address itself."""
    others: tuple[str, ...] = ()
    """Other servers that share channels with it."""

    @property
    def names(self) -> str:
        """The addresses of all of them, for messages."""
        return ", ".join((self.address, *self.others))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to connect to servers."""

    tls: Tls | None
    token: Token | None = None
    options: tuple[tuple[str, str | int], ...]


async def resolve_host(host: str, port: int) -> list[str]:
    """Looks a host up in the system, in a stable order; raises OSError if that fails."""
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        # An empty part of the name, or one that is too long.
        raise OSError(f"{host} is not the name of a host") from None
    return sorted({_address(str(info[4][0]), port) for info in infos}, key=lambda address: (address[0] == "[", address))


async def targets_of(endpoint: str, resolve: Resolve = resolve_host) -> list[Target]:
    """Returns the servers behind an endpoint: each address of its name is one.

    gRPC would choose among the addresses, and choose again after each disconnection, without notice; but only the
    server that stored a batch knows its stamp. So names are resolved here. Servers that share channels all know it:
    they are one target.
    """
    first, *others = servers_of(endpoint)
    if others:
        return [Target(address=first, authority="", others=tuple(others))]
    split = _host_and_port(endpoint)
    if split is None:
        return [Target(address=endpoint, authority="")]
    return [Target(address=address, authority=endpoint) for address in await resolve(*split)]


def _host_and_port(endpoint: str) -> tuple[str, int] | None:
    """Splits an endpoint; None if there is nothing to resolve: an address, or one of gRPC's own schemes."""
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdecimal() or ":" in host or "/" in host or not host:
        return None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host, int(port)
    return None


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def call_in_loop(loop: asyncio.AbstractEventLoop, act: Callable[[*_Arguments], object], *args: *_Arguments) -> None:
    """Runs a function soon on an event loop, from any thread. Does nothing if the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act, *args)


class HealthWatch:
    """Reports whether a server serves, by a Health.Watch stream that lives as long as the connection.

    A connection that breaks or cannot be established shows at once, and a server that is stopping says so.

    Args:
        report: Called with each finding: whether the server is ready, and whether it is down.

    Attributes:
        is_stopping: Whether the server responds, and says that it does not serve. For any thread.
    """

    def __init__(self, channel: grpc.Channel, backoff: Backoff, report: HealthReport) -> None:
        self._backoff = backoff
        self._report = report
        self._watch: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_WATCH_PATH)
        self.is_stopping = False
        self._has_responded = False
        self._is_ending = False
        self._wakeup = threading.Event()
        self._call: grpc.RpcContext | None = None

    def check(self) -> None:
        """Checks again now, if the server offers no health watch."""
        self._wakeup.set()

    def stop(self) -> None:
        self._is_ending = True
        self._wakeup.set()
        if self._call is not None:
            self._call.cancel()

    def run(self) -> None:
        failure_count = 0
        while not self._is_ending:
            # Once the server is known to be down, gRPC itself reconnects with growing pauses and reports a success.
            code = self._watch_until_end(wait_for_ready=failure_count > 0)
            if code is grpc.StatusCode.UNAVAILABLE or code is grpc.StatusCode.CANCELLED:
                if self._is_ending:
                    # Another watch may have begun, whose reports count.
                    return
                failure_count = 1 if self._has_responded else failure_count + 1
                self._report(False, True)
                self._wakeup.clear()
                if not self._is_ending:
                    self._wakeup.wait(self._backoff.seconds_after(failure_count))
            else:
                # It can be reached, and has no health service, or not for every client. Appends will show the rest.
                failure_count = 0
                self._report(True, False)
                if not self._is_ending:
                    self._wakeup.wait()
                    self._wakeup.clear()

    def _watch_until_end(self, *, wait_for_ready: bool) -> grpc.StatusCode:
        self._has_responded = False
        try:
            call = self._watch(_WHOLE_SERVER, wait_for_ready=wait_for_ready)
            self._call = call
            if self._is_ending:
                call.cancel()
            for status in call:
                self._has_responded = True
                self.is_stopping = status != _SERVING
                self._report(status == _SERVING, status != _SERVING)
        except grpc.RpcError as failure:
            code: grpc.StatusCode = failure.code()
            return code
        except ValueError:
            # The gRPC channel was closed in the meantime.
            return grpc.StatusCode.CANCELLED
        finally:
            self.is_stopping = False
        return grpc.StatusCode.UNAVAILABLE
