"""Onlookers who see each event as it is committed, and never take it."""

import asyncio
from collections import deque

from millrace_server.channels.batches import StoredBatch

_BATCHES_MAX = 1_000
_BODY_BYTES_MAX = 64 << 20


class Follower:
    """Sees the batches that a channel commits from now on.

    What it has not fetched yet is bounded; a follower that is slower than the channel misses the oldest and is told
    how many.
    """

    def __init__(self) -> None:
        self._batches: deque[StoredBatch] = deque()
        self._body_bytes = 0
        self._skipped = 0
        self._news = asyncio.Event()
        self.is_ended = False

    def offer(self, batch: StoredBatch) -> None:
        """Shows a batch that was committed just now."""
        self._batches.append(batch)
        self._body_bytes += batch.window.body_bytes
        while len(self._batches) > _BATCHES_MAX or (self._body_bytes > _BODY_BYTES_MAX and len(self._batches) > 1):
            missed = self._batches.popleft()
            self._body_bytes -= missed.window.body_bytes
            self._skipped += missed.count
        self._news.set()

    def end(self) -> None:
        """Says that nothing more will come."""
        self.is_ended = True
        self._news.set()

    async def next_batch(self) -> tuple[int, StoredBatch] | None:
        """The next batch, and how many events were missed just before it; None at the end."""
        while not self._batches:
            if self.is_ended:
                return None
            self._news.clear()
            await self._news.wait()
        batch = self._batches.popleft()
        self._body_bytes -= batch.window.body_bytes
        skipped, self._skipped = self._skipped, 0
        return skipped, batch
