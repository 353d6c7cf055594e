"""Reads the events of a call into columns, without creating an object for each event.

    event:  headers: map of strings | body: bytes
    map:    blocks of (count, for each header its key and its value), up to a count of 0
    bytes, string: size, then this many bytes

The events of one sender usually have the same keys in the same order. So the bytes between the values of one event, its
*shape*, are expected in the next event too, and only the sizes of values are decoded. This takes less than half the
time of a general decoder in C, which creates a dictionary for each event.
"""

from collections.abc import Callable, Iterator

from millrace.columns import HEADER_CELLS_MAX, HEADER_KEYS_MAX
from millrace_server.agent.avro_rpc.calls import BadCallError, read_block_count, read_bytes, read_long
from millrace_server.agent.events import EncodedValues, EventTable, HeaderValues

TABLE_EVENTS_MAX = 10_000
"""The maximum number of events in a table, which is stored in one transaction if the channels allow it."""

_TABLE_BYTES_MAX = 1 << 20
_NOT_ONE_BYTE = 0x81
"""The bits that are set if a size is negative or continues in a second byte."""
_NOT_TWO_BYTES = 0x8001
"""The bits of two bytes that are set if a size is negative or continues in a third byte."""
_LOW_BITS = 0x7F

_Columns = dict[bytes, list[bytes | None]]
_Shape = list[tuple[bytes, int, Callable[[bytes], None]]]
"""For each header: the bytes before its value, their number, and the function that appends the value to its column."""


class EventReader:
    """Reads the events of a payload, starting at a position."""

    def __init__(self, payload: bytes, position: int, *, is_array: bool) -> None:
        """`is_array` says whether the payload contains an array of events or a single event."""
        self._payload = payload
        self._start = position
        self._is_array = is_array

    @property
    def has_one_table(self) -> bool:
        """Whether all events fit in one table, so that reading them is quick and creates few objects."""
        return len(self._payload) - self._start <= _TABLE_BYTES_MAX

    def tables(self) -> Iterator[EventTable]:
        """Yields the events in tables of limited size. Raises BadCallError if the bytes are not valid events."""
        position = self._start
        count, position = read_block_count(self._payload, position) if self._is_array else (1, position)
        table = _TableReader(self._payload, position)
        while count:
            count -= table.read(count)
            if table.is_full:
                yield table.taken()
            if not count and self._is_array:
                count, table.position = read_block_count(self._payload, table.position)
        if table.count:
            yield table.taken()
        if table.position != len(self._payload):
            raise BadCallError(f"{len(self._payload) - table.position} bytes follow the parameters")


class _TableReader:
    """Reads events into the columns of a table.

    Attributes:
        position: Where the next event begins.
    """

    def __init__(self, payload: bytes, position: int) -> None:
        self._payload = payload
        self.position = position
        self._begin()

    def _begin(self) -> None:
        self._bodies: list[bytes] = []
        # A column ends with its last value; later events do not have the header.
        self._columns: _Columns = {}
        self._shape: _Shape | None = None
        self._stop = self.position + _TABLE_BYTES_MAX

    @property
    def count(self) -> int:
        return len(self._bodies)

    @property
    def is_full(self) -> bool:
        return (
            self.count >= TABLE_EVENTS_MAX
            or self.position >= self._stop
            or len(self._columns) >= HEADER_KEYS_MAX
            or len(self._columns) * self.count >= HEADER_CELLS_MAX
        )

    def taken(self) -> EventTable:
        """Returns the table, and begins a new one."""
        count = self.count
        headers = {
            key.decode(errors="backslashreplace"): _header(column, count) for key, column in self._columns.items()
        }
        table = EventTable(self._bodies, headers)
        self._begin()
        return table

    def read(self, count: int) -> int:
        """Reads up to this many events, or until the table is full; returns how many were read."""
        before = self.count
        try:
            while self.count - before < count and not self.is_full:
                cells_left = HEADER_CELLS_MAX // max(len(self._columns), 1) - self.count
                events_left = min(count - (self.count - before), TABLE_EVENTS_MAX - self.count, max(cells_left, 1))
                if not self._read_shaped(events_left):
                    self._read_other()
        except IndexError:
            raise BadCallError("the bytes end in the middle of an event") from None
        return self.count - before

    def _read_shaped(self, count: int) -> bool:  # noqa: C901 - calls would double its time
        """Reads events while they have the expected shape; returns whether all of them had it.

        It is one loop without calls, since it runs for each event.
        """
        shape, data, position, stop = self._shape, self._payload, self.position, self._stop
        if shape is None:
            return False
        begins_with, add_body, end_of_data = data.startswith, self._bodies.append, len(data)
        for _ in range(count):
            for before, before_bytes, add in shape:
                if not begins_with(before, position):
                    self._undo_headers()
                    return False
                position += before_bytes
                size = data[position]
                position += 1
                if size & _NOT_ONE_BYTE:
                    size, position = _long_size(data, position - 1)
                end = position + (size >> 1)
                add(data[position:end])
                position = end
            # The end of the map, then the size of the body.
            if data[position]:
                self._undo_headers()
                return False
            size = data[position + 1]
            position += 2
            if size & _NOT_ONE_BYTE:
                high = data[position]
                if (size | high << 8) & _NOT_TWO_BYTES:
                    size, position = _long_size(data, position - 1)
                else:
                    size = size & _LOW_BITS | high << 7
                    position += 1
            end = position + (size >> 1)
            if end > end_of_data:
                raise BadCallError("the bytes end in the middle of an event")
            add_body(data[position:end])
            self.position = position = end
            if position >= stop:
                break
        return True

    def _undo_headers(self) -> None:
        """Removes the headers of an event that has another shape."""
        count = self.count
        for column in self._columns.values():
            del column[count:]

    def _read_other(self) -> None:
        """Reads one event of any shape; the next events are expected to have the same shape."""
        data, start = self._payload, self.position
        shape: _Shape = []
        keys = set[bytes]()
        count, position = read_block_count(data, start)
        while count:
            if len(shape) + count > HEADER_KEYS_MAX:
                raise BadCallError(f"an event has more than {HEADER_KEYS_MAX} headers")
            for _ in range(count):
                key, position = read_bytes(data, position)
                before = data[start:position]
                value, position = read_bytes(data, position)
                start = position
                keys.add(key)
                shape.append((before, len(before), self._put(key, value)))
            count, position = read_block_count(data, position)
        has_plain_end = position == start + 1
        body, self.position = read_bytes(data, position)
        self._bodies.append(body)
        self._shape = shape if has_plain_end and len(keys) == len(shape) else None

    def _put(self, key: bytes, value: bytes) -> Callable[[bytes], None]:
        """Sets a header of the event that is being read; returns the function that appends to the header's column."""
        index = self.count
        column = self._columns.setdefault(key, [])
        if len(column) > index:
            # The event has the key twice; the last value counts, as in a Java map.
            column.pop()
        column.extend([None] * (index - len(column)))
        column.append(value)
        return column.append


def _long_size(data: bytes, position: int) -> tuple[int, int]:
    """Returns a size multiplied by two, and the position after it."""
    size, position = read_long(data, position)
    if size < 0:
        raise BadCallError(f"a value declares {size} bytes")
    return size << 1, position


def _header(column: list[bytes | None], count: int) -> HeaderValues:
    first = column[0]
    if first is not None and column.count(first) == count:
        return first.decode(errors="replace")
    column += [None] * (count - len(column))
    if b"".join(filter(None, column)).isascii():
        return EncodedValues(column)
    return [None if value is None else value.decode(errors="replace") for value in column]
