"""How much of a file channels have stored already."""

from bisect import bisect_right
from collections.abc import Sequence


class StoredRanges:
    """What channels have stored of one producer whose numbers begin with 0.

    They differ only where a crash came between the commits of two channels. Then what one of them has and another has
    not is read again, in the same pieces.

    Args:
        ranges: For each channel the numbers that it has, as ascending ranges with both ends included.

    Attributes:
        position: All channels have the numbers before it.
    """

    def __init__(self, ranges: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.position = min((self._beginning(of_one) for of_one in ranges), default=0)
        borders = {border for of_one in ranges for first, last in of_one for border in (first, last + 1)}
        self._borders = sorted(border for border in borders if border > self.position)

    @staticmethod
    def _beginning(ranges: Sequence[tuple[int, int]]) -> int:
        return ranges[0][1] + 1 if ranges and ranges[0][0] == 0 else 0

    def next_border(self, position: int) -> int | None:
        """The first number after a position where what some channel has stored begins or ends: a batch must end there.

        Returns:
            None where there is none.
        """
        index = bisect_right(self._borders, position)
        return self._borders[index] if index < len(self._borders) else None
