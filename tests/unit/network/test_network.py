import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.errors import StartError
from millrace_server.network import PORT_MAX, Address, check_is_free, open_socket

HOSTS = st.one_of(
    st.ip_addresses().map(str), st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{2,8}){0,3}", fullmatch=True)
)


@given(HOSTS, st.integers(0, PORT_MAX))
def test_parse_of_an_address_text_gives_the_address(host: str, port: int) -> None:
    """The text of an address is parsed to the same address."""
    assert Address.parse(str(Address(host, port))) == Address(host, port)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("", "host:port"),
        ("7070", "host:port"),
        (":7070", "host:port"),
        ("localhost:", "from 0 to 65535"),
        ("localhost:65536", "from 0 to 65535"),
        ("localhost:-1", "from 0 to 65535"),
        ("localhost:+1", "from 0 to 65535"),
        ("localhost: 1", "from 0 to 65535"),
        ("localhost:٣", "from 0 to 65535"),
        ("localhost:99999999999999999999", "from 0 to 65535"),
        ("::1:7070", "must be in brackets"),
        ("[::g]:7070", "must be an IPv6 address"),
        ("[127.0.0.1]:7070", "must be an IPv6 address"),
        ("[]:7070", "must be an IPv6 address"),
        ("1.2.3:7070", "IPv4"),
        ("256.1.1.1:7070", "IPv4"),
        ("-x:7070", "host name"),
        ("a..b:7070", "host name"),
        ("a b:7070", "host name"),
        ("a\nb:7070", "host name"),
        ("a\0:7070", "host name"),
        ("../x:7070", "host name"),
        ("http://localhost:7070", "brackets"),
        ("x" * 300 + ":7070", "host name"),
        (".".join(["x" * 60] * 5) + ":7070", "host name"),
    ],
)
def test_parse_when_malformed_says_what_is_allowed(text: str, allowed: str) -> None:
    """Each kind of mistake has a sentence of its own."""
    with pytest.raises(ValueError, match=allowed):
        Address.parse(text)


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.255.0.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("LOCALHOST:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example.com:1", False),
        ("mill:1", False),
    ],
)
def test_is_loopback_tells_who_can_connect(text: str, *, is_loopback: bool) -> None:
    """Only addresses that cannot be reached from other machines count as loopback."""
    assert Address.parse(text).is_loopback is is_loopback


async def test_open_socket_with_port_0_takes_any_free_one() -> None:
    """The port is known as soon as the socket is bound."""
    with await open_socket(Address("127.0.0.1", 0), "server.listen") as bound:
        assert bound.getsockname()[1] > 0


async def test_open_socket_of_ipv6_binds_it() -> None:
    """An IPv6 address works where the machine has IPv6."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        bound = await open_socket(Address("::1", 0), "server.listen")
    except StartError:
        pytest.skip("no IPv6 loopback here")
    with bound:
        assert bound.getsockname()[0] == "::1"


@pytest.mark.parametrize("reuse", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
async def test_open_socket_when_somebody_listens_says_so(reuse: int) -> None:
    """A port in use is reported in one sentence, even if its owner allows sharing."""
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, reuse, 1)
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        sentence = rf"^cannot listen on 127\.0\.0\.1:{port} \(server\.listen\): Address already in use$"
        with pytest.raises(StartError, match=sentence):
            await open_socket(Address("127.0.0.1", port), "server.listen")
        with pytest.raises(StartError, match=sentence):
            await check_is_free(Address("127.0.0.1", port), "server.listen")
    await check_is_free(Address("127.0.0.1", port), "server.listen")


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "no-such-host.invalid"])
async def test_open_socket_of_another_machine_says_so(host: str) -> None:
    """An address of another machine and an unknown name are refused."""
    with pytest.raises(StartError, match=r"cannot listen on .*:7070 \(server\.listen\): "):
        await open_socket(Address(host, 7070), "server.listen")
