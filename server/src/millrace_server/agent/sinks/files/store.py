"""From deliveries to finished files: what a sink's thread does."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from millrace.wire_format import Buffer
from millrace_server.agent.sinks.files.chunks import EventChunk, Rows, chunks_of
from millrace_server.agent.sinks.files.open_files import OpenFile, OpenFiles
from millrace_server.agent.sinks.files.paths import Partitioner
from millrace_server.agent.sinks.files.sink_directory import FileReceipt, ReceiptBook, SinkDirectory
from millrace_server.agent.sinks.files.targets import FileTarget
from millrace_server.channels.stamps import IntervalSet

_CHANNEL_ID_LENGTH = 12
"""So much of a channel's id stands in a file's name; where two are the same that far, a number is added."""


class FileNames(NamedTuple):
    """How finished files are named: `orders-3f1c5a7e9b02-000000000001-000000001000.jsonl`."""

    prefix: str
    suffix: str

    def of(self, channel_id: str, file: OpenFile) -> Iterator[str]:
        """The names for a file, the best first: whose events it holds, from which sequence, to which."""
        sequences = f"{file.ranges.first:012d}-{file.ranges.last:012d}"
        name = f"{file.directory.rstrip('/')}/{self.prefix}{channel_id[:_CHANNEL_ID_LENGTH]}-{sequences}"
        others = (f"{name}-{number}{self.suffix}" for number in count(2))
        return chain([f"{name}{self.suffix}"], others)


class Progress(NamedTuple):
    """How it stands after some work."""

    completed: Sequence[int]
    """Deliveries, by their numbers, whose events are all in files that have their final names; each is told once."""
    due_at: float | None
    """When `roll` is to be called next."""


class _KeptReceipt(NamedTuple):
    place: Path
    last_sequence: int


class EventFiles:
    """Writes deliveries into files, and finishes these.

    All of it blocks. An error leaves it as it is: whoever gets one closes the store, and opens another.

    Args:
        directory: What the sink remembers is there.
        make_target: Where finished files go, for what names the sink.
        partitioner: Which events go to which directory.
        files: The open files; none yet.
        names: How finished files are named.
    """

    def __init__(
        self,
        directory: SinkDirectory,
        make_target: Callable[[str], FileTarget],
        partitioner: Partitioner,
        files: OpenFiles,
        names: FileNames,
    ) -> None:
        self._directory = directory
        self._make_target = make_target
        self._partitioner = partitioner
        self._files = files
        self._names = names
        self._book = ReceiptBook(directory.path / "receipts")
        self._target: FileTarget | None = None
        self._channel_id = ""
        self._found: list[tuple[Path, FileReceipt]] = []
        self._kept: list[_KeptReceipt] = []
        self._done = IntervalSet()
        self._unfinished: Counter[int] = Counter()
        self._touched: set[int] = set()

    def open(self) -> None:
        """Gets ready: removes what an earlier run has left unfinished, and finds out what it has finished.

        Raises:
            OSError: The target, or the sink's own directory, cannot be used.
            ComponentError: An earlier run is still at work, or what it has left cannot be read.
        """
        owner = self._directory.open()
        self._target = self._make_target(owner)
        self._target.open()
        for place, receipt, is_kept in self._book.open():
            if is_kept:
                self._found.append((place, receipt))
            elif self._target.size_of(receipt.path) == receipt.file_bytes:
                self._found.append((self._book.keep(place), receipt))
            else:
                self._book.drop(place)

    def write(self, delivery: int, channel_id: str, batches: Iterable[tuple[int, Buffer]], now: float) -> Progress:
        """Writes a delivery's events, but for those that an earlier run has finished.

        Args:
            delivery: Its number; that of an earlier one where it is a part of that.
            channel_id: Of the channel that it is from.
            batches: For each batch the first sequence, and the events as a serialized EventColumns.
            now: The time on the clock that says when files are due.
        """
        if channel_id != self._channel_id:
            self._finish(self._files)
            self._begin_channel(channel_id)
        self._touched.add(delivery)
        for chunk in self._new(chunks_of(batches)):
            for directory, rows in self._partitioner.split(chunk).items():
                self._write_rows(delivery, chunk, directory, rows, now)
        self._files.bound_memory()
        return self._progress()

    def roll(self, now: float) -> Progress:
        """Finishes the files that are due."""
        self._finish(file for file in self._files if self._files.due_at(file) <= now)
        return self._progress()

    def finish_delivery(self, delivery: int) -> Progress:
        """Finishes all files that have events of a delivery."""
        self._finish(file for file in self._files if delivery in file.deliveries)
        return self._progress()

    def finish_all(self) -> Progress:
        """Finishes all files."""
        self._finish(self._files)
        return self._progress()

    def forget_below(self, sequence: int) -> None:
        """Drops receipts that nobody needs any more, since the channel delivers nothing below a sequence again."""
        for receipt in self._kept:
            if receipt.last_sequence < sequence:
                self._book.drop(receipt.place)
        self._kept = [receipt for receipt in self._kept if receipt.last_sequence >= sequence]
        if not self._kept:
            self._done = IntervalSet()

    def close(self) -> None:
        """Removes what is unfinished, and lets a later run in."""
        try:
            self._files.discard()
            if self._target is not None:
                self._target.close()
        finally:
            self._directory.close()

    def _begin_channel(self, channel_id: str) -> None:
        """Gets ready for another channel's events, or for those of the same channel made anew."""
        self._channel_id = channel_id
        self._done = IntervalSet()
        for kept in self._kept:
            self._book.drop(kept.place)
        self._kept = []
        for place, receipt in self._found:
            if receipt.channel_id != channel_id:
                self._book.drop(place)
                continue
            for first, last in receipt.ranges:
                self._done.add(first, last)
            self._kept.append(_KeptReceipt(place, receipt.last_sequence))
        self._found = []

    def _new(self, chunks: Iterable[EventChunk]) -> Iterator[EventChunk]:
        for chunk in chunks:
            gaps = self._done.gaps(chunk.first_sequence, chunk.last_sequence)
            if gaps == [(chunk.first_sequence, chunk.last_sequence)]:
                yield chunk
            else:
                yield from chunk.parts(gaps)

    def _write_rows(self, delivery: int, chunk: EventChunk, directory: str, rows: Rows, now: float) -> None:
        assert self._target is not None, "it is open"
        while rows:
            if (crowded_out := self._files.crowded_out_by(directory)) is not None:
                self._finish([crowded_out])
            file = self._files.get(directory, self._target.staging, now)
            room = self._files.room_in(file)
            self._unfinished[delivery] += delivery not in file.deliveries
            file.write(delivery, chunk, rows[:room], now)
            rows = rows[room:]
            if self._files.is_full(file):
                self._finish([file])

    def _finish(self, files: Iterable[OpenFile]) -> None:
        for file in files:
            file_bytes = file.finish()
            self._publish(file, file_bytes)
            self._files.remove(file)
            for delivery in file.deliveries:
                self._unfinished[delivery] -= 1
            self._touched |= file.deliveries

    def _publish(self, file: OpenFile, file_bytes: int) -> None:
        assert self._target is not None, "it is open"
        ranges = list(file.ranges)
        for path in self._names.of(self._channel_id, file):
            if self._target.size_of(path) is not None:
                # Promised, it would be taken for ours after a crash.
                continue
            # Before the name is given, so that a crash between the two is told from one before them.
            place = self._book.promise(FileReceipt(path, file_bytes, self._channel_id, ranges))
            try:
                self._target.publish(file.staged, path)
            except FileExistsError:
                self._book.drop(place)
                continue
            self._kept.append(_KeptReceipt(self._book.keep(place), file.ranges.last))
            return

    def _progress(self) -> Progress:
        completed = sorted(delivery for delivery in self._touched if not self._unfinished[delivery])
        for delivery in completed:
            del self._unfinished[delivery]
        self._touched = set()
        return Progress(completed, self._files.next_due_at())
