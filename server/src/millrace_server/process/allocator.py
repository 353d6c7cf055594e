"""What the C library does with freed memory.

Requests and stored batches are large blocks that come and go. Left alone, glibc gets many of them from the kernel one
by one and gives them back as soon as they are free, which takes an append a tenth of its time; and what lies between
small things that live on, it never gives back. So the server has it keep some memory for the next request, and has it
return all the rest every few seconds.
"""

import asyncio
import ctypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_MIB = 1 << 20
_KEPT_BYTES = 64 * _MIB
_MAPPED_BYTES_MIN = 4 * _MIB
"""Larger blocks are the kernel's at once: they are rare, and would leave large holes."""

_RETURN_SECONDS = 5.0

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3


@asynccontextmanager
async def tended_allocator() -> AsyncIterator[None]:
    """Inside, freed memory is kept for a while and then returned. Does nothing where the C library is not glibc."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
    library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    library.mallopt(_M_TOP_PAD, _MAPPED_BYTES_MIN)
    returning = asyncio.create_task(_return_freed_memory(library))
    try:
        yield
    finally:
        returning.cancel()


async def _return_freed_memory(library: ctypes.CDLL) -> None:
    while True:
        await asyncio.sleep(_RETURN_SECONDS)
        # On another thread: with very many small holes it takes a tenth of a second.
        await asyncio.to_thread(library.malloc_trim, _MAPPED_BYTES_MIN)
