"""The asynchronous tests in this directory run on the virtual clock."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.virtual_clock import VirtualClockLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives each test in this directory a loop with a virtual clock."""
    return {"virtual_clock": VirtualClockLoop}
