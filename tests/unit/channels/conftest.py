"""Whatever is asynchronous in here runs on the virtual clock, but for modules whose tests have threads."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.file_channels import DATA
from tests.log_histories import make_small
from tests.simulated_disk import SimulatedDisk
from tests.virtual_clock import VirtualClockLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives each test in this folder a loop whose clock jumps.

    That clock would jump while a thread is at work. So a module with `HAS_THREADS = True` has real time.
    """
    module = item.getparent(pytest.Module)
    if module is not None and getattr(module.obj, "HAS_THREADS", False):
        return {"real_clock": asyncio.new_event_loop}
    return {"virtual_clock": VirtualClockLoop}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimulatedDisk:
    """An empty disk, of which logs reserve little."""
    make_small(monkeypatch)
    return SimulatedDisk([DATA])
