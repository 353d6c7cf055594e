"""The ranges of numbers that a source finds stored when it starts."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence

from millrace_server.agent.channel_writer import ChannelWriter

_LOOP_SECONDS_MAX = 60.0
"""How long a thread waits for the event loop; the limit is never reached while the loop runs."""

Ranges = Sequence[Sequence[tuple[int, int]]]
"""The numbers of a producer that each channel has stored, as ascending ranges, both ends included."""


def boundaries_after(position: int, ranges: Ranges) -> list[int]:
    """Returns the numbers after a position where a stored range of some channel begins or ends, ascending.

    A batch must not cross any of them: some channel would have stored it in part.
    """
    boundaries = {boundary for of_one in ranges for first, last in of_one for boundary in (first, last + 1)}
    return sorted(boundary for boundary in boundaries if boundary > position)


def asked_by_threads(writer: ChannelWriter, loop: asyncio.AbstractEventLoop) -> Callable[[str], Ranges]:
    """Returns a function with which a source's threads query the stored ranges of a producer from the event loop."""

    async def ask(producer_id: str) -> Ranges:
        return writer.stored_ranges(producer_id)

    return lambda producer_id: asyncio.run_coroutine_threadsafe(ask(producer_id), loop).result(_LOOP_SECONDS_MAX)


class StoredRanges:
    """The stored ranges of a producer whose numbers begin at 0.

    Channels differ only after a crash between the commits of two channels. Events that only some of them have stored
    are then read again, in the same chunks.

    Attributes:
        position: All channels have stored the numbers before this one.
    """

    def __init__(self, ranges: Ranges) -> None:
        self.position = min((self._first_end(of_one) for of_one in ranges), default=0)
        self._boundaries = boundaries_after(self.position, ranges)

    @staticmethod
    def _first_end(ranges: Sequence[tuple[int, int]]) -> int:
        return ranges[0][1] + 1 if ranges and ranges[0][0] == 0 else 0

    def next_boundary(self, position: int) -> int | None:
        """Returns the first boundary after a position, where a batch must end; or None."""
        index = bisect_right(self._boundaries, position)
        return self._boundaries[index] if index < len(self._boundaries) else None
