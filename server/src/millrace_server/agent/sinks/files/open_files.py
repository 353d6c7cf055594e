"""Open files: one for each directory, until it is full or old enough."""

import os
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from millrace_server.agent.sinks.files.chunks import EventChunk, Rows
from millrace_server.agent.sinks.files.targets import FileTarget
from millrace_server.agent.sinks.files.writers import EventWriter


class SequenceRanges:
    """A set of sequences, which are added in ascending order and mostly contiguous; it takes 16 bytes per range."""

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterates over the ranges, both ends included."""
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def first(self) -> int:
        return min(self._firsts)

    @property
    def last(self) -> int:
        return max(self._lasts)

    def add(self, first_sequence: int, rows: Rows) -> None:
        """Adds the sequences of rows of a chunk that begins with `first_sequence`."""
        firsts, lasts = self._firsts, self._lasts
        end = lasts[-1] + 1 if lasts else -1
        if isinstance(rows, range):
            if first_sequence + rows.start != end:
                firsts.append(first_sequence + rows.start)
                lasts.append(first_sequence)
            lasts[-1] = first_sequence + rows.stop - 1
            return
        for row in rows:
            sequence = first_sequence + row
            if sequence == end:
                lasts[-1] = sequence
            else:
                firsts.append(sequence)
                lasts.append(sequence)
            end = sequence + 1


BUFFERED_BYTES_MAX = 64 << 20
"""The maximum size of the buffers of all open files of a sink."""


class RollLimits(NamedTuple):
    """Limits at which a file is finished."""

    file_bytes: int
    """Its size, which the last events may exceed."""
    event_count: int
    """The number of its events, which is never exceeded."""
    open_seconds: float
    """The time since its first event."""
    idle_seconds: float
    """The time since its last event."""
    open_files_max: int
    """The number of open files; beyond it, the least recently written file is finished."""


class OpenFile:
    """A file that is being written."""

    def __init__(
        self, directory: str, staged: Path, file: BinaryIO, make_writer: Callable[[BinaryIO], EventWriter], now: float
    ) -> None:
        self.directory = directory
        self.staged = staged
        self.ranges = SequenceRanges()
        self.event_count = 0
        self.deliveries: set[int] = set()
        self.opened_at = now
        self.written_at = now
        self._file = file
        try:
            self._writer = make_writer(self._file)
        except BaseException:
            self._close()
            raise

    @property
    def buffered_bytes(self) -> int:
        """Approximately how many of its bytes are only in memory."""
        return self._writer.buffered_bytes

    @property
    def file_bytes(self) -> int:
        """Approximately how many bytes it would have if it were finished now."""
        return self._file.tell() + self._writer.buffered_bytes

    def write(self, delivery: int, chunk: EventChunk, rows: Rows, now: float) -> None:
        self._writer.write(chunk, rows)
        self.ranges.add(chunk.first_sequence, rows)
        self.event_count += len(rows)
        self.deliveries.add(delivery)
        self.written_at = now

    def write_buffered(self) -> None:
        self._writer.write_buffered()

    def finish(self) -> int:
        """Completes and fsyncs it; returns its size in bytes."""
        self._writer.finish()
        self._file.flush()
        os.fsync(self._file.fileno())
        file_bytes = self._file.tell()
        self._file.close()
        return file_bytes

    def discard(self) -> None:
        self._writer.discard()
        self._close()

    def _close(self) -> None:
        # The disk may be full, but the content is no longer needed.
        with suppress(OSError, ValueError):
            self._file.close()
        with suppress(OSError):
            self.staged.unlink()


class OpenFiles:
    """All open files of a sink."""

    def __init__(self, limits: RollLimits, make_writer: Callable[[BinaryIO], EventWriter]) -> None:
        self._limits = limits
        self._make_writer = make_writer
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._next_number = 1

    def __iter__(self) -> Iterator[OpenFile]:
        """Iterates over the files, the least recently written first."""
        return iter(list(self._files.values()))

    def to_evict_for(self, directory: str) -> OpenFile | None:
        """Returns the file to finish before a file is opened for a directory; None if that is not necessary."""
        if directory in self._files or len(self._files) < self._limits.open_files_max:
            return None
        return next(iter(self._files.values()))

    def get(self, directory: str, target: FileTarget, now: float) -> OpenFile:
        """Returns the open file of a directory; opens one if there is none."""
        file = self._files.get(directory)
        if file is None:
            staged = target.staging / f"{self._next_number:06d}.part"
            self._next_number += 1
            file = self._files[directory] = OpenFile(directory, staged, target.create(staged), self._make_writer, now)
        self._files.move_to_end(directory)
        return file

    def space_in(self, file: OpenFile) -> int:
        return self._limits.event_count - file.event_count

    def is_full(self, file: OpenFile) -> bool:
        return file.event_count >= self._limits.event_count or file.file_bytes >= self._limits.file_bytes

    def due_at(self, file: OpenFile) -> float:
        """Returns when to finish a file if it gets no more events."""
        return min(file.opened_at + self._limits.open_seconds, file.written_at + self._limits.idle_seconds)

    def next_due_at(self) -> float | None:
        """Returns when to finish the next file; None if there is none."""
        return min(map(self.due_at, self._files.values()), default=None)

    def remove(self, file: OpenFile) -> None:
        del self._files[file.directory]

    def bound_memory(self) -> None:
        """Writes the largest buffers until all of them together are within the limit."""
        buffered = sum(file.buffered_bytes for file in self._files.values())
        while buffered > BUFFERED_BYTES_MAX:
            largest = max(self._files.values(), key=lambda file: file.buffered_bytes)
            buffered -= largest.buffered_bytes
            largest.write_buffered()

    def discard(self) -> None:
        for file in self:
            self.remove(file)
            file.discard()
