"""The loops of the tests in this directory."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.virtual_clock import VirtualClockLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives tests real time, as the engine has, except in a module with `HAS_VIRTUAL_CLOCK = True`."""
    module = item.getparent(pytest.Module)
    if module is not None and getattr(module.obj, "HAS_VIRTUAL_CLOCK", False):
        return {"virtual_clock": VirtualClockLoop}
    return {"real_clock": asyncio.new_event_loop}
