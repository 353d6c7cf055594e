"""Settings of glibc's allocator and of Python's garbage collector that suit a server."""

import asyncio
import ctypes
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from millrace.units import MIB

_KEPT_BYTES = 64 * MIB
_MAPPED_BYTES_MIN = 4 * MIB
"""Larger blocks are returned to the kernel at once: they are rare, and would leave large holes."""

_TRIM_SECONDS = 5.0

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

_YOUNGEST_GENERATION_THRESHOLD = 5_000
"""Allocations between collections of the youngest generation; Python's default is 700."""


@asynccontextmanager
async def tuned_allocator() -> AsyncIterator[None]:
    """Keeps some freed memory for the next request and returns the rest to the kernel every few seconds.

    Does nothing if the C library is not glibc.
    """
    # Requests and stored batches are large, short-lived blocks. By default glibc gets many of them from the kernel one
    # by one and returns them when they are freed, which takes a tenth of the time of an append; and it never returns
    # the holes between small, long-lived objects.
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
    library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    library.mallopt(_M_TOP_PAD, _MAPPED_BYTES_MIN)
    trimming = asyncio.create_task(_trim_periodically(library))
    try:
        yield
    finally:
        trimming.cancel()


async def _trim_periodically(library: ctypes.CDLL) -> None:
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        # On another thread: with very many small holes it takes a tenth of a second.
        await asyncio.to_thread(library.malloc_trim, _MAPPED_BYTES_MIN)


@contextmanager
def tuned_garbage_collector() -> Iterator[None]:
    """Collects less often, and never scans the objects that exist already."""
    # Queued batches live long and form no cycles, and the cycles that a call leaves behind, gRPC's own, are small. With
    # the defaults the collector takes a sixth of the time of a small append.
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNGEST_GENERATION_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
