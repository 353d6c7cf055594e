import asyncio
from functools import partial

from millrace_server.agent.sources.avro.request_memory import RequestMemory

HAS_VIRTUAL_CLOCK = True


class Scene:
    """A memory of 800 bytes, and the connections that it closed."""

    def __init__(self) -> None:
        self.memory = RequestMemory(800)
        self.closed: list[str] = []

    def arrive(self, name: str, byte_count: int) -> None:
        self.memory.note_arriving(name, byte_count, partial(self.closed.append, name))

    async def may_read(self, name: str, seconds: float = 0.5) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.memory.wait_for_space(name)
        except TimeoutError:
            return False
        return True


async def test_wait_for_space_while_requests_are_stored_ends_with_them() -> None:
    """Half of the memory is for what is being stored; more waits, however long that takes."""
    scene = Scene()
    with scene.memory.storing(300):
        assert await scene.may_read("new")
        with scene.memory.storing(100):
            assert not await scene.may_read("new", 1_000)
            waiting = asyncio.create_task(scene.may_read("new", 10))
            await asyncio.sleep(0)
        assert await waiting
    assert scene.closed == []


async def test_wait_for_space_while_many_arrive_lets_the_first_go_on() -> None:
    """Honest requests are complete one after the other, and none is given up."""
    scene = Scene()
    scene.arrive("a", 100)
    scene.arrive("b", 100)
    assert await scene.may_read("a")
    waiting = asyncio.create_task(scene.may_read("b"))
    await asyncio.sleep(0)
    assert not waiting.done()
    scene.arrive("a", 0)
    assert await waiting
    assert scene.closed == []


async def test_wait_for_space_while_the_first_is_slow_gives_it_up() -> None:
    """A slow sender holds others up for a second at most."""
    scene = Scene()
    scene.arrive("slow", 150)
    scene.arrive("b", 100)
    assert await scene.may_read("new", 5)
    assert scene.closed == ["slow"]


async def test_note_arriving_above_the_limit_gives_the_first_up_at_once() -> None:
    """What compressed requests become at once is bounded, too."""
    scene = Scene()
    scene.arrive("a", 300)
    scene.arrive("b", 350)
    assert scene.closed == ["a"]
    assert await scene.may_read("b")
    scene.arrive("b", 0)
    scene.arrive("a", 0)
    assert await scene.may_read("new")
