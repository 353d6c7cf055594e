"""Where a server listens: `host:port`."""

import ipaddress
import re
from dataclasses import dataclass

PORT_MAX = 65_535

_PORT = re.compile(r"[0-9]{1,5}")
_HOST_NAME_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_HOST_NAME_LENGTH_MAX = 253


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port. Its text is what `parse` reads."""

    host: str
    """A name or an IP address, IPv6 without its brackets."""

    port: int
    """0 to 65,535; 0 stands for any free one."""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Reads `host:port`; an IPv6 address stands in brackets, as in `[::1]:7070`.

        Raises:
            ValueError: The text is no such thing; the message says what is wrong and what is allowed.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host:
            raise ValueError("it must be host:port, such as 127.0.0.1:7070 or [::1]:7070")
        if not _PORT.fullmatch(port) or int(port) > PORT_MAX:
            raise ValueError(f"its port must be a whole number from 0 to {PORT_MAX}, where 0 means any free one")
        return cls(_check_host(host), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
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
            raise ValueError("what stands in brackets must be an IPv6 address, such as [::1]:7070") from None
        return host
    if ":" in host:
        raise ValueError("an IPv6 address must stand in brackets, such as [::1]:7070")
    labels = host.split(".")
    if labels[-1].isdecimal():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError("its host must be an IPv4 address of four numbers from 0 to 255") from None
    elif len(host) > _HOST_NAME_LENGTH_MAX or not all(map(_HOST_NAME_LABEL.fullmatch, labels)):
        raise ValueError("its host must be a host name or an IP address")
    return host
