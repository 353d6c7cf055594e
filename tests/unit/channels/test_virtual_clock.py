import asyncio

import pytest

from tests.virtual_clock import StuckError, VirtualClockLoop, now, settle, started


async def test_sleep_on_the_virtual_clock_takes_no_time() -> None:
    """An hour passes at once, and exactly."""
    before = now()
    await asyncio.sleep(3600)
    assert now() == before + 3600


async def test_settle_with_timers_pending_leaves_the_clock_alone() -> None:
    """Only callbacks that are ready run."""
    slept = await started(asyncio.sleep(1))
    await settle()
    assert not slept.is_done
    assert now() == 0
    await slept.result()
    assert now() == 1


def test_loop_when_nothing_can_ever_happen_raises() -> None:
    """A test that waits for nothing fails instead of hanging."""
    loop = VirtualClockLoop()
    try:
        with pytest.raises(StuckError):
            loop.run_until_complete(loop.create_future())
    finally:
        loop.close()
