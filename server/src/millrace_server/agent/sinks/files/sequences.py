"""Sets of sequences, as ranges."""

from array import array
from collections.abc import Iterator

from millrace_server.agent.sinks.files.partitions import Rows


class SequenceRanges:
    """Sequences that are added in ascending order, most of them neighbours: 16 bytes a range."""

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, both ends included."""
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def first(self) -> int:
        """The lowest sequence."""
        return min(self._firsts)

    @property
    def last(self) -> int:
        """The highest sequence."""
        return max(self._lasts)

    def add(self, first_sequence: int, rows: Rows) -> None:
        """Adds the sequences of events at these indexes of a chunk that begins with `first_sequence`."""
        if isinstance(rows, range):
            self._add_range(first_sequence + rows.start, first_sequence + rows.stop - 1)
            return
        firsts, lasts = self._firsts, self._lasts
        end = lasts[-1] + 1 if lasts else -1
        for row in rows:
            sequence = first_sequence + row
            if sequence == end:
                lasts[-1] = sequence
            else:
                firsts.append(sequence)
                lasts.append(sequence)
            end = sequence + 1

    def _add_range(self, first: int, last: int) -> None:
        if self._lasts and self._lasts[-1] + 1 == first:
            self._lasts[-1] = last
        else:
            self._firsts.append(first)
            self._lasts.append(last)
