"""Endpoints, and the servers that stand behind their names."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from millrace_client.producing.servers import Target

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host, each as `host:port`."""


async def resolve_host(host: str, port: int) -> list[str]:
    """Asks the system, in an order that is the same each time."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({_address(str(info[4][0]), port) for info in infos}, key=lambda address: (address[0] == "[", address))


async def targets_of(endpoint: str, resolve: Resolve = resolve_host) -> list[Target]:
    """The servers behind an endpoint: each address of a name is one.

    gRPC would take any of the addresses, and another one after each break of a connection, without saying so; but only
    the server that stored a batch knows its stamp. So names are looked up here.

    Raises:
        OSError: The name is not known.
    """
    split = _host_and_port(endpoint)
    if split is None:
        return [Target(address=endpoint, authority="")]
    return [Target(address=address, authority=endpoint) for address in await resolve(*split)]


def _host_and_port(endpoint: str) -> tuple[str, int] | None:
    """A name and a port; None where nothing is to be looked up: an address, or one of gRPC's own schemes."""
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
