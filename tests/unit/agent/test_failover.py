import asyncio

import pytest

from millrace_server.agent import failover as failover_module
from millrace_server.agent.failover import Succession
from tests.agent_parts import until


class FakeSink:
    """Counts what it is told; leaves as soon as it is to retire, or only where it is cut off."""

    def __init__(self) -> None:
        self.succession: Succession
        self.rank = 0
        self.is_stubborn = False
        self.told: list[str] = []

    def retire(self) -> None:
        self.told.append("retire")
        if not self.is_stubborn:
            self.succession.leave(self.rank, has_failed=False)

    def cut_off(self) -> None:
        self.told.append("cut off")
        self.succession.leave(self.rank, has_failed=False)


@pytest.fixture
async def sinks() -> list[FakeSink]:
    return [FakeSink() for _ in range(3)]


@pytest.fixture
async def turns(sinks: list[FakeSink]) -> Succession:
    turns = Succession(sinks)
    for rank, sink in enumerate(sinks):
        sink.succession, sink.rank = turns, rank
    return turns


async def fail(turns: Succession, rank: int) -> None:
    assert await turns.begin(rank)
    turns.leave(rank, has_failed=True)


async def test_begin_gives_the_turn_to_the_best_alone(turns: Succession) -> None:
    """While it is well nobody else is wanted, whether it has begun or not."""
    assert [turns.is_wanted(rank) for rank in range(3)] == [True, False, False]
    assert await turns.begin(0)
    assert await turns.begin(0)
    assert not await turns.begin(1)
    assert not await turns.begin(2)


async def test_wait_wanted_ends_when_all_better_ones_have_failed(turns: Succession) -> None:
    """The third's turn comes only after the second's."""
    waiting = [asyncio.create_task(turns.wait_wanted(rank)) for rank in (1, 2)]
    await fail(turns, 0)
    await until(waiting[0].done)
    assert not waiting[1].done()
    await fail(turns, 1)
    await asyncio.gather(*waiting)


async def test_begin_of_a_better_one_has_the_other_retire_first(turns: Succession, sinks: list[FakeSink]) -> None:
    """It has the turn only once the other has left: two never work at the same time."""
    await fail(turns, 0)
    assert await turns.begin(1)
    turns.note_progress()
    sinks[1].is_stubborn = True
    beginning = asyncio.create_task(turns.begin(0))
    await until(lambda: sinks[1].told == ["retire"])
    assert not beginning.done()
    assert not turns.is_wanted(1)
    turns.leave(1, has_failed=False)
    assert await beginning
    assert not await turns.begin(1)


async def test_begin_does_not_wait_for_one_that_never_ends(
    turns: Succession, sinks: list[FakeSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink may hang in a call to somebody who is gone; it is cut off."""
    monkeypatch.setattr(failover_module, "RETIRING_SECONDS_MAX", 0.01)
    await fail(turns, 0)
    assert await turns.begin(1)
    turns.note_progress()
    sinks[1].is_stubborn = True
    assert await turns.begin(0)
    assert sinks[1].told == ["retire", "cut off"]


async def test_begin_that_waits_gives_way_to_a_better_one(turns: Succession, sinks: list[FakeSink]) -> None:
    """Both come back at once; the best has it."""
    await fail(turns, 0)
    await fail(turns, 1)
    assert await turns.begin(2)
    turns.note_progress()
    sinks[2].is_stubborn = True
    second = asyncio.create_task(turns.begin(1))
    await until(lambda: bool(sinks[2].told))
    first = asyncio.create_task(turns.begin(0))
    await asyncio.sleep(0)
    turns.leave(2, has_failed=False)
    assert (await first, await second) == (True, False)


async def test_leave_of_one_without_the_turn_leaves_the_turn_alone(turns: Succession) -> None:
    """A better one that fails before it could begin takes nothing away."""
    await fail(turns, 0)
    assert await turns.begin(1)
    turns.note_progress()
    turns.leave(0, has_failed=True)
    assert await turns.begin(1)
    assert not await turns.begin(2)


async def test_wait_wanted_of_one_that_failed_lets_those_go_first_that_have_not(turns: Succession) -> None:
    """Two that fail slowly and come back quickly would else keep the third from ever trying."""
    await fail(turns, 0)
    await fail(turns, 1)
    assert not await turns.begin(0)
    assert turns.has_failed(0)
    assert await turns.begin(2)
    waiting = asyncio.create_task(turns.wait_wanted(0))
    await asyncio.sleep(0)
    assert not waiting.done()
    turns.note_progress()
    await waiting
    assert await turns.begin(0)


async def test_leave_of_the_last_that_had_not_failed_begins_with_the_best_again(turns: Succession) -> None:
    """Where all have failed, the order is that of the list."""
    for rank in range(3):
        await fail(turns, rank)
    assert [turns.is_wanted(rank) for rank in range(3)] == [True, True, True]
    assert await turns.begin(1)
    assert await turns.begin(0)
    assert not turns.is_wanted(1)
