"""Gzip compression of large texts while they are sent."""

import asyncio
import zlib
from collections.abc import AsyncIterator

_AT_ONCE_BYTES = 256 << 10
"""Bytes that a thread compresses in one call: enough that the calls themselves take little time."""

_LEVEL = 1
"""Metrics shrink to a twentieth; higher levels take several times as long."""

_GZIP_FORMAT = 16 + zlib.MAX_WBITS


async def gzipped(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields a gzip file of all parts, compressed on threads: zlib releases the interpreter's lock."""
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP_FORMAT)
    waiting = bytearray()
    async for part in parts:
        waiting += part
        if len(waiting) >= _AT_ONCE_BYTES:
            yield await asyncio.to_thread(compressor.compress, bytes(waiting))
            waiting.clear()
    yield compressor.compress(bytes(waiting)) + compressor.flush()
