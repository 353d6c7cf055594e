"""Which of a chunk's events go to which directory."""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from millrace_server.agent.sinks.files.chunks import EventChunk
from millrace_server.agent.sinks.files.event_times import TimeRule, read_time
from millrace_server.agent.sinks.files.path_template import PathTemplate

PATHS_REMEMBERED_MAX = 10_000
"""Paths that need not be made anew for the next event with the same headers and time."""

ItemT = TypeVar("ItemT")

Rows: TypeAlias = Sequence[int]
"""Events of a chunk by their indexes, ascending; a range where they are neighbours."""


def chosen(items: Sequence[ItemT], rows: Rows) -> Sequence[ItemT]:
    """Those of a chunk's items that belong to the events at these indexes."""
    if len(rows) == len(items):
        return items
    if isinstance(rows, range):
        return items[rows.start : rows.stop]
    return [items[row] for row in rows]


class PathRules(NamedTuple):
    """How an event's path is made."""

    template: PathTemplate
    """The path."""
    times: TimeRule
    """How times are written in it."""
    time_header: str
    """The header that tells an event's time."""
    missing: str
    """What stands for a header, or a time, that an event does not have."""
    is_clock_used: bool
    """Take the clock's time for an event that has none of its own."""


class Partitioner:
    """Sorts events by the directories that their paths lead to.

    Args:
        rules: How the paths are made.
        clock: The time in seconds since 1970.
    """

    def __init__(self, rules: PathRules, clock: Callable[[], float] = time.time) -> None:
        self._rules = rules
        self._keys = rules.template.header_keys
        self._clock = clock
        self._path_of = lru_cache(PATHS_REMEMBERED_MAX)(self._make_path)

    def split(self, chunk: EventChunk) -> dict[str, Rows]:
        """For each directory the events that go to it."""
        constants = [value for key in self._keys if not isinstance(value := chunk.headers.get(key), list)]
        seconds = self._seconds(chunk)
        if not isinstance(seconds, list) and len(constants) == len(self._keys):
            return {self._path_of(seconds, *constants): range(chunk.count)}
        columns = [chunk.header_values(key) for key in self._keys]
        times = seconds if isinstance(seconds, list) else [seconds] * chunk.count
        # By headers and times first, since many events have the same and a path costs more than a comparison.
        rows_by_values: dict[tuple[Any, ...], list[int]] = {}
        for row, values in enumerate(zip(times, *columns, strict=True)):
            rows_by_values.setdefault(values, []).append(row)
        rows_by_path: dict[str, list[int]] = {}
        for (moment, *others), rows in rows_by_values.items():
            rows_by_path.setdefault(self._path_of(moment, *others), []).extend(rows)
        if len(rows_by_path) == 1:
            return dict.fromkeys(rows_by_path, range(chunk.count))
        if len(rows_by_path) < len(rows_by_values):
            for rows in rows_by_path.values():
                rows.sort()
        return dict(rows_by_path)

    def _seconds(self, chunk: EventChunk) -> "int | list[int | None] | None":
        """The time of all events where they have the same, else of each."""
        if not self._rules.template.has_time:
            return None
        now = int(self._clock()) if self._rules.is_clock_used else None
        told = chunk.headers.get(self._rules.time_header)
        if isinstance(told, list):
            return [now if text is None or (seconds := read_time(text)) is None else seconds for text in told]
        if told is None or (seconds := read_time(told)) is None:
            return now
        return seconds

    def _make_path(self, seconds: int | None, *values: str | None) -> str:
        rules = self._rules
        headers = dict(zip(self._keys, values, strict=True))
        return rules.template.fill(headers, seconds, rules.times, rules.missing)
