import asyncio

import pytest

from millrace_server.agent import failover as failover_module
from millrace_server.agent.failover import Failover
from tests.waiting import until


class FakeSink:
    """Records its calls; yields when its reader is closed, or only when it is cancelled."""

    def __init__(self) -> None:
        self.failover: Failover
        self.priority = 0
        self.is_stubborn = False
        self.reported: list[str] = []

    def close_reader(self) -> None:
        self.reported.append("close_reader")
        if not self.is_stubborn:
            self.failover.release(self.priority, has_failed=False)

    def cancel(self) -> None:
        self.reported.append("cancel")
        self.failover.release(self.priority, has_failed=False)


@pytest.fixture
async def sinks() -> list[FakeSink]:
    return [FakeSink() for _ in range(3)]


@pytest.fixture
async def failover(sinks: list[FakeSink]) -> Failover:
    failover = Failover(sinks)
    for priority, sink in enumerate(sinks):
        sink.failover, sink.priority = failover, priority
    return failover


async def fail(failover: Failover, priority: int) -> None:
    assert await failover.acquire(priority)
    failover.release(priority, has_failed=True)


async def test_acquire_makes_only_the_first_active(failover: Failover) -> None:
    """While it is healthy no other sink is first, whether it has begun or not."""
    assert [failover.is_first(priority) for priority in range(3)] == [True, False, False]
    assert await failover.acquire(0)
    assert await failover.acquire(0)
    assert not await failover.acquire(1)
    assert not await failover.acquire(2)


async def test_wait_until_first_ends_when_all_with_higher_priority_have_failed(failover: Failover) -> None:
    """The third sink waits for the second to fail too."""
    waiting = [asyncio.create_task(failover.wait_until_first(priority)) for priority in (1, 2)]
    await fail(failover, 0)
    await until(waiting[0].done)
    assert not waiting[1].done()
    await fail(failover, 1)
    await asyncio.gather(*waiting)


async def test_acquire_with_higher_priority_preempts_the_active_one(failover: Failover, sinks: list[FakeSink]) -> None:
    """It waits until the other has ended: two never work at the same time."""
    await fail(failover, 0)
    assert await failover.acquire(1)
    failover.record_progress()
    sinks[1].is_stubborn = True
    beginning = asyncio.create_task(failover.acquire(0))
    await until(lambda: sinks[1].reported == ["close_reader"])
    assert not beginning.done()
    assert not failover.is_first(1)
    failover.release(1, has_failed=False)
    assert await beginning
    assert not await failover.acquire(1)


async def test_acquire_does_not_wait_for_one_that_never_ends(
    failover: Failover, sinks: list[FakeSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink may hang in a call to a dead server; it is cancelled."""
    monkeypatch.setattr(failover_module, "HANDOVER_SECONDS_MAX", 0.01)
    await fail(failover, 0)
    assert await failover.acquire(1)
    failover.record_progress()
    sinks[1].is_stubborn = True
    assert await failover.acquire(0)
    assert sinks[1].reported == ["close_reader", "cancel"]


async def test_acquire_that_waits_yields_to_a_higher_priority(failover: Failover, sinks: list[FakeSink]) -> None:
    """If both recover at once, the higher priority wins."""
    await fail(failover, 0)
    await fail(failover, 1)
    assert await failover.acquire(2)
    failover.record_progress()
    sinks[2].is_stubborn = True
    second = asyncio.create_task(failover.acquire(1))
    await until(lambda: bool(sinks[2].reported))
    first = asyncio.create_task(failover.acquire(0))
    await asyncio.sleep(0)
    failover.release(2, has_failed=False)
    assert (await first, await second) == (True, False)


async def test_release_of_an_inactive_one_changes_nothing_for_the_active_one(failover: Failover) -> None:
    """A sink that fails before it became active does not end the active one."""
    await fail(failover, 0)
    assert await failover.acquire(1)
    failover.record_progress()
    failover.release(0, has_failed=True)
    assert await failover.acquire(1)
    assert not await failover.acquire(2)


async def test_wait_until_first_of_one_that_failed_lets_the_others_go_first(failover: Failover) -> None:
    """Two sinks that fail slowly and recover quickly must not keep the third from being tried."""
    await fail(failover, 0)
    await fail(failover, 1)
    assert not await failover.acquire(0)
    assert failover.has_failed(0)
    assert await failover.acquire(2)
    waiting = asyncio.create_task(failover.wait_until_first(0))
    await asyncio.sleep(0)
    assert not waiting.done()
    failover.record_progress()
    await waiting
    assert await failover.acquire(0)


async def test_release_of_the_last_that_had_not_failed_starts_over(failover: Failover) -> None:
    """Once all have failed, the order is that of the list."""
    for priority in range(3):
        await fail(failover, priority)
    assert [failover.is_first(priority) for priority in range(3)] == [True, True, True]
    assert await failover.acquire(1)
    assert await failover.acquire(0)
    assert not failover.is_first(1)
