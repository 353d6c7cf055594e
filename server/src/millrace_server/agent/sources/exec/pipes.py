"""Reading a pipe from the event loop."""

import asyncio
import os
from typing import IO


class PipeReader:
    """The end of a pipe that is read; closed once all has been read.

    No transport of the event loop's: uvloop's keeps a pipe open behind its end, and when it closes it, closes its
    number twice, which may be another thread's file by then.

    Args:
        pipe: Belongs to the reader from now on; unbuffered.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe

    async def read(self, bytes_max: int) -> bytes:
        """The next bytes, as soon as there are any; none at the end. Nothing is lost where this is cancelled."""
        if self._pipe.closed:
            return b""
        # Waits even where there is something: a flood must not keep the loop from all else.
        await self._wait_readable()
        while (data := self._pipe.read(bytes_max)) is None:
            await self._wait_readable()
        if not data:
            self._pipe.close()
        return data

    async def _wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._pipe, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._pipe)
