import socket

import pytest

from millrace_server.errors import StartError
from millrace_server.network.addresses import Address, check_is_free, open_socket


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
    """A port in use is told in a sentence, also where its owner would share it."""
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
    """An address that is not this machine's, and a name that is nobody's, are refused."""
    with pytest.raises(StartError, match=r"cannot listen on .*:7070 \(server\.listen\): "):
        await open_socket(Address(host, 7070), "server.listen")
