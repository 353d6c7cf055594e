"""Large texts as gzip, compressed while they are sent."""

import asyncio
import zlib
from collections.abc import AsyncIterator

from starlette.requests import Request

_AT_ONCE_BYTES = 256 << 10
"""Bytes that one call of a thread compresses: enough that the calls themselves take little time."""

_LEVEL = 1
"""Metrics become a twentieth of their size, and higher levels take several times as long."""

_GZIP_FORMAT = 16 + zlib.MAX_WBITS


def accepts_gzip(request: Request) -> bool:
    """Whether the client lists gzip. With a weight, it may not want it, and plain text is always good."""
    return "gzip" in [coding.strip() for coding in request.headers.get("accept-encoding", "").split(",")]


async def gzipped(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields a gzip file of all parts, which threads compress in the meantime: zlib does not need the interpreter."""
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP_FORMAT)
    waiting = bytearray()
    async for part in parts:
        waiting += part
        if len(waiting) >= _AT_ONCE_BYTES:
            yield await asyncio.to_thread(compressor.compress, bytes(waiting))
            waiting.clear()
    yield compressor.compress(bytes(waiting)) + compressor.flush()
