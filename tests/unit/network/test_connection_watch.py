import socket
from contextlib import ExitStack

import pytest

from millrace_server.network.connection_watch import ConnectionWatch, UnauthenticatedLimits

WAIT_SECONDS_MAX = 60.0


async def test_connections_of_one_address_above_its_limit_are_closed() -> None:
    """The newest ones are closed; those of other ports and addresses stay."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as other:

        def connect(address: str, to: socket.socket = listening) -> tuple[socket.socket, socket.socket]:
            client = socket.create_connection(to.getsockname(), WAIT_SECONDS_MAX, (address, 0))
            return client, to.accept()[0]

        port = listening.getsockname()[1]
        stranger, elsewhere = connect("127.0.0.2"), connect("127.0.0.1", other)
        first = [connect("127.0.0.1") for _ in range(2)]
        watch = ConnectionWatch(2, None)
        watch.sweep(port)
        late = [connect("127.0.0.1") for _ in range(2)]
        watch.sweep(port)
        for client, accepted in late:
            assert client.recv(1) == b""
            accepted.close()
        for client, accepted in (*first, stranger, elsewhere):
            accepted.send(b"x")
            assert client.recv(1) == b"x"
            accepted.close()
        for client, _ in (*first, *late, stranger, elsewhere):
            client.close()


async def test_unauthenticated_connections_that_send_much_are_closed() -> None:
    """One that sends too much, and the largest if their total is too much; authenticated ones stay."""
    with ExitStack() as opened, socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        watch = ConnectionWatch(10, UnauthenticatedLimits(connection_bytes_max=3_000, total_bytes_max=4_000))

        def send(byte_count: int) -> socket.socket:
            client = opened.enter_context(socket.create_connection(listening.getsockname(), WAIT_SECONDS_MAX))
            accepted = opened.enter_context(listening.accept()[0])
            client.sendall(bytes(byte_count))
            accepted.recv(byte_count, socket.MSG_WAITALL | socket.MSG_PEEK)
            return client

        known, quiet, greedy = send(9_000), send(100), send(3_001)
        watch.admit("ipv4:{}:{}".format(*known.getsockname()))
        watch.sweep(port)
        assert greedy.recv(1) == b""
        middle, larger = send(2_000), send(2_500)
        watch.sweep(port)
        assert larger.recv(1) == b""
        for client in (known, quiet, middle):
            client.sendall(b"x")
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)
