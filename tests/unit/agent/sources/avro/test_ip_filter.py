import asyncio
import socket
from collections.abc import Mapping

import pytest

from millrace_server.agent.sources.avro.ip_filter import IpFilter, IpFilterRule

HAS_VIRTUAL_CLOCK = True


class Dns:
    """The names of addresses, and the addresses of names; counts the lookups of names."""

    def __init__(self, names: Mapping[str, str], addresses: Mapping[str, str]) -> None:
        self.names, self.addresses = names, addresses
        self.lookup_count = 0

    async def getnameinfo(self, where: tuple[str, int], _flags: int) -> tuple[str, str]:
        self.lookup_count += 1
        if where[0] not in self.names:
            raise socket.gaierror
        if self.names[where[0]] == "slow":
            await asyncio.sleep(3_600)
        return self.names[where[0]], "0"

    async def getaddrinfo(self, name: str, _port: None, *, type: int) -> list[tuple[object, ...]]:  # noqa: A002 - as asyncio has it
        assert type == socket.SOCK_STREAM
        return [(None, None, None, "", (address, 0)) for address, named in self.addresses.items() if named == name]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    made = Dns(
        {"10.0.0.1": "web-1.example.com", "10.0.0.2": "web-1.example.com", "10.0.0.4": "slow"},
        {"10.0.0.1": "web-1.example.com", "10.9.9.9": "this-host"},
    )
    for name in ("getnameinfo", "getaddrinfo"):
        monkeypatch.setattr(asyncio.BaseEventLoop, name, getattr(made, name))
    monkeypatch.setattr(socket, "gethostname", lambda: "this-host")
    return made


async def admitted(address: str, *rules: str) -> bool:
    return await IpFilter([IpFilterRule.parse(rule) for rule in rules]).admits(address)


@pytest.mark.parametrize(
    ("rules", "admits"),
    [
        ([], True),
        (["allow:ip:10.*", "deny:ip:*"], True),
        (["deny:ip:10.*", "allow:ip:*"], False),
        (["deny:ip:10.0.0.?"], False),
        (["deny:ip:10.0.0"], True),
        (["deny:ip:10.0.0.1?"], True),
        (["deny:ip:1.*"], True),
        (["deny:ip:10*0*1"], False),
        (["allow:ip:192.168.*"], True),
        (["allow:ip:192.168.*", "deny:ip:*"], False),
        (["deny:ip:10.0.0.1|10.0.0.2"], True),
    ],
)
async def test_admits_by_the_first_rule_that_matches(rules: list[str], admits: bool, dns: Dns) -> None:  # noqa: FBT001 - a parameter
    """Without a rule that matches, a client may connect; nothing but * and ? is special."""
    assert await admitted("10.0.0.1", *rules) is admits
    assert await admitted("::ffff:10.0.0.1", *rules) is admits
    assert dns.lookup_count == 0


async def test_admits_by_a_name_that_has_the_address(dns: Dns) -> None:
    """A name counts only if it leads back to the address, as anyone can claim any name."""
    rules = ("allow:name:WEB-*.example.com", "deny:ip:*")
    assert await admitted("10.0.0.1", *rules)
    assert not await admitted("10.0.0.2", *rules)
    assert not await admitted("10.0.0.3", *rules)
    assert not await admitted("10.0.0.3", "deny:name:*")


async def test_admits_despite_a_dns_that_does_not_respond(dns: Dns) -> None:
    """A lookup has its time; then the client has no name."""
    assert not await admitted("10.0.0.4", "allow:name:slow", "deny:ip:*")


async def test_admits_of_the_same_client_looks_its_name_up_once_a_minute(dns: Dns) -> None:
    """Many connections are not as many lookups."""
    made = IpFilter([IpFilterRule.parse("deny:name:*.example.com"), IpFilterRule.parse("deny:name:*.net")])
    for _ in range(5):
        assert not await made.admits("10.0.0.1")
    assert dns.lookup_count == 1
    await asyncio.sleep(61)
    assert not await made.admits("10.0.0.1")
    assert dns.lookup_count == 2


async def test_admits_of_many_clients_remembers_a_limited_number(dns: Dns) -> None:
    """Strangers do not fill the memory."""
    made = IpFilter([IpFilterRule.parse("deny:name:*.example.com")])
    for number in range(1_100):
        assert await made.admits(f"10.1.{number // 200}.{number % 200}")
    assert len(made._names) == 1_000


async def test_admits_this_machine_as_localhost(dns: Dns) -> None:
    """Loopback addresses and those of the host name are this machine, as with Flume."""
    for address in ("127.0.0.1", "127.8.0.1", "::1", "10.9.9.9"):
        assert await admitted(address, "allow:name:localhost", "deny:ip:*")
    assert not await admitted("10.0.0.1", "allow:name:localhost", "deny:ip:*")


@pytest.mark.parametrize("text", ["", "allow", "allow:ip", "allow:ip:", "permit:ip:*", "allow:mac:*", "allow:ip:a,b"])
def test_parse_of_what_is_no_rule_is_refused(text: str) -> None:
    """The message shows what a rule looks like."""
    with pytest.raises(ValueError, match="allow:ip:127"):
        IpFilterRule.parse(text)
