import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import typer

from millrace_server.cli.health_command import health


@contextmanager
def _answering(answer: bytes) -> Iterator[int]:
    """Answers one connection on a free port, which it yields."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def test_health_when_another_protocol_answers_fails_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """As where the URL has the port of gRPC: a container's health check shows why."""
    with _answering(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x05\r\n") as port, pytest.raises(typer.Exit) as ended:
        health(f"http://127.0.0.1:{port}/healthz")
    assert ended.value.exit_code == 1
    assert f"http://127.0.0.1:{port}/healthz: " in capsys.readouterr().err


@pytest.mark.parametrize("url", ["127.0.0.1:7071", "http://[::1/healthz", "http://127.0.0.1:port/healthz", "http://"])
def test_health_of_what_is_no_url_is_refused(url: str) -> None:
    """It is an error of the command line."""
    with pytest.raises(typer.BadParameter, match="must be an address such as"):
        health(url)
