"""The interceptor `host`: where an event came in."""

import socket
from typing import Literal

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor, InterceptorConfig, QuickInterceptor

_FAR_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that nobody has (RFC 5737, RFC 3849), of both families."""

_ANY_PORT = 9


class HostConfig(InterceptorConfig):
    """A header that says on which machine an event came in."""

    type: Literal["host"]
    """Where an event came in."""

    header: str = "host"
    """The header."""

    use: Literal["name", "ip"] = "name"
    """`name`: the machine's name. `ip`: the address from which it reaches others."""

    preserve_existing: bool = False
    """Whether an event that has the header already keeps its own."""

    def make(self) -> Interceptor:
        return _Host(self, socket.gethostname() if self.use == "name" else own_address())


class _Host(QuickInterceptor):
    def __init__(self, config: HostConfig, value: str) -> None:
        self._config = config
        self._value = value

    def intercept(self, table: EventTable) -> EventTable:
        table.give(self._config.header, self._value, preserve_existing=self._config.preserve_existing)
        return table


def own_address() -> str:
    """The address from which this machine reaches others; the loopback address where it reaches none.

    Asks the routing table only: nothing is sent, and no name is looked up.
    """
    for family, address in _FAR_AWAY:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, _ANY_PORT))
                return str(probe.getsockname()[0])
        except OSError:
            # No way out by this family.
            continue
    return "127.0.0.1"
