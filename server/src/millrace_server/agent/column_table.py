"""Tables of events that arrive in columns, which are decoded only if an interceptor or a selector reads them."""

from collections.abc import Iterator, Sequence

from millrace.columns import HEADER_KEYS_MAX, ColumnsCutter
from millrace.v1 import event_pb2
from millrace_server.agent.events import EventTable, HeaderValues
from millrace_server.channels.batches import StoredColumns, Window


class ColumnTable(EventTable):
    """The events of received columns. A header that is set to one value for all events is added to the columns."""

    __slots__ = ("_changed", "_decoded", "_received")

    def __init__(self, received: Sequence[StoredColumns]) -> None:
        self._received = received
        self._changed: list[event_pb2.EventColumns] | None = None
        self._decoded: EventTable | None = None
        self.batch_indexes = None

    @property
    def count(self) -> int:
        return sum(stored.count for stored in self._received) if self._decoded is None else self._decoded.count

    @property
    def body_bytes(self) -> int:
        if self._decoded is not None:
            return self._decoded.body_bytes
        return sum(stored.body_bytes for stored in self._received)

    # The caller may change the result of these, so they decode the columns.

    @property
    def bodies(self) -> Sequence[bytes]:
        return self._table().bodies

    @bodies.setter
    def bodies(self, bodies: Sequence[bytes]) -> None:
        self._table().bodies = bodies

    @property
    def headers(self) -> dict[str, HeaderValues]:
        return self._table().headers

    @headers.setter
    def headers(self, headers: dict[str, HeaderValues]) -> None:
        self._table().headers = headers

    def copy(self) -> EventTable:
        is_untouched = self._decoded is None and self._changed is None
        return ColumnTable(self._received) if is_untouched else super().copy()

    def header(self, key: str) -> HeaderValues | None:
        if self._decoded is None and len(self._received) == 1:
            return next(self._cutters()).header_values(key)
        return super().header(key)

    def fill(self, key: str, values: HeaderValues) -> None:
        if not self._set_in_columns(key, values, preserve_existing=True):
            super().fill(key, values)

    def give(self, key: str, values: HeaderValues, *, preserve_existing: bool) -> None:
        if not self._set_in_columns(key, values, preserve_existing=preserve_existing):
            super().give(key, values, preserve_existing=preserve_existing)

    def stored(self) -> list[StoredColumns]:
        if self._decoded is not None:
            return self._decoded.stored()
        if self._changed is not None:
            return [StoredColumns.of(columns) for columns in self._changed]
        return list(self._received)

    def _set_in_columns(self, key: str, values: HeaderValues, *, preserve_existing: bool) -> bool:
        """Sets a header of all events to one value; returns False without a change if the columns must be decoded."""
        if self._decoded is not None or not isinstance(values, str):
            return False
        encoded = values.encode(errors="replace")
        column = event_pb2.HeaderColumn(key=key, sizes=[len(encoded) + 1], values=encoded)
        changed = self._columns()
        if not all(_takes(columns, column, preserve_existing=preserve_existing) for columns in changed):
            return False
        for columns in changed:
            _set(columns, column, preserve_existing=preserve_existing)
        self._changed = changed
        return True

    def _columns(self) -> list[event_pb2.EventColumns]:
        if self._changed is not None:
            return self._changed
        return [
            event_pb2.EventColumns.FromString(stored.raw)  # type: ignore[arg-type] # stubs know bytes only
            for stored in self._received
        ]

    def _cutters(self) -> Iterator[ColumnsCutter]:
        if self._changed is not None:
            return map(ColumnsCutter, self._changed)
        return (stored.cutter(keep=True) for stored in self._received)

    def _table(self) -> EventTable:
        if self._decoded is None:
            self._decoded = self._decode()
        return self._decoded

    def _decode(self) -> EventTable:
        if len(self._received) != 1:
            return EventTable.of_windows(map(Window.whole, self.stored()))
        cutter = next(self._cutters())
        return EventTable(list(cutter.bodies(0, cutter.count)), cutter.all_headers())


def _found(columns: event_pb2.EventColumns, key: str) -> event_pb2.HeaderColumn | None:
    return next((column for column in columns.headers if column.key == key), None)


def _takes(columns: event_pb2.EventColumns, column: event_pb2.HeaderColumn, *, preserve_existing: bool) -> bool:
    present = _found(columns, column.key)
    if present is None:
        return len(columns.headers) < HEADER_KEYS_MAX
    # Some events may lack the header, and the others keep their values.
    return not preserve_existing or 0 not in present.sizes


def _set(columns: event_pb2.EventColumns, column: event_pb2.HeaderColumn, *, preserve_existing: bool) -> None:
    present = _found(columns, column.key)
    if present is None:
        columns.headers.append(column)
    elif not preserve_existing:
        present.CopyFrom(column)
