"""Event files, which turn deliveries into finished files; the sink calls them on its thread."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from millrace.wire_format import Buffer
from millrace_server.agent.sinks.files.chunks import EventChunk, Rows, chunks_of
from millrace_server.agent.sinks.files.open_files import OpenFile, OpenFiles
from millrace_server.agent.sinks.files.paths import Partitioner
from millrace_server.agent.sinks.files.sink_directory import FileReceipt, ReceiptStore, SinkDirectory
from millrace_server.agent.sinks.files.targets import FileTarget
from millrace_server.channels.stamps import IntervalSet

_CHANNEL_ID_LENGTH = 12
"""Characters of a channel's id in a file's name; if names are equal nevertheless, a number is added."""


class FileNames(NamedTuple):
    """Names of finished files: `orders-3f1c5a7e9b02-000000000001-000000001000.jsonl`."""

    prefix: str
    suffix: str

    def of(self, channel_id: str, file: OpenFile) -> Iterator[str]:
        """Yields names for a file, the preferred one first; they contain the channel and the sequences."""
        sequences = f"{file.ranges.first:012d}-{file.ranges.last:012d}"
        name = f"{file.directory.rstrip('/')}/{self.prefix}{channel_id[:_CHANNEL_ID_LENGTH]}-{sequences}"
        yield f"{name}{self.suffix}"
        yield from (f"{name}-{number}{self.suffix}" for number in count(2))


class WriteResult(NamedTuple):
    """The state after a call."""

    completed: Sequence[int]
    """The numbers of the deliveries that are now complete: all their events are in finished files."""
    due_at: float | None
    """When to call `roll` next."""


class EventFiles:
    """Writes deliveries into files, and finishes the files.

    All methods block. After an error the state is undefined: close it, and open another one.
    """

    def __init__(
        self,
        directory: SinkDirectory,
        target: FileTarget,
        partitioner: Partitioner,
        files: OpenFiles,
        names: FileNames,
    ) -> None:
        self._directory = directory
        self._target = target
        self._partitioner = partitioner
        self._files = files
        self._names = names
        self._receipts = ReceiptStore(directory.path / "receipts")
        self._is_open = False
        self._channel_id = ""
        self._found: list[tuple[Path, FileReceipt]] = []
        self._confirmed: dict[Path, int] = {}
        """The last sequence of each confirmed receipt."""
        self._finished = IntervalSet()
        self._unfinished_counts: Counter[int] = Counter()
        self._touched: set[int] = set()

    def open(self) -> None:
        """Removes unfinished files of an earlier run, and reads the receipts of its finished ones."""
        owner = self._directory.open()
        self._is_open = True
        self._target.open(owner)
        for path, receipt, is_confirmed in self._receipts.open():
            if is_confirmed:
                self._found.append((path, receipt))
            elif self._target.size_of(receipt.path) == receipt.file_bytes:
                self._found.append((self._receipts.confirm(path), receipt))
            else:
                self._receipts.delete(path)

    def write(self, delivery: int, channel_id: str, batches: Iterable[tuple[int, Buffer]], now: float) -> WriteResult:
        """Writes a delivery's events, except those that an earlier run has finished.

        If a delivery was joined to an earlier one, it has the number of that one. Each batch is given as its first
        sequence and its serialized EventColumns.
        """
        if channel_id != self._channel_id:
            self._finish(self._files)
            self._begin_channel(channel_id)
        self._touched.add(delivery)
        for chunk in self._unfinished_of(chunks_of(batches)):
            for directory, rows in self._partitioner.split(chunk).items():
                self._write_rows(delivery, chunk, directory, rows, now)
        self._files.bound_memory()
        return self._result()

    def roll(self, now: float) -> WriteResult:
        self._finish(file for file in self._files if self._files.due_at(file) <= now)
        return self._result()

    def finish_delivery(self, delivery: int) -> WriteResult:
        self._finish(file for file in self._files if delivery in file.deliveries)
        return self._result()

    def finish_all(self) -> WriteResult:
        self._finish(self._files)
        return self._result()

    def delete_receipts_below(self, sequence: int) -> None:
        """Deletes the receipts of events below a sequence, which the channel will not deliver again."""
        for path in [path for path, last_sequence in self._confirmed.items() if last_sequence < sequence]:
            self._receipts.delete(path)
            del self._confirmed[path]
        if not self._confirmed:
            self._finished = IntervalSet()

    def close(self) -> None:
        """Removes unfinished files, and releases the directory for a later run."""
        try:
            self._files.discard()
            if self._is_open:
                self._target.close()
        finally:
            self._directory.close()

    def _begin_channel(self, channel_id: str) -> None:
        self._channel_id = channel_id
        self._finished = IntervalSet()
        for path in self._confirmed:
            self._receipts.delete(path)
        self._confirmed = {}
        for path, receipt in self._found:
            if receipt.channel_id != channel_id:
                self._receipts.delete(path)
                continue
            for first, last in receipt.ranges:
                self._finished.add(first, last)
            self._confirmed[path] = receipt.last_sequence
        self._found = []

    def _unfinished_of(self, chunks: Iterable[EventChunk]) -> Iterator[EventChunk]:
        for chunk in chunks:
            gaps = self._finished.gaps(chunk.first_sequence, chunk.last_sequence)
            if gaps == [(chunk.first_sequence, chunk.last_sequence)]:
                yield chunk
            else:
                yield from chunk.parts(gaps)

    def _write_rows(self, delivery: int, chunk: EventChunk, directory: str, rows: Rows, now: float) -> None:
        while rows:
            if (evicted := self._files.to_evict_for(directory)) is not None:
                self._finish([evicted])
            file = self._files.get(directory, self._target, now)
            space = self._files.space_in(file)
            self._unfinished_counts[delivery] += delivery not in file.deliveries
            file.write(delivery, chunk, rows[:space], now)
            rows = rows[space:]
            if self._files.is_full(file):
                self._finish([file])

    def _finish(self, files: Iterable[OpenFile]) -> None:
        for file in files:
            file_bytes = file.finish()
            self._publish(file, file_bytes)
            self._files.remove(file)
            for delivery in file.deliveries:
                self._unfinished_counts[delivery] -= 1
            self._touched |= file.deliveries

    def _publish(self, file: OpenFile, file_bytes: int) -> None:
        ranges = list(file.ranges)
        for path in self._names.of(self._channel_id, file):
            if self._target.size_of(path) is not None:
                # After a crash, a receipt for this name would mistake another file for this one.
                continue
            # Written before the file is published, so that after a crash in between, the events count as finished if
            # and only if the file exists.
            receipt = self._receipts.prepare(FileReceipt(path, file_bytes, self._channel_id, ranges))
            try:
                self._target.publish(file.staged, path)
            except FileExistsError:
                self._receipts.delete(receipt)
                continue
            self._confirmed[self._receipts.confirm(receipt)] = file.ranges.last
            return

    def _result(self) -> WriteResult:
        completed = sorted(delivery for delivery in self._touched if not self._unfinished_counts[delivery])
        for delivery in completed:
            del self._unfinished_counts[delivery]
        self._touched = set()
        return WriteResult(completed, self._files.next_due_at())
