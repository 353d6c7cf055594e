"""How often work on the same events has failed here."""

from collections import OrderedDict

PLACES_MAX = 10_000
"""As many places are remembered; the ones whose failure is longest ago are forgotten first."""


class Attempts:
    """Counts failures by the place where a delivery begins.

    The wire does not count deliveries, and a server may cut events that returned into other deliveries than before. So
    the numbers are as good as this consumer can know them.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, int], int] = OrderedDict()

    def number_of(self, lane_name: str, first_sequence: int) -> int:
        """The number of the attempt that comes now, from 1."""
        return self._failures.get((lane_name, first_sequence), 0) + 1

    def note_failure(self, lane_name: str, first_sequence: int) -> int:
        """Counts a failure; returns how many there were in a row."""
        place = lane_name, first_sequence
        failures = self._failures[place] = self._failures.pop(place, 0) + 1
        if len(self._failures) > PLACES_MAX:
            self._failures.popitem(last=False)
        return failures

    def forget(self, lane_name: str, first_sequence: int) -> None:
        """Forgets a place that was got past."""
        self._failures.pop((lane_name, first_sequence), None)
