"""What sources have that others connect to."""

import socket
from abc import ABC

from millrace.setting_problems import shown_value
from millrace_server.agent.sources.source import SourceConfig
from millrace_server.agent.supervision import ComponentError
from millrace_server.errors import StartError
from millrace_server.network.addresses import Address
from millrace_server.network.sockets import open_socket


class ListeningSourceConfig(SourceConfig, ABC):
    """What sources have that others connect to."""

    allow_plaintext: bool = False
    """Listen where other machines can connect, although nothing is encrypted and nobody is asked who they are."""


def check_reach(shown: str, address: Address, *, allow_plaintext: bool | None) -> None:
    """Raises ValueError where other machines can reach an address and nobody has said that they may.

    Args:
        shown: The address as the configuration has it.
        address: The same, parsed.
        allow_plaintext: What was said; None where that was no answer, which is told already.
    """
    if not address.is_loopback and allow_plaintext is False:
        raise ValueError(
            f"is {shown_value(shown)}, which other machines can reach, and nothing is encrypted; it must be a loopback "
            "address, or allow_plaintext must be true"
        )


async def open_source_socket(
    address: Address, source: str, kind: socket.SocketKind = socket.SOCK_STREAM
) -> socket.socket:
    """A socket that is bound for a source.

    Raises:
        ComponentError: It cannot be had now.
    """
    try:
        return await open_socket(address, f"sources.{source}.listen", kind)
    except StartError as error:
        raise ComponentError(str(error)) from None


def address_of(bound: socket.socket) -> Address:
    """Where a socket is bound."""
    return Address(*bound.getsockname()[:2])
