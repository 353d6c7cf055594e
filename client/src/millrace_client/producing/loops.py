"""The way from a thread to an event loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")


def call_in(loop: asyncio.AbstractEventLoop, act: Callable[[*_Arguments], object], *args: *_Arguments) -> None:
    """Has a loop run something soon; any thread may ask. A loop that has ended has nothing left that could be done."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act, *args)
