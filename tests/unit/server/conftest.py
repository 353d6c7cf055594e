"""What is asynchronous in here runs on the server's own loop, whose transports are not quite asyncio's."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.server_loop import new_server_loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives each test in this folder such a loop."""
    return {"uvloop": new_server_loop}
