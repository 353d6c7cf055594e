"""The memory for requests, which the connections of a source share."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

_TURN_SECONDS = 1.0
"""While memory is short, the oldest incomplete request has this much time to become complete."""


class _Arriving(NamedTuple):
    byte_count: int
    began: float
    close: Callable[[], None]


class RequestMemory:
    """Limits the memory for requests: half of it is for requests that are being stored, half for incomplete ones.

    Requests that are being stored end by themselves, so further ones can wait for them. Incomplete requests may never
    end, since their senders may be slow or gone. So if these use half of their share, only the oldest one is read
    further, and is given up if it takes too long. It is also given up if they use all of their share, which compressed
    requests may do suddenly.
    """

    def __init__(self, bytes_max: int) -> None:
        self._half = bytes_max // 2
        self._storing_bytes = 0
        self._arriving_bytes = 0
        # In the order of their beginning.
        self._arriving: dict[object, _Arriving] = {}
        self._has_changed = asyncio.Event()

    async def wait_for_space(self, connection: object) -> None:
        """Waits until a connection may read more."""
        while not self._may_read(connection):
            self._has_changed.clear()
            try:
                async with asyncio.timeout(_TURN_SECONDS):
                    await self._has_changed.wait()
            except TimeoutError:
                self._give_up_slow()

    def _may_read(self, connection: object) -> bool:
        if self._storing_bytes >= self._half:
            return False
        return self._arriving_bytes < self._half // 2 or connection is next(iter(self._arriving))

    def _give_up_slow(self) -> None:
        is_short = self._arriving_bytes >= self._half // 2 and self._storing_bytes < self._half
        oldest = next(iter(self._arriving.values()), None)
        if is_short and oldest and asyncio.get_running_loop().time() - oldest.began >= _TURN_SECONDS:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        oldest = next(iter(self._arriving))
        given_up = self._arriving.pop(oldest)
        self._arriving_bytes -= given_up.byte_count
        self._has_changed.set()
        given_up.close()

    @contextmanager
    def storing(self, byte_count: int) -> Iterator[None]:
        """Counts a request for as long as it is being stored."""
        self._storing_bytes += byte_count
        try:
            yield
        finally:
            self._storing_bytes -= byte_count
            self._has_changed.set()

    def note_arriving(self, connection: object, byte_count: int, close: Callable[[], None]) -> None:
        """Notes how much of a request a connection has received; 0 if none is incomplete."""
        former = self._arriving.get(connection)
        self._arriving_bytes += byte_count - (former.byte_count if former else 0)
        if byte_count:
            began = former.began if former else asyncio.get_running_loop().time()
            self._arriving[connection] = _Arriving(byte_count, began, close)
        elif former:
            del self._arriving[connection]
            self._has_changed.set()
        while self._arriving_bytes > self._half:
            self._give_up_oldest()
