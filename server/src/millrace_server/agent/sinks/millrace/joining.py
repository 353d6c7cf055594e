"""Makes one batch of many small ones, so that each need not be a request, a commit and a sync of its own."""

from collections.abc import Sequence

from millrace.columns import HEADER_CELLS_MAX, HEADER_KEYS_MAX
from millrace.v1 import event_pb2

JOINED_BYTES_MAX = 1 << 20
"""Bytes that joined events have at most; beyond that a request of its own costs less than the joining."""


class ColumnsJoiner:
    """Gathers columns that are to become one, without touching an event.

    Attributes:
        count: Events gathered so far.
    """

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._body_sizes: list[int] = []
        self._bodies: list[bytes] = []
        self._headers: dict[str, list[event_pb2.HeaderColumn | None]] = {}
        self._byte_count = 0
        self.count = 0

    def add(self, columns: event_pb2.EventColumns) -> bool:
        """Gathers columns behind the others; False where they do not fit in with them, and were not."""
        bodies = columns.bodies
        byte_count = len(bodies) + _header_bytes(columns)
        if self._counts and not self._admits(columns, byte_count):
            return False
        for header in columns.headers:
            column = self._headers.setdefault(header.key, [])
            column += [None] * (len(self._counts) - len(column))
            column.append(header)
        self._counts.append(columns.count)
        self._body_sizes += columns.body_sizes[:]
        self._bodies.append(bodies)
        self._byte_count += byte_count
        self.count += columns.count
        return True

    def _admits(self, columns: event_pb2.EventColumns, byte_count: int) -> bool:
        key_count = len(self._headers) + sum([header.key not in self._headers for header in columns.headers])
        return (
            key_count <= HEADER_KEYS_MAX
            and key_count * (self.count + columns.count) <= HEADER_CELLS_MAX
            and self._byte_count + byte_count <= JOINED_BYTES_MAX
        )

    def build(self) -> event_pb2.EventColumns:
        """All that was gathered, as one."""
        return event_pb2.EventColumns(
            count=self.count,
            body_sizes=self._body_sizes,
            bodies=b"".join(self._bodies),
            headers=[self._joined(key, column) for key, column in self._headers.items()],
        )

    def _joined(self, key: str, column: Sequence[event_pb2.HeaderColumn | None]) -> event_pb2.HeaderColumn:
        first = column[0]
        if first is not None and len(first.sizes) == 1 and first.sizes[0] and column.count(first) == len(self._counts):
            # All events of all of them have the same value.
            return first
        sizes: list[int] = []
        values: list[bytes] = []
        for index, count in enumerate(self._counts):
            header = column[index] if index < len(column) else None
            if header is None:
                sizes += [0] * count
            elif len(header.sizes) == count:
                sizes += header.sizes[:]
                values.append(header.values)
            else:
                sizes += header.sizes[:] * count
                values.append(header.values * count)
        return event_pb2.HeaderColumn(key=key, sizes=sizes, values=b"".join(values))


def _header_bytes(columns: event_pb2.EventColumns) -> int:
    """Bytes of the headers' values, once each event has its own copy."""
    count = columns.count
    return sum(
        [len(header.values) if len(header.sizes) == count else len(header.values) * count for header in columns.headers]
    )
