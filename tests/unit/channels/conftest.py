"""Whatever is asynchronous in here runs on the virtual clock."""

from collections.abc import Callable, Mapping

import pytest

from tests.virtual_clock import VirtualClockLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], VirtualClockLoop]]:
    """Gives each test in this folder a loop whose clock jumps."""
    return {"virtual_clock": VirtualClockLoop}
