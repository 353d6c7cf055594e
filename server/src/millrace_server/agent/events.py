"""Events on their way through an agent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress

from millrace.columns import HEADER_KEYS_MAX, columns_from_events
from millrace.v1 import event_pb2
from millrace_server.channels.batches import StoredColumns, Window

HeaderValues = str | Sequence[str | None]
"""A header of many events: one value that all of them have, or for each event its value, None where it has none."""


class EventTable:
    """Events as columns of Python values: cheap to give a header to, however many they are.

    Attributes:
        bodies: The body of each event.
        headers: Each header's values by its key.
        places: The place of each event in the batch that its source handed over; None where nobody knows.
    """

    __slots__ = ("bodies", "headers", "places")

    def __init__(self, bodies: Sequence[bytes], headers: Mapping[str, HeaderValues] | None = None) -> None:
        self.bodies = bodies
        self.headers: dict[str, HeaderValues] = dict(headers or {})
        self.places: Sequence[int] | None = None

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[Mapping[str, str], bytes]]) -> "EventTable":
        """The table of events that come one by one, each with its headers and its body."""
        bodies: list[bytes] = []
        columns: dict[str, list[str | None]] = {}
        for headers, body in rows:
            for key, value in headers.items():
                column = columns.setdefault(key, [])
                column += [None] * (len(bodies) - len(column))
                column.append(value)
            bodies.append(body)
        for values in columns.values():
            values.extend([None] * (len(bodies) - len(values)))
        return cls(bodies, columns)

    @classmethod
    def of_windows(cls, windows: Iterable[Window]) -> "EventTable":
        """The table of events that a channel holds."""
        return cls.of_rows(row for window in windows for row in window.rows())

    @property
    def count(self) -> int:
        """Events in the table."""
        return len(self.bodies)

    def values(self, key: str) -> Sequence[str | None]:
        """For each event its value of a header; None where it has none."""
        values = self.headers.get(key)
        if values is None or isinstance(values, str):
            return [values] * self.count
        return values

    def fill(self, key: str, values: HeaderValues) -> None:
        """Sets a header where an event has none; the others keep theirs."""
        present = self.headers.get(key)
        if present is None:
            self.headers[key] = values
        elif not isinstance(present, str):
            offered = [values] * self.count if isinstance(values, str) else values
            self.headers[key] = [new if old is None else old for old, new in zip(present, offered, strict=True)]

    def give(self, key: str, values: HeaderValues, *, preserve_existing: bool) -> None:
        """Sets a header of all events, or only of those that have none."""
        if preserve_existing:
            self.fill(key, values)
        else:
            self.headers[key] = values

    def chosen(self, is_chosen: Sequence[bool]) -> "EventTable":
        """The events for which it is true, in their order."""
        headers = {
            key: values if isinstance(values, str) else list(compress(values, is_chosen))
            for key, values in self.headers.items()
        }
        chosen = EventTable(list(compress(self.bodies, is_chosen)), headers)
        if self.places is not None:
            chosen.places = list(compress(self.places, is_chosen))
        return chosen

    def part(self, start: int, stop: int) -> "EventTable":
        """The events from one index to another (excluded), in a table of their own."""
        headers = {
            key: values if isinstance(values, str) else values[start:stop] for key, values in self.headers.items()
        }
        part = EventTable(self.bodies[start:stop], headers)
        if self.places is not None:
            part.places = self.places[start:stop]
        return part

    def rows(self) -> Iterator[tuple[dict[str, str], bytes]]:
        """For each event its headers and its body."""
        columns = [(key, self.values(key)) for key in self.headers]
        for index, body in enumerate(self.bodies):
            yield {key: value for key, values in columns if (value := values[index]) is not None}, body

    def _encodable_rows(self) -> Iterator[tuple[dict[str, str], bytes]]:
        for headers, body in self.rows():
            yield {key: _encodable(value) for key, value in headers.items()}, body

    def stored(self) -> list[StoredColumns]:
        """The events as channels keep them: one batch, several where there are many keys, none for no events."""
        if not self.bodies:
            return []
        if len(self.headers) > HEADER_KEYS_MAX:
            return [StoredColumns.of(columns) for columns in columns_from_events(self._encodable_rows())]
        columns = event_pb2.EventColumns(
            count=self.count,
            body_sizes=list(map(len, self.bodies)),
            bodies=b"".join(self.bodies),
            headers=[column for key, values in self.headers.items() if (column := _column(key, values))],
        )
        return [StoredColumns.of(columns)]


def _encodable(value: str) -> str:
    # What came as broken UTF-8 may have no encoding; an event is worth more than a character.
    return value.encode(errors="replace").decode()


def _column(key: str, values: HeaderValues) -> event_pb2.HeaderColumn | None:
    # As in `_encodable`.
    if isinstance(values, str):
        encoded = values.encode(errors="replace")
        return event_pb2.HeaderColumn(key=key, sizes=[len(encoded) + 1], values=encoded)
    cells = [None if value is None else value.encode(errors="replace") for value in values]
    sizes = [0 if cell is None else len(cell) + 1 for cell in cells]
    if not any(sizes):
        return None
    return event_pb2.HeaderColumn(key=key, sizes=sizes, values=b"".join(filter(None, cells)))
