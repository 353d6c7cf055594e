"""Waiting in a line: for an event, or for room."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager


class Place:
    """One call's place in a waiting line."""

    def __init__(self) -> None:
        self._woken: asyncio.Future[bool] | None = None

    async def wait(self, seconds: float) -> bool:
        """Waits to be woken.

        Returns:
            True where woken, False where the time passed.
        """
        if seconds <= 0:
            return False
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        timer = loop.call_later(seconds, self._stop_waiting, False)
        try:
            return await self._woken
        finally:
            timer.cancel()

    def wake(self) -> None:
        """Has the call look again. One that is not waiting just now does so anyway."""
        self._stop_waiting(is_woken=True)

    def _stop_waiting(self, is_woken: bool) -> None:  # noqa: FBT001 - a timer passes it by position
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(is_woken)


class WaitingLine:
    """Calls that wait for one thing, first come, first served, without a thread each.

    Waking is a hint to the first in the line, which looks again. Whoever finds nothing keeps its place; whoever leaves,
    for whatever reason, wakes the next where there is more to have.
    """

    def __init__(self) -> None:
        self._line: OrderedDict[Place, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    @contextmanager
    def place(self, *, at_front: bool = False) -> Iterator[Place]:
        """A place in the line, held inside: the last, or the first."""
        place = Place()
        self._line[place] = None
        if at_front:
            self._line.move_to_end(place, last=False)
        try:
            yield place
        finally:
            del self._line[place]

    def is_first(self, place: Place) -> bool:
        """Whether nobody came before."""
        return next(iter(self._line)) is place

    def wake_next(self) -> None:
        """Wakes whoever is first."""
        if self._line:
            next(iter(self._line)).wake()

    def wake_all(self) -> None:
        """Wakes everybody."""
        for place in self._line:
            place.wake()
