import asyncio
import ctypes
import gc
import platform

import pytest

from millrace_server.process import memory
from millrace_server.process.memory import tuned_allocator, tuned_garbage_collector


class FakeLibrary:
    """A C library that records the options set."""

    def __init__(self) -> None:
        self.options: dict[int, int] = {}
        self.is_returned = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def mallopt(self, option: int, value: int) -> int:
        self.options[option] = value
        return 1

    def malloc_trim(self, kept_bytes: int) -> int:
        self._loop.call_soon_threadsafe(self.is_returned.set)
        return 1


def library_is(monkeypatch: pytest.MonkeyPatch, library: object) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)


async def test_tuned_allocator_returns_memory_while_it_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed memory is returned periodically until the server has stopped."""
    library = FakeLibrary()
    library_is(monkeypatch, library)
    monkeypatch.setattr(memory, "_TRIM_SECONDS", 0.001)
    async with tuned_allocator():
        for _ in range(3):
            library.is_returned.clear()
            await asyncio.wait_for(library.is_returned.wait(), 20)
        [returning] = asyncio.all_tasks() - {asyncio.current_task()}
    with pytest.raises(asyncio.CancelledError):
        await returning


async def test_tuned_allocator_keeps_some_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reserve for the next request is kept, and large blocks are returned."""
    library = FakeLibrary()
    library_is(monkeypatch, library)
    async with tuned_allocator():
        assert sorted(library.options.values()) == [4 << 20, 4 << 20, 64 << 20]


async def test_tuned_allocator_with_another_library_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server runs with any C library."""
    library_is(monkeypatch, object())
    async with tuned_allocator():
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_glibc_takes_the_options() -> None:
    """This glibc knows the options and accepts their values."""
    library = ctypes.CDLL(None)
    assert library.mallopt(memory._M_MMAP_THRESHOLD, memory._MAPPED_BYTES_MIN) == 1
    assert library.mallopt(memory._M_TRIM_THRESHOLD, memory._KEPT_BYTES) == 1
    assert library.mallopt(memory._M_TOP_PAD, memory._MAPPED_BYTES_MIN) == 1


class ReferenceCycle:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.ring = self


def test_tuned_garbage_collector_leaves_alone_what_there_is_and_finds_what_comes() -> None:
    """Collections are rarer while the server runs, and cover new objects; afterwards the defaults are restored."""
    threshold, frozen_count = gc.get_threshold(), gc.get_freeze_count()
    ReferenceCycle()
    with tuned_garbage_collector():
        assert gc.get_threshold()[0] > threshold[0]
        assert gc.get_freeze_count() > frozen_count
        gc.collect()
        ReferenceCycle()
        assert gc.collect() > 0
    assert gc.get_threshold() == threshold
    assert gc.get_freeze_count() == 0
