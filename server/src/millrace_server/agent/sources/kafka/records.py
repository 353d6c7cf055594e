"""The conversion of Kafka's records to events."""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from millrace.columns import HEADER_KEYS_MAX
from millrace_server.agent.events import EventTable, HeaderValues
from millrace_server.agent.kafka.header_names import HeaderNames
from millrace_server.agent.sources.kafka.config import KafkaSourceConfig

REPEATED, UNREADABLE, SKIPPED = "repeated_header", "unreadable_headers", "tombstone_skipped"
"""Incidents that are counted, of records that are not converted to events completely."""

_Cells = list[str | None]
_Headers = list[tuple[str, bytes | None]] | None
"""The headers of a received record; the library's type also includes what a producer may pass."""

_offset_of: Callable[[Message], int] = Message.offset  # type: ignore[assignment]  # a received message has one

_OWN_NAMES_MAX = HEADER_KEYS_MAX - len(HeaderNames._fields)
"""The maximum number of different names of the records' own headers in a batch, which limits the size of its table."""


class RecordBatch(NamedTuple):
    """Events of a partition's records, in order."""

    offsets: Sequence[int]
    table: EventTable
    next_offset: int
    """One past the last record, which may have been skipped."""


class RecordReader:
    """Converts records to events, a column at a time.

    Attributes:
        remarks: The number of each of the incidents `REPEATED`, `UNREADABLE` and `SKIPPED`.
    """

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._names = HeaderNames.with_prefix(config.header_prefix)
        self._wanted = frozenset(config.headers)
        # A mirrored record may have headers with these names, which describe another record.
        self._reserved = frozenset(getattr(self._names, each) for each in (*config.headers, "tombstone", "base64"))
        self._skips_tombstones = config.tombstones == "skip"
        self.remarks: Counter[str] = Counter()

    def read(self, topic: str, partition: int, messages: Sequence[Message]) -> Iterator[RecordBatch]:
        """Yields the records of a partition in one batch, or in several if they have many different headers."""
        headers = self._headers_of(messages)
        start = 0
        while start < len(messages):
            stop = len(messages) if headers is None else _stop_of_names(headers, start)
            part = messages[start:stop], headers and headers[start:stop]
            yield self._batch(topic, partition, *part)
            start = stop

    def _headers_of(self, messages: Sequence[Message]) -> list[_Headers] | None:
        """Returns the headers of each record; None if no record has any."""
        headers: list[_Headers] = []
        # If a name is not UTF-8, which Kafka forbids but brokers accept, confluent-kafka 2.16 sets an error and returns
        # a list with a null pointer. `map` checks each call for this, unlike the interpreter's optimized method calls.
        # No message is asked twice, since it would return the list again.
        found = map(Message.headers, messages)
        for _ in messages:
            try:
                own = next(found)
            except (SystemError, UnicodeDecodeError):
                self.remarks[UNREADABLE] += 1
                own = None
            headers.append(own)  # type: ignore[arg-type]  # see `_Headers`
        return headers if any(headers) else None

    def _batch(
        self, topic: str, partition: int, messages: Sequence[Message], own: Sequence[_Headers] | None
    ) -> RecordBatch:
        values = [each.value() for each in messages]
        offsets = list(map(_offset_of, messages))
        next_offset = offsets[-1] + 1
        is_tombstone = [value is None for value in values] if None in values else None
        if is_tombstone and self._skips_tombstones:
            kept = [not each for each in is_tombstone]
            messages, values, is_tombstone = list(compress(messages, kept)), list(compress(values, kept)), None
            own, offsets = own and list(compress(own, kept)), list(compress(offsets, kept))
            self.remarks[SKIPPED] += kept.count(False)
        columns = _Columns(len(messages), self._reserved, self.remarks)
        columns.add_all(own or ())
        self._describe(columns, topic, partition, messages, offsets)
        if is_tombstone:
            columns.named[self._names.tombstone] = ["true" if each else None for each in is_tombstone]
            values = [value or b"" for value in values]
        if columns.base64_names:
            columns.named[self._names.base64] = columns.base64_marks()
        table = EventTable(cast("list[bytes]", values), columns.named)
        return RecordBatch(offsets, table, next_offset)

    def _describe(
        self, columns: "_Columns", topic: str, partition: int, messages: Sequence[Message], offsets: Sequence[int]
    ) -> None:
        """Sets the headers about the records."""
        names, headers = self._names, columns.named
        if "key" in self._wanted:
            headers[names.key] = columns.text_cells(names.key, list(map(Message.key, messages)))
        if "topic" in self._wanted:
            headers[names.topic] = topic
        if "partition" in self._wanted:
            headers[names.partition] = str(partition)
        if "offset" in self._wanted:
            headers[names.offset] = list(map(str, offsets))
        if "timestamp" in self._wanted:
            times = map(Message.timestamp, messages)
            headers[names.timestamp] = [
                None if kind == TIMESTAMP_NOT_AVAILABLE else str(milliseconds) for kind, milliseconds in times
            ]


def _stop_of_names(headers: Sequence[_Headers], start: int) -> int:
    """Returns the end of the batch from `start`: at most `_OWN_NAMES_MAX` header names, but at least one record."""
    names: set[str] = set()
    for index in range(start, len(headers)):
        names.update(name for name, _ in headers[index] or ())
        if len(names) > _OWN_NAMES_MAX:
            return max(index, start + 1)
    return len(headers)


class _Columns:
    """Headers as columns.

    Attributes:
        base64_names: The names of each record's headers that are in Base64, by the record's index.
    """

    def __init__(self, count: int, reserved: frozenset[str], remarks: Counter[str]) -> None:
        self._count = count
        self._reserved = reserved
        self._remarks = remarks
        self.base64_names: dict[int, set[str]] = {}
        self.named: dict[str, HeaderValues] = {}

    def add_all(self, own: Iterable[_Headers]) -> None:
        """Adds the records' own headers, except reserved ones."""
        found: dict[str, _Cells] = {}
        for index, headers in enumerate(own):
            for name, value in headers or ():
                cells = found.get(name)
                if cells is None:
                    if name in self._reserved:
                        continue
                    cells = found[name] = [None] * self._count
                if cells[index] is not None:
                    self._forget_earlier(index, name)
                try:
                    cells[index] = value.decode()  # type: ignore[union-attr]  # None is caught below, as it is rare
                except (AttributeError, UnicodeDecodeError):
                    cells[index] = self._as_base64(index, name, value or b"")
        for name, cells in found.items():
            first = cells[0]
            self.named[name] = first if first is not None and cells.count(first) == self._count else cells

    def _forget_earlier(self, index: int, name: str) -> None:
        # The last one counts, as in Kafka's own `lastHeader`.
        self._remarks[REPEATED] += 1
        self.base64_names.get(index, set()).discard(name)

    def text_cells(self, name: str, values: Sequence[bytes | None]) -> _Cells:
        """Returns values as text, in Base64 if they are not UTF-8, which is noted."""
        try:
            return [None if value is None else value.decode() for value in values]
        except UnicodeDecodeError:
            return [None if value is None else self._text(index, name, value) for index, value in enumerate(values)]

    def _text(self, index: int, name: str, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return self._as_base64(index, name, value)

    def _as_base64(self, index: int, name: str, value: bytes) -> str:
        if value:
            self.base64_names.setdefault(index, set()).add(name)
        return b64encode(value).decode()

    def base64_marks(self) -> _Cells:
        marks: _Cells = [None] * self._count
        for index, names in self.base64_names.items():
            if names:
                marks[index] = json.dumps(sorted(names))
        return marks
