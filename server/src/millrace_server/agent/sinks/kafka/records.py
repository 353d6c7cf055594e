"""The conversion of events to the records that are produced."""

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import cast

from millrace.columns import ColumnsCutter
from millrace.v1 import event_pb2
from millrace.wire_format import Buffer
from millrace_server.agent.channel_reader import EventsRejectedError
from millrace_server.agent.sinks.kafka.config import KafkaSinkConfig

_Cells = list[bytes | None]
_Headers = list[tuple[str, str | bytes | None]] | None

ANY_PARTITION = -1
NOW = 0
"""The timestamp that means the time at which a record is produced."""

_PARTITION_MAX = (1 << 31) - 1
_TIMESTAMP_MAX = (1 << 63) - 1


Record = tuple[str, bytes | None, bytes | None, int, int, _Headers]
"""Topic, value, key, partition, timestamp and headers."""


class RecordWriter:
    """Converts events to records, a column at a time."""

    def __init__(self, config: KafkaSinkConfig) -> None:
        self._config = config
        self._names = config.names

    def records(self, encoded: Buffer) -> Iterator[Record]:
        """Returns the records of serialized columns. Raises EventsRejectedError at a record that Kafka cannot store."""
        columns = event_pb2.EventColumns.FromString(encoded)  # type: ignore[arg-type] # stubs know bytes only
        count = columns.count
        cells = {header.key: _cells(header, count) for header in columns.headers}
        self._restore_bytes(cells)
        config = self._config

        def column(header: str | None) -> _Cells | None:
            return None if header is None else cells.get(header)

        # Tuples, since creating an object for each record takes longer than producing it.
        rows = zip(
            self._topics(column(config.topic_header)),
            self._values(columns, cells.get(self._names.tombstone)),
            column(config.key_header) or repeat(None),
            _numbers(column(config.partition_header), ANY_PARTITION, config.partition_header, _PARTITION_MAX),
            _numbers(column(config.timestamp_header), NOW, config.timestamp_header, _TIMESTAMP_MAX),
            _header_lists({key: values for key, values in cells.items() if key not in self._names}, count),
            # Some iterators are infinite.
            strict=False,
        )
        return cast("Iterator[Record]", rows)

    def _restore_bytes(self, cells: dict[str, _Cells]) -> None:
        """Decodes the headers that a source of type `kafka` has encoded in Base64."""
        for index, mark in enumerate(cells.get(self._names.base64, ())):
            if mark is None:
                continue
            try:
                for name in json.loads(mark):
                    # An interceptor may have removed the header.
                    column = cells.get(name)
                    if column is not None and (value := column[index]) is not None:
                        column[index] = b64decode(value, validate=True)
            except (TypeError, ValueError, RecursionError) as error:
                raise EventsRejectedError(f"header {self._names.base64} does not match the others: {error}") from None

    def _topics(self, values: _Cells | None) -> Iterator[str]:
        if values is None:
            return repeat(self._config.topic)
        # Names are checked when they are first used.
        return (self._config.topic if value is None else value.decode(errors="replace") for value in values)

    @staticmethod
    def _values(columns: event_pb2.EventColumns, tombstones: _Cells | None) -> Iterable[bytes | None]:
        values = ColumnsCutter(columns).bodies(0, columns.count)
        if tombstones is None:
            return values
        return (
            None if mark == b"true" and not value else value for value, mark in zip(values, tombstones, strict=True)
        )


def _cells(header: event_pb2.HeaderColumn, count: int) -> _Cells:
    sizes, values = header.sizes[:], header.values
    if len(sizes) == 1:
        return [values if sizes[0] else None] * count
    cells: _Cells = []
    start = 0
    for size in sizes:
        end = start + size - 1
        if size:
            cells.append(values[start:end])
            start = end
        else:
            cells.append(None)
    return cells


def _numbers(values: _Cells | None, missing: int, header: str | None, highest: int) -> Iterator[int]:
    if values is None:
        return repeat(missing)
    return (missing if value is None else _number(value, header, highest) for value in values)


def _number(value: bytes, header: str | None, highest: int) -> int:
    # `int` alone would also accept signs, spaces, underscores and digits of other scripts.
    number = int(value) if value.isdigit() and len(value) <= len(str(highest)) else highest + 1
    if number > highest:
        shown = value[:100].decode(errors="backslashreplace")
        raise EventsRejectedError(f"header {header} is {shown!r}; it must be a whole number up to {highest}")
    return number


def _header_lists(cells: dict[str, _Cells], count: int) -> Iterator[_Headers]:
    if not cells:
        return repeat(None)
    names = list(cells)
    rows = zip(*cells.values(), strict=True) if count else iter(())
    return ([(name, value) for name, value in zip(names, row, strict=True) if value is not None] for row in rows)
