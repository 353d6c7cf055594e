"""Waiting for what no event tells."""

import asyncio
import time
from collections.abc import Callable

WAIT_SECONDS_MAX = 60.0
"""As long as a busy machine may need."""


def wait_until(
    condition: Callable[[], bool], seconds_max: float = WAIT_SECONDS_MAX, *, seconds_between: float = 0.02
) -> None:
    """Returns once a condition holds; fails if that takes too long."""
    give_up = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < give_up, "it never was so"
        time.sleep(seconds_between)


async def until(condition: Callable[[], bool]) -> None:
    """The same in an event loop."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not condition():  # noqa: ASYNC110 - no event of ours tells it
            await asyncio.sleep(0.001)
