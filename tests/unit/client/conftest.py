"""Fixtures of the client's tests."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace_client import _settings
from tests.client_variants import Connect, client_variant
from tests.unit.client.fake_server import FakeServer
from tests.unit.client.owned_servers import OwnedServers, owned_servers


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens gRPC's pauses before retries to milliseconds."""
    monkeypatch.setattr(_settings, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(_settings, "BACKOFF_SECONDS_MAX", 0.01)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A scripted server."""
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[OwnedServers]:
    """Two servers, the second of which owns the channel."""
    with owned_servers(tmp_path) as both:
        both.own(1)
        yield both


@pytest.fixture
def dead() -> Iterator[str]:
    """An address that refuses connections as long as the test runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture(params=["sync", "aio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """`connect` of each variant of the client."""
    with client_variant(request.param) as connecting:
        yield connecting


@pytest.fixture
def client(connect: Connect, server: FakeServer) -> Any:
    """A client of the scripted server, in each variant."""
    return connect(server.address, timeout_seconds=60.0)
