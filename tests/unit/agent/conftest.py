"""Modules with `HAS_VIRTUAL_CLOCK = True` run on the virtual clock; those whose tests have threads cannot.

The other modules run on the server's own loop, whose transports differ slightly from asyncio's.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.server_loop import new_server_loop
from tests.virtual_clock import VirtualClockLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives each test of such a module a loop with a virtual clock.

    A module with `LOOKS_INTO_THE_LOOP = True` has asyncio's own loop, whose internals are accessible.
    """
    module = item.getparent(pytest.Module)
    if module is not None and getattr(module.obj, "HAS_VIRTUAL_CLOCK", False):
        return {"virtual_clock": VirtualClockLoop}
    if module is not None and getattr(module.obj, "LOOKS_INTO_THE_LOOP", False):
        return {"real_clock": asyncio.new_event_loop}
    return {"real_clock": new_server_loop}
