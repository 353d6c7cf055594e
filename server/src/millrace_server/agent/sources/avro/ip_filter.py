"""The filter of clients that may connect, with rules like Flume's `ipFilterRules`."""

import asyncio
import ipaddress
import re
import socket
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from millrace.setting_problems import shown_value
from millrace_server.network.accepting import client_ip

_RULE = re.compile(r"(?P<verdict>allow|deny):(?P<kind>ip|name):(?P<pattern>[^\s,]+)")
_THIS_MACHINE = "localhost"

_LOOKUP_SECONDS_MAX = 5.0
_NAME_SECONDS = 60.0
_NAMES_MAX = 1_000


class IpFilterRule(NamedTuple):
    """A rule that says whether clients that match a pattern may connect."""

    is_allowed: bool
    kind: Literal["ip", "name"]
    pattern: str

    @classmethod
    def parse(cls, text: str) -> "IpFilterRule":
        """Parses a rule, such as `allow:ip:127.*`. Raises ValueError with a sentence about the setting."""
        if (match := _RULE.fullmatch(text)) is None:
            raise ValueError(
                f'is {shown_value(text)}; it must be "allow" or "deny", "ip" or "name", and a pattern, such as '
                '"allow:ip:127.*"'
            )
        return cls(match["verdict"] == "allow", "ip" if match["kind"] == "ip" else "name", match["pattern"])

    @property
    def is_of_this_machine(self) -> bool:
        return self.kind == "name" and self.pattern == _THIS_MACHINE

    def matches(self, text: str) -> bool:
        """Whether the pattern matches an address or a name. DNS names are case-insensitive."""
        pattern = re.escape(self.pattern).replace(r"\*", ".*").replace(r"\?", ".")
        return re.fullmatch(pattern, text, re.IGNORECASE) is not None


class IpFilter:
    """Applies rules to the addresses of clients."""

    def __init__(self, rules: Sequence[IpFilterRule]) -> None:
        self._rules = rules
        self._names: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """The names of clients, and when they were looked up."""

    async def admits(self, address: str) -> bool:
        """Whether a client may connect; its name is looked up only if a rule needs it."""
        address = client_ip(address)
        for rule in self._rules:
            if await self._matches(rule, address):
                return rule.is_allowed
        return True

    async def _matches(self, rule: IpFilterRule, address: str) -> bool:
        if rule.kind == "ip":
            return rule.matches(address)
        if rule.is_of_this_machine:
            return await _is_of_this_machine(address)
        return rule.matches(await self._name_of(address))

    async def _name_of(self, address: str) -> str:
        """Returns the name of a client, or its address if it has no name, so that `*` matches all clients."""
        now = asyncio.get_running_loop().time()
        name, looked_up_at = self._names.get(address, ("", -_NAME_SECONDS))
        if now - looked_up_at < _NAME_SECONDS:
            return name
        name = await _looked_up_name(address)
        self._names[address] = (name, now)
        if len(self._names) > _NAMES_MAX:
            self._names.popitem(last=False)
        return name


async def _looked_up_name(address: str) -> str:
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS_MAX):
            name, _ = await asyncio.get_running_loop().getnameinfo((address, 0), socket.NI_NAMEREQD)
            # The owner of an address controls the name that DNS returns for it, but not the addresses of that name.
            return name if address in await _addresses_of(name) else address
    except (OSError, UnicodeError, TimeoutError):
        return address


async def _is_of_this_machine(address: str) -> bool:
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return True
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS_MAX):
            return address in await _addresses_of(socket.gethostname())
    except (OSError, UnicodeError, TimeoutError):
        return False


async def _addresses_of(name: str) -> set[str]:
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return {str(where[0]) for *_, where in found}
