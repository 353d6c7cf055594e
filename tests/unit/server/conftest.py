"""What is asynchronous in here runs on the server's own loop, whose transports are not quite asyncio's."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives each test in this folder such a loop."""
    return {"uvloop": uvloop.new_event_loop}
