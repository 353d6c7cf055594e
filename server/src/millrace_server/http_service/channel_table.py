"""The samples of many channels as text, which is the same in both of Prometheus' formats.

With thousands of channels, creating the library's objects for each sample, or even executing a statement for each,
would take most of the time of a scrape.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, compress

from prometheus_client import Metric

SLICE_CHANNELS = 1000
"""Number of channels whose samples are written at once, which takes about a millisecond."""


class ChannelTable:
    """The metrics of many channels. Values are added channel by channel, and written metric by metric.

    The only label is `channel`; names of channels need no escaping.
    """

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families
        self._names = list[str]()
        self._rows = list[Sequence[float | None]]()
        self._slices = list[tuple[list[str], list[tuple[float | None, ...]]]]()

    def add(self, channel: str, values: Sequence[float | None]) -> None:
        """Adds a channel's values of all metrics; None means no sample."""
        self._names.append(channel)
        self._rows.append(values)
        if len(self._rows) == SLICE_CHANNELS:
            self._end_slice()

    def _end_slice(self) -> None:
        self._slices.append((self._names, [*zip(*self._rows, strict=True)]))
        self._names, self._rows = [], []

    def families(self) -> Iterator[tuple[Metric, Iterator[str]]]:
        """Yields each metric, without samples, and its samples in pieces."""
        if self._rows:
            self._end_slice()
        for index, family in enumerate(self._families):
            yield family, self._samples(family, index)

    def _samples(self, family: Metric, index: int) -> Iterator[str]:
        start = f'{family.name}{"_total" * (family.type == "counter")}{{channel="'
        return filter(None, (_lines(start, names, columns[index]) for names, columns in self._slices))


def _lines(start: str, names: Sequence[str], values: Sequence[float | None]) -> str:
    # One operation for all lines takes a fraction of the time of one per line.
    if values.count(values[0]) == len(values):
        # As for most metrics of idle channels. Repeating one number takes a tenth of the time of formatting each.
        end = f'"}} {values[0]}\n'
        return "" if values[0] is None else start + f"{end}{start}".join(names) + end
    if None in values:
        is_present = [value is not None for value in values]
        names, values = [*compress(names, is_present)], [*compress(values, is_present)]
    return f'{start}%s"}} %s\n' * len(names) % tuple(chain.from_iterable(zip(names, values, strict=True)))
