"""The engine that the tests of a module share."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.virtual_clock import VirtualClockLoop

_WAIT_SECONDS = 30


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives tests real time, as the engine has, except in a module with `HAS_VIRTUAL_CLOCK = True`."""
    module = item.getparent(pytest.Module)
    if module is not None and getattr(module.obj, "HAS_VIRTUAL_CLOCK", False):
        return {"virtual_clock": VirtualClockLoop}
    return {"real_clock": asyncio.new_event_loop}


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A single nats-server with JetStream."""
    directory = tmp_path_factory.mktemp("nats")
    program = Path(sys.executable).with_name("nats-server")
    arguments = ["-js", "-sd", str(directory), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(directory)]
    with subprocess.Popen([program, *arguments], stderr=subprocess.DEVNULL) as process:
        give_up_at = time.monotonic() + _WAIT_SECONDS
        while not (found := list(directory.glob("*.ports"))):
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        yield json.loads(found[0].read_text())["nats"][0]
        process.kill()
