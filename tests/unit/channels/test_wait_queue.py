import asyncio

import pytest

from millrace_server.channels.admission import Waiter, WaitQueue
from tests.virtual_clock import now, settle, started


class Call:
    """A call that waits in a queue until it is woken as often as it wants."""

    def __init__(self, line: WaitQueue, name: str, log: list[str], *, wakes: int = 1) -> None:
        self._queue = line
        self._name = name
        self._log = log
        self._wakes = wakes

    async def wait(self, seconds: float = 10, *, at_front: bool = False) -> None:
        with self._queue.join(at_front=at_front) as waiter:
            for _ in range(self._wakes):
                is_woken = await waiter.wait(seconds)
                self._log.append(f"{self._name} {'woken' if is_woken else 'in vain'}")


async def test_wait_without_time_responds_at_once() -> None:
    """A call without time does not even yield to other tasks."""
    with pytest.raises(StopIteration) as ended:
        Waiter().wait(0).send(None)
    assert ended.value.value is False
    assert await Waiter().wait(-1) is False


async def test_wait_without_a_wake_up_ends_in_time() -> None:
    """The wait takes exactly the requested time, and leaves nothing behind."""
    line, log = WaitQueue(), list[str]()
    await Call(line, "a", log).wait(2.5)
    assert (now(), log, len(line)) == (2.5, ["a in vain"], 0)


async def test_wake_next_with_many_waiting_wakes_the_first() -> None:
    """One wake-up is for the one call that came first."""
    line, log = WaitQueue(), list[str]()
    for name in "abc":
        await started(Call(line, name, log).wait())
    line.wake_next()
    await settle()
    assert (log, len(line)) == (["a woken"], 2)
    line.wake_next()
    line.wake_next()
    await settle()
    assert log == ["a woken", "b woken"]


async def test_wake_next_when_the_first_finds_nothing_keeps_its_place() -> None:
    """A caller that was woken in vain remains before later callers."""
    line, log = WaitQueue(), list[str]()
    await started(Call(line, "a", log, wakes=2).wait())
    await started(Call(line, "b", log).wait())
    for _ in range(3):
        line.wake_next()
        await settle()
    assert log == ["a woken", "a woken", "b woken"]


async def test_place_at_the_front_comes_before_all() -> None:
    """A place may be taken ahead of the queue."""
    line, log = WaitQueue(), list[str]()
    await started(Call(line, "a", log).wait())
    await started(Call(line, "b", log).wait(at_front=True))
    line.wake_next()
    await settle()
    assert log == ["b woken"]


async def test_wake_all_wakes_everybody_once() -> None:
    """All check again, in order, and keep their places."""
    line, log = WaitQueue(), list[str]()
    for name in "abc":
        await started(Call(line, name, log, wakes=2).wait())
    line.wake_all()
    line.wake_all()
    await settle()
    assert log == ["a woken", "b woken", "c woken"]
    line.wake_next()
    await settle()
    assert log[3:] == ["a woken"]


async def test_wake_next_on_an_empty_line_does_nothing() -> None:
    """A wake-up is not stored for later calls."""
    line, log = WaitQueue(), list[str]()
    line.wake_next()
    line.wake_all()
    await Call(line, "a", log).wait(1)
    assert log == ["a in vain"]


async def test_wake_of_one_whose_time_just_passed_does_not_count_twice() -> None:
    """A call ends once, even if it is woken at the moment of its timeout."""
    line, log = WaitQueue(), list[str]()
    asyncio.get_running_loop().call_at(1, line.wake_next)
    await Call(line, "a", log).wait(1)
    assert len(log) == 1


async def test_place_of_a_cancelled_call_is_given_up() -> None:
    """A cancelled call leaves the line, whether it was woken before or not, and its timer is gone."""
    line, log = WaitQueue(), list[str]()
    calls = [await started(Call(line, name, log).wait()) for name in "ab"]
    line.wake_next()
    for call in calls:
        call.cancel()
    await settle()
    assert all(call.is_cancelled for call in calls)
    assert (log, len(line)) == ([], 0)
