"""The memory of requests, which the connections of a source share."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class _Arriving(NamedTuple):
    byte_count: int
    close: Callable[[], None]


class RequestMemory:
    """Bounds what requests take.

    Requests that are being stored end by themselves, so further ones can wait for them. Incomplete ones may never end:
    their senders may be slow or gone. A new one must not wait for these, so the one that has been arriving longest is
    given up.
    """

    def __init__(self, bytes_max: int) -> None:
        self._half = bytes_max // 2
        self._storing_bytes = 0
        self._arriving_bytes = 0
        # In the order in which they began.
        self._arriving: dict[object, _Arriving] = {}
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def wait_for_room(self) -> None:
        """Waits while requests that are being stored take their half."""
        while not self._has_room.is_set():
            await self._has_room.wait()

    @contextmanager
    def storing(self, byte_count: int) -> Iterator[None]:
        """Counts a request for as long as it is being stored."""
        self._count_storing(byte_count)
        try:
            yield
        finally:
            self._count_storing(-byte_count)

    def _count_storing(self, byte_count: int) -> None:
        self._storing_bytes += byte_count
        if self._storing_bytes < self._half:
            self._has_room.set()
        else:
            self._has_room.clear()

    def note_arriving(self, connection: object, byte_count: int, close: Callable[[], None]) -> None:
        """Notes how much of a request a connection has received; 0 if none is incomplete.

        If incomplete requests take too much, closes the connections of those that began first.
        """
        former = self._arriving.get(connection)
        self._arriving_bytes += byte_count - (former.byte_count if former else 0)
        if byte_count:
            self._arriving[connection] = _Arriving(byte_count, close)
        else:
            self._arriving.pop(connection, None)
        while self._arriving_bytes > self._half:
            oldest = next(iter(self._arriving))
            given_up = self._arriving.pop(oldest)
            self._arriving_bytes -= given_up.byte_count
            given_up.close()
