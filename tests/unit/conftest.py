"""Runs the asynchronous tests of the server's processes on the server's event loop; fixtures of several directories."""

import asyncio
import gc
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest

from tests.server_loop import new_server_loop

_ON_SERVER_LOOP = {"cli_server", "configuration", "console", "hosting", "http_service", "network", "process", "server"}
"""Directories of tests whose event loop is uvloop's, since its transports differ slightly from asyncio's."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Returns the factory of the loop that a test runs on."""
    if item.path.parent.name in _ON_SERVER_LOOP:
        return {"uvloop": new_server_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def prompt_http_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an HTTP server that stops wait a millisecond for its connections to end, instead of a tenth of a second."""
    import uvicorn.server

    async def check_soon(_seconds: float) -> None:
        await asyncio.sleep(0.001)

    monkeypatch.setattr(uvicorn.server, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": check_soon}))


@pytest.fixture
def logged_here(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns the messages that the test logs, without those of the threads and the garbage of former tests."""
    gc.collect()
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    return lambda: [record.getMessage() for record in caplog.records if record.thread not in others]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What seems to be missing is soon believed to be."""
    monkeypatch.setattr("millrace_server.replication.stream_reading.MISSING_SECONDS_MAX", 0.2)
