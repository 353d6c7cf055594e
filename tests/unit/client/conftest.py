"""Fixtures of the client's tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client_faces import Connect, face
from tests.unit.client.fake_server import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A server that answers by script."""
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture(params=["sync", "aio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """`connect` of each face."""
    with face(request.param) as connecting:
        yield connecting


@pytest.fixture
def client(connect: Connect, server: FakeServer) -> Any:
    """A client of the scripted server, in each face."""
    return connect(server.address, timeout_seconds=10.0)
