import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from millrace_server.cli import app
from millrace_server.cli.reporting import EXIT_CANNOT_START, EXIT_USAGE
from tests.free_ports import free_port

Respond = Callable[[bytes], str]


@pytest.fixture
def responding() -> Iterator[Respond]:
    """Makes a port that responds to the first connection with some bytes, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def start(response: bytes) -> str:
            threading.Thread(target=_response_once, args=(listening, response), daemon=True).start()
            return f"http://127.0.0.1:{listening.getsockname()[1]}/healthz"

        yield start


def _response_once(listening: socket.socket, response: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(1_000)
        connection.sendall(response)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "closed the connection; with server.tls, the address begins with https"),
        (b"\x00\x00\x1e\x04", "does not respond in HTTP; server.http_listen is the port to ask"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "Service Unavailable"),
    ],
)
def test_health_of_another_port_says_what_responded(responding: Respond, response: bytes, reason: str) -> None:
    """The port of gRPC, and one with TLS, are what a mistyped address leads to."""
    url = responding(response)
    result = CliRunner().invoke(app, ["health", url])
    assert (result.exit_code, result.stdout) == (EXIT_CANNOT_START, "")
    assert result.stderr == f"millraced: {url}: {reason}\n"


def test_health_where_nothing_listens_says_so() -> None:
    """The reason is that of the system, without its number."""
    url = f"http://127.0.0.1:{free_port()}/healthz"
    result = CliRunner().invoke(app, ["health", url])
    assert (result.exit_code, result.stderr) == (EXIT_CANNOT_START, f"millraced: {url}: Connection refused\n")


def test_health_behind_a_proxy_asks_the_server_directly(responding: Respond, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of a container's environment cannot reach an address of that container."""
    url = responding(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nserving")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    result = CliRunner().invoke(app, ["health", url])
    assert (result.exit_code, result.stdout) == (0, "serving\n")


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:7071", "file:///etc/passwd", "http://[::1", "http://127.0.0.1:7071/\xe9", f"http://{'a' * 70}/"],
)
def test_health_of_no_address_is_a_usage_error(url: str) -> None:
    """What cannot be asked is refused with an example."""
    result = CliRunner().invoke(app, ["health", url])
    assert result.exit_code == EXIT_USAGE
    assert "it must be an address such as http://127.0.0.1:7071/healthz" in result.stderr
