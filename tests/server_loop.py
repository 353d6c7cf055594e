"""The server's own event loop, for tests."""

import asyncio
from typing import Any

import pytest
import uvloop


def new_server_loop() -> asyncio.AbstractEventLoop:
    """A loop in which a test that takes too long fails.

    uvloop logs an exception of a signal handler and continues: pytest's timeout would be lost, and the test would hang.
    """
    loop = uvloop.new_event_loop()
    loop.set_exception_handler(_heed_timeout)
    return loop


def _heed_timeout(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    loop.default_exception_handler(context)
    if isinstance(context.get("exception"), pytest.fail.Exception):
        loop.stop()
