import asyncio
import gc
import math
import weakref

import pytest

from millrace_server.channels.leases import Lease
from tests.virtual_clock import now


class Watched:
    """A lease, and the times at which it expired."""

    def __init__(self, seconds: float) -> None:
        self.expired_at: list[float] = []
        self.lease = Lease(seconds, self._expire)

    def _expire(self) -> None:
        self.expired_at.append(now())
        self.lease.cancel()


async def test_lease_without_a_call_expires_once() -> None:
    """The lease expires exactly once."""
    watched = Watched(5)
    await asyncio.sleep(100)
    assert watched.expired_at == [5]


async def test_renew_before_the_end_restarts_the_lease() -> None:
    """Each call starts the whole lease again."""
    watched = Watched(5)
    for _ in range(10):
        await asyncio.sleep(4)
        watched.lease.renew()
        assert watched.lease.remaining_seconds == 5
    await asyncio.sleep(100)
    assert watched.expired_at == [45]


@pytest.mark.parametrize(("seconds", "expires_at"), [(1, 2), (50, 51)])
async def test_renew_with_another_length_runs_that_long(seconds: float, expires_at: float) -> None:
    """A renewal may make the lease shorter or longer, from now on."""
    watched = Watched(5)
    await asyncio.sleep(1)
    watched.lease.renew(seconds)
    assert watched.lease.seconds == watched.lease.remaining_seconds == seconds
    await asyncio.sleep(100)
    assert watched.expired_at == [expires_at]


async def test_paused_while_a_call_waits_does_not_run() -> None:
    """A call may wait for much longer than the lease; the lease restarts after it."""
    watched = Watched(5)
    await asyncio.sleep(4)
    with watched.lease.paused():
        await asyncio.sleep(97)
        assert watched.lease.remaining_seconds == 5
    assert watched.lease.remaining_seconds == 5
    await asyncio.sleep(100)
    assert watched.expired_at == [106]


async def test_paused_by_two_calls_runs_when_both_are_back() -> None:
    """The end of the first call does not start the lease while the other one waits."""
    watched = Watched(5)
    with watched.lease.paused():
        with watched.lease.paused():
            await asyncio.sleep(3)
        await asyncio.sleep(20)
        assert watched.expired_at == []
    await asyncio.sleep(100)
    assert watched.expired_at == [28]


async def test_paused_by_a_call_that_fails_runs_on() -> None:
    """An error ends the pause as a result does."""
    watched = Watched(5)

    async def fail() -> None:
        with watched.lease.paused():
            await asyncio.sleep(7)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await fail()
    await asyncio.sleep(100)
    assert watched.expired_at == [12]


async def test_cancel_before_the_end_never_expires() -> None:
    """A late call cannot revive the lease by renewing or pausing it."""
    watched = Watched(5)
    watched.lease.cancel()
    watched.lease.renew()
    watched.lease.renew(1)
    with watched.lease.paused():
        await asyncio.sleep(1)
    await asyncio.sleep(100)
    assert watched.expired_at == []
    assert watched.lease.remaining_seconds == 0


async def test_remaining_seconds_as_time_passes_count_down() -> None:
    """The value is the time that is left."""
    watched = Watched(5)
    await asyncio.sleep(1.5)
    assert watched.lease.remaining_seconds == 3.5


async def test_lease_without_an_end_never_expires_and_may_be_paused_and_cancelled() -> None:
    """It lasts as long as its owner."""
    watched = Watched(math.inf)
    await asyncio.sleep(10_000)
    with watched.lease.paused():
        await asyncio.sleep(10_000)
    assert watched.lease.remaining_seconds == math.inf
    watched.lease.cancel()
    assert watched.expired_at == []


async def test_lease_that_was_cancelled_releases_its_owner() -> None:
    """The references between them are removed, so that no garbage collection is needed."""
    gc.disable()
    try:
        watched = Watched(5)
        gone = weakref.ref(watched)
        watched.lease.cancel()
        del watched
        assert gone() is None
    finally:
        gc.enable()
