"""The asynchronous tests in this directory run on the virtual clock."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.unit.client.consuming.consumer_variants import Variant
from tests.unit.client.fake_server import FakeServer
from tests.virtual_clock import VirtualClockLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives each test in this directory a loop with a virtual clock."""
    return {"virtual_clock": VirtualClockLoop}


@pytest.fixture(params=["sync", "aio"])
def variant(request: pytest.FixtureRequest, server: FakeServer) -> Iterator[Variant]:
    with asyncio.Runner() as runner:
        used = Variant(request.param, server.address, runner)
        yield used
        used.close()
