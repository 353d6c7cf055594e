"""Taking ports, and saying in a sentence why one cannot be had."""

import asyncio
import socket

from millrace_server.errors import StartError
from millrace_server.network.addresses import Address


async def open_socket(address: Address, setting: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A socket that is bound; one of TCP does not listen yet.

    Args:
        address: Where.
        setting: The setting that says so, for the error.
        kind: TCP, or UDP.

    Raises:
        StartError: The port is in use, the host is not this machine's, or the process may not take it.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            address.host, address.port, type=kind, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )
    except (OSError, UnicodeError) as error:
        raise _refusal(address, setting, error) from None
    family, _, protocol, _, where = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        if kind is socket.SOCK_STREAM:
            # A port whose last connections linger may be taken again at once; one on which somebody listens may not.
            # With UDP a second listener would be let in, and get the first one's datagrams.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(where)
    except OSError as error:
        opened.close()
        raise _refusal(address, setting, error) from None
    return opened


async def check_is_free(address: Address, setting: str) -> None:
    """Makes sure that a port can be taken right now.

    For those that take it by other means and cannot say why they failed.

    Raises:
        StartError: It cannot.
    """
    (await open_socket(address, setting)).close()


def _refusal(address: Address, setting: str, error: Exception) -> StartError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return StartError(f"cannot listen on {address} ({setting}): {why}")
