"""The asynchronous tests in this directory run on the virtual clock, except in modules whose tests have threads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace

import pytest

from millrace_server.channels import checkpointing, journal
from tests.file_channels import DATA
from tests.log_histories import make_small
from tests.simulated_channels import make_simple
from tests.simulated_disk import SimulatedDisk
from tests.spillable_channels import Opened, check_share
from tests.virtual_clock import VirtualClockLoop, WallClock


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives each test in this directory a loop with a virtual clock.

    That clock would jump while a thread works, so a module with `HAS_THREADS = True` has real time.
    """
    module = item.getparent(pytest.Module)
    if module is not None and getattr(module.obj, "HAS_THREADS", False):
        return {"real_clock": asyncio.new_event_loop}
    return {"virtual_clock": VirtualClockLoop}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimulatedDisk:
    """An empty disk, on which logs reserve little space."""
    make_small(monkeypatch)
    return SimulatedDisk([DATA])


@pytest.fixture
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opened]:
    """A simulated disk for spillable channels; the invariants of the last one are checked."""
    make_simple(monkeypatch)
    opened = Opened()
    yield opened
    check_share(opened.now.channel)
    opened.now.abandon()


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not taken for a stalled disk, and the first checkpoint comes after a whole interval."""
    monkeypatch.setattr(journal, "STALL_SECONDS", 3_600.0)
    monkeypatch.setattr(checkpointing, "random", SimpleNamespace(random=lambda: 1.0))


@pytest.fixture(autouse=True)
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """The clock that gives commits their time. It stands at 0, which is no time, until a test sets it."""
    clock = WallClock()
    monkeypatch.setattr("millrace_server.channels.contents.time_ns", clock)
    return clock
