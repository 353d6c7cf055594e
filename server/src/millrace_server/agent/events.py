"""Events between a source and its channels."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, overload

from millrace.columns import HEADER_KEYS_MAX, columns_from_events
from millrace.v1 import event_pb2
from millrace.wire_format import field_head
from millrace_server.channels.batches import StoredColumns, Window
from millrace_server.channels.stamps import Stamp

HeaderValues = str | Sequence[str | None]
"""A header of many events: one value for all of them, or one value per event, which is None if it lacks the header."""


class EncodedValues(Sequence[str | None]):
    """ASCII values as they were received, decoded only when they are read, which is rare."""

    __slots__ = ("cells",)

    def __init__(self, cells: Sequence[bytes | None]) -> None:
        self.cells = cells

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Iterator[str | None]:
        return (None if cell is None else cell.decode("ascii") for cell in self.cells)

    @overload
    def __getitem__(self, index: int) -> str | None: ...

    @overload
    def __getitem__(self, index: slice) -> "EncodedValues": ...

    def __getitem__(self, index: int | slice) -> "str | EncodedValues | None":
        if isinstance(index, slice):
            return EncodedValues(self.cells[index])
        cell = self.cells[index]
        return None if cell is None else cell.decode("ascii")


class EventTable:
    """Events as columns of Python values, so that setting a header of all events is cheap.

    Attributes:
        batch_indexes: Each event's index in the batch that its source delivered; None if unknown.
    """

    __slots__ = ("batch_indexes", "bodies", "headers")

    def __init__(self, bodies: Sequence[bytes], headers: Mapping[str, HeaderValues] | None = None) -> None:
        self.bodies = bodies
        self.headers: dict[str, HeaderValues] = dict(headers or {})
        self.batch_indexes: Sequence[int] | None = None

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[Mapping[str, str], bytes]]) -> "EventTable":
        """Returns a table of these events, each given as its headers and its body."""
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
        return cls.of_rows(row for window in windows for row in window.rows())

    @property
    def count(self) -> int:
        return len(self.bodies)

    @property
    def body_bytes(self) -> int:
        return sum(map(len, self.bodies))

    def copy(self) -> "EventTable":
        """Returns a table of the same events that can be changed independently."""
        return EventTable(self.bodies, self.headers)

    def header(self, key: str) -> HeaderValues | None:
        """Returns a header as in `headers`, which must not be modified; None if no event has it."""
        return self.headers.get(key)

    def values(self, key: str) -> Sequence[str | None]:
        """Returns each event's value of a header; None for an event without it."""
        values = self.header(key)
        if values is None or isinstance(values, str):
            return [values] * self.count
        return values

    def fill(self, key: str, values: HeaderValues) -> None:
        """Sets a header of the events that do not have it."""
        present = self.headers.get(key)
        if present is None:
            self.headers[key] = values
        elif not isinstance(present, str):
            offered = [values] * self.count if isinstance(values, str) else values
            self.headers[key] = [new if old is None else old for old, new in zip(present, offered, strict=True)]

    def give(self, key: str, values: HeaderValues, *, preserve_existing: bool) -> None:
        """Sets a header of all events, or only of those that do not have it."""
        if preserve_existing:
            self.fill(key, values)
        else:
            self.headers[key] = values

    def chosen(self, mask: Sequence[bool]) -> "EventTable":
        return self._select(lambda column: list(compress(column, mask)))

    def part(self, start: int, stop: int) -> "EventTable":
        """Returns the events from index `start` up to `stop`, which is excluded."""
        return self._select(lambda column: column[start:stop])

    def _select(self, select: Callable[[Sequence[Any]], Sequence[Any]]) -> "EventTable":
        headers = {key: values if isinstance(values, str) else select(values) for key, values in self.headers.items()}
        selected = EventTable(select(self.bodies), headers)
        if self.batch_indexes is not None:
            selected.batch_indexes = select(self.batch_indexes)
        return selected

    def rows(self) -> Iterator[tuple[dict[str, str], bytes]]:
        columns = [(key, self.values(key)) for key in self.headers]
        for index, body in enumerate(self.bodies):
            yield {key: value for key, values in columns if (value := values[index]) is not None}, body

    def stored(self) -> list[StoredColumns]:
        """Returns the events as channels store them: no batch if there are none, several if there are many keys."""
        if not self.bodies:
            return []
        if len(self.headers) > HEADER_KEYS_MAX:
            rows = (({key: _encodable(value) for key, value in headers.items()}, body) for headers, body in self.rows())
            return [StoredColumns.of(columns) for columns in columns_from_events(rows)]
        sizes = list(map(len, self.bodies))
        columns = event_pb2.EventColumns(
            count=self.count,
            body_sizes=sizes,
            headers=[column for key, values in self.headers.items() if (column := _column(key, values))],
        )
        # With protobuf, the bodies would be copied three times.
        body_bytes = sum(sizes)
        head = field_head(event_pb2.EventColumns.BODIES_FIELD_NUMBER, body_bytes) if body_bytes else b""
        raw = b"".join((columns.SerializeToString(), head, *self.bodies))
        return [StoredColumns(raw, self.count, body_bytes)]


def _encodable(value: str) -> str:
    # Text that was decoded from invalid UTF-8 may not be encodable; losing a character is better than losing the event.
    return value.encode(errors="replace").decode()


def _column(key: str, values: HeaderValues) -> event_pb2.HeaderColumn | None:
    # As in `_encodable`.
    if isinstance(values, str):
        encoded = values.encode(errors="replace")
        return event_pb2.HeaderColumn(key=key, sizes=[len(encoded) + 1], values=encoded)
    if isinstance(values, EncodedValues):
        return _column_of_cells(key, values.cells)
    joined = "".join(filter(None, values))
    if joined.isascii():
        # The usual case: encoded at once, with as many bytes as characters.
        sizes = [0 if value is None else len(value) + 1 for value in values]
        return event_pb2.HeaderColumn(key=key, sizes=sizes, values=joined.encode()) if any(sizes) else None
    return _column_of_cells(key, [None if value is None else value.encode(errors="replace") for value in values])


def _column_of_cells(key: str, cells: Sequence[bytes | None]) -> event_pb2.HeaderColumn | None:
    sizes = [0 if cell is None else len(cell) + 1 for cell in cells]
    if not any(sizes):
        return None
    return event_pb2.HeaderColumn(key=key, sizes=sizes, values=b"".join(filter(None, cells)))


def part_of(table: EventTable, stamp: Stamp, start: int, stop: int) -> tuple[EventTable, Stamp]:
    """Returns a range of a batch's events with their numbers. The batch must have as many numbers as events."""
    return table.part(start, stop), replace(stamp, first=stamp.first + start, last=stamp.first + stop - 1)
