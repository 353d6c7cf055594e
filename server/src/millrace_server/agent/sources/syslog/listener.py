"""What all listeners have."""

from typing import NamedTuple, Protocol

from millrace_server.agent.sources.syslog.backlog import Backlog
from millrace_server.agent.sources.syslog.config import SyslogSourceConfig
from millrace_server.agent.sources.syslog.losses import Losses
from millrace_server.network.addresses import Address

_MAPPED_IPV4 = "::ffff:"


class ListenerParts(NamedTuple):
    """What the listeners of a source share."""

    config: SyslogSourceConfig
    backlog: Backlog
    losses: Losses


class OpenListener(Protocol):
    """Brings the backlog what comes to one address."""

    @property
    def address(self) -> Address:
        """Where it listens, with the port that was found."""

    async def start(self) -> None:
        """Lets senders in."""

    def close(self) -> None:
        """Closes the port; what has come so far goes to the backlog."""


def client_ip(host: str) -> str:
    """An address as people write it: an IPv4 address is none of IPv6, whatever took it."""
    return host.removeprefix(_MAPPED_IPV4)
