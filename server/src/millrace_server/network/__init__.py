"""Addresses to listen on, and the sockets bound to them."""

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass

from millrace.setting_problems import shown_value
from millrace_server.errors import StartError

PORT_MAX = 65_535

_PORT = re.compile(r"[0-9]{1,5}")
_HOST_NAME_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_HOST_NAME_LENGTH_MAX = 253


def is_loopback(host: str) -> bool:
    """Whether a host name, or an IP address without brackets, is a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port; `str` is the inverse of `parse`."""

    host: str
    """A host name or an IP address, IPv6 without its brackets."""

    port: int
    """0 to 65,535; 0 means any free port."""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parses `host:port`; an IPv6 address must be in brackets, as in `[::1]:7070`.

        Raises ValueError, with what is wrong and what is allowed.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host:
            raise ValueError("it must be host:port, such as 127.0.0.1:7070 or [::1]:7070")
        if not _PORT.fullmatch(port) or int(port) > PORT_MAX:
            raise ValueError(f"its port must be a whole number from 0 to {PORT_MAX}, where 0 means any free port")
        return cls(_check_host(host), int(port))

    @classmethod
    def of_setting(cls, text: str) -> "Address":
        """Like `parse`, for the value of a setting; the message of a ValueError begins with the value."""
        try:
            return cls.parse(text)
        except ValueError as error:
            raise ValueError(f"is {shown_value(text)}; {error}") from None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    @property
    def is_unspecified(self) -> bool:
        """Whether it stands for all of the machine's addresses, so that clients cannot connect to it."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _check_host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("the text in brackets must be an IPv6 address, such as [::1]:7070") from None
        return host
    if ":" in host:
        raise ValueError("an IPv6 address must be in brackets, such as [::1]:7070")
    labels = host.split(".")
    if labels[-1].isdecimal():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError("its host must be an IPv4 address of four numbers from 0 to 255") from None
    elif len(host) > _HOST_NAME_LENGTH_MAX or not all(map(_HOST_NAME_LABEL.fullmatch, labels)):
        raise ValueError("its host must be a host name or an IP address")
    return host


async def open_socket(address: Address, setting: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Returns a bound socket, which does not listen yet; raises StartError if the address cannot be bound."""
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
            # Permits a port whose last connections are in TIME_WAIT. For UDP it would permit a second listener, which
            # would receive the datagrams of the first.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(where)
    except OSError as error:
        opened.close()
        raise _refusal(address, setting, error) from None
    return opened


async def check_is_free(address: Address, setting: str) -> None:
    """Raises StartError if a port cannot be bound; for code that cannot report why binding failed."""
    (await open_socket(address, setting)).close()


def _refusal(address: Address, setting: str, error: Exception) -> StartError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return StartError(f"cannot listen on {address} ({setting}): {why}")
