"""A bare log: responds once the bytes are on the disk, with one sync for all waiting calls, and does nothing else.

This is the best that a server in Python can reach with durable responses: there is no channel, no check of the request,
and no handling of a failing disk.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from zlib_ng.zlib_ng import crc32

_FILE_BYTES = 256 << 20
"""The length at which the file is overwritten from its start."""

_Waiting = tuple[bytes, "asyncio.Future[None]"]


class BareLog:
    """Appends from an event loop's calls to a file, on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.posix_fallocate(self._descriptor, 0, _FILE_BYTES)
        self._position = 0
        self._waiting: deque[_Waiting] = deque()
        self._has_more = threading.Event()
        threading.Thread(target=self._run, name="bare-log", daemon=True).start()

    def append(self, batch: bytes) -> asyncio.Future[None]:
        """Returns a future that is done once the batch is on the disk."""
        future = self._loop.create_future()
        self._waiting.append((batch, future))
        self._has_more.set()
        return future

    def _run(self) -> None:
        while True:
            self._has_more.wait()
            self._has_more.clear()
            group = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if group:
                self._write([batch for batch, _ in group])
                self._loop.call_soon_threadsafe(_respond, group)

    def _write(self, batches: Sequence[bytes]) -> None:
        for batch in batches:
            crc32(batch)
        if self._position + sum(map(len, batches)) > _FILE_BYTES:
            self._position = 0
        self._position += os.pwritev(self._descriptor, batches, self._position)
        os.fdatasync(self._descriptor)


def _respond(group: Sequence[_Waiting]) -> None:
    for _, future in group:
        if not future.done():
            future.set_result(None)
