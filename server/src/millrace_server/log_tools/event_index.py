"""An index of a channel's events: which sequences the channel holds, and where their events are in the log."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Never

from millrace_server.channels.batches import StoredBatch, StoredColumns
from millrace_server.channels.records import persisted_batches, restore_batches
from millrace_server.channels.recovery import StateRecovery
from millrace_server.channels.stamps import IntervalSet
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.records import Location

LOST = Location(0, 0, 0)
"""The location of a record that cannot be read."""

Range = tuple[int, int]
"""First and last."""


class Piece(NamedTuple):
    """Adjacent events in one PUT record."""

    first_sequence: int
    event_count: int
    location: Location
    start: int
    """Index of the first event in the record."""
    commit_time: int = 0
    """When the record's first event was committed, in microseconds since 1970; 0 if unknown."""
    offsets: Sequence[int] = ()
    """How much later each event of the record was committed; empty if all were committed at once."""

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.event_count - 1

    @property
    def commit_times(self) -> tuple[int, list[int]]:
        """The time of the first event's commit, and how much later each event was committed."""
        if not self.offsets:
            return self.commit_time, []
        offsets = self.offsets[self.start : self.start + self.event_count]
        return self.commit_time + offsets[0], [offset - offsets[0] for offset in offsets]

    @classmethod
    def of(cls, batch: StoredBatch) -> "Piece":
        """Returns the location of a batch. That of a run is `LOST`, since only its records locate each event."""
        window, stored = batch.window, batch.window.stored
        location = stored.location if stored.location is not None and stored.record_count == 1 else LOST
        offsets = stored.offsets or ()
        return cls(batch.first_sequence, batch.count, location, window.start, batch.commit_time, offsets)


class EventIndex(StateRecovery):
    """A channel's state, and the locations of its events by sequence.

    Attributes:
        present: Sequences in the channel, whether or not their events can be read.
        doubtful: Sequences that a lost record may have removed from the channel.
        unstamped: Sequences whose stamps are lost.
        is_doubtful: Whether a record with unknown content is lost.
        kept_sequence: In a log that a repair or a migration has written, the sequence after the last event that it
            kept; no event has a sequence from there up to the reserve. 0 in other logs, and after a later state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.present = IntervalSet()
        self.doubtful = IntervalSet()
        self.unstamped = IntervalSet()
        self.is_doubtful = False
        self.kept_sequence = 0
        self._pieces: dict[int, Piece] = {}

    def pieces(self) -> Iterator[Piece]:
        """Yields the events that are present and have a location, by sequence."""
        end = 0
        for _, piece in sorted(self._pieces.items()):
            # A checkpoint and a commit may refer to the same record.
            for first, last in intersection(self.present, max(piece.first_sequence, end), piece.last_sequence):
                start = piece.start + first - piece.first_sequence
                yield piece._replace(first_sequence=first, event_count=last + 1 - first, start=start)
            end = max(end, piece.last_sequence + 1)

    def commit_events(self, commit: pb.Commit, puts: Sequence[Location], takes: Sequence[pb.Take]) -> None:
        index = 0
        for put, count in zip(puts, commit.put_counts, strict=True):
            offsets = commit.commit_offsets[index : index + count]
            self.add_piece(Piece(commit.first_sequence + index, count, put, 0, commit.commit_time, offsets))
            index += count
        for taken in taken_ranges(takes):
            self.present.remove(*taken)

    def persist_events(self, message: pb.MemoryState, puts: Sequence[Location]) -> None:
        for batch in persisted_batches(message, puts, self):
            self.add_piece(Piece.of(batch))

    def read(self, _stored: StoredColumns) -> Never:
        """Never called: events are read by their locations."""
        raise AssertionError

    def add_piece(self, piece: Piece) -> None:
        self.add_lost(piece.first_sequence, piece.first_sequence + piece.event_count)
        if piece.location != LOST:
            self._pieces[piece.first_sequence] = piece

    @property
    def _gap(self) -> range:
        """The unassigned sequences after the last event that a repair has kept."""
        return range(self.kept_sequence, self.reserved_sequence if self.kept_sequence else 0)

    def dense(self, sequence: int) -> int:
        """Returns a sequence minus the gap of a repair before it, so that adjacent events have adjacent numbers."""
        gap = self._gap
        return sequence - len(gap) if sequence >= gap.stop else min(sequence, gap.start)

    def sparse(self, dense: int) -> int:
        """Returns the sequence of a number from `dense`."""
        gap = self._gap
        return dense + len(gap) if dense >= gap.start else dense

    def outside_gap(self, first: int, end: int) -> Iterator[Range]:
        """Yields the ranges from `first` up to `end` that events can have."""
        gap = self._gap
        for start, stop in ((first, min(end, gap.start)), (max(first, gap.stop), end)):
            if start < stop:
                yield start, stop - 1

    def add_lost(self, first: int, end: int) -> None:
        """Adds sequences to the channel, without locations of their events."""
        for part in self.outside_gap(first, end):
            self.present.add(*part)

    def mark_unstamped(self, first: int, end: int) -> None:
        """Notes that the stamps of some sequences are lost."""
        for part in self.outside_gap(first, end):
            self.unstamped.add(*part)

    def mark_doubtful(self, ranges: Iterable[Range]) -> None:
        """Notes that a lost record may have removed some sequences from the channel."""
        for first, last in ranges:
            for part in intersection(self.present, first, last):
                self.doubtful.add(*part)

    def on_state(self, state: pb.State) -> None:
        self._adopt(state)

    def on_memory_state(self, message: pb.MemoryState, puts: Sequence[Location], problem: str) -> None:
        self._adopt(message.state)
        super().on_memory_state(message, puts, problem)

    def restore_checkpoint(self, message: pb.Checkpoint) -> None:
        """Replaces the channel with that of a checkpoint."""
        self._adopt(message.state)
        self.has_state = True
        self.next_sequence, self.reserved_sequence = message.state.next_sequence, message.state.reserved_sequence
        self.present, self.doubtful = IntervalSet(), IntervalSet()
        self.note_time(message.state.last_commit_time)
        for batch in restore_batches(message.batches, self):
            self.add_piece(Piece.of(batch))

    def _adopt(self, state: pb.State) -> None:
        """Adopts a state, which includes the stamps, ended transactions and claims of lost records before it."""
        self.kept_sequence = state.kept_sequence
        if self.is_doubtful or not self.has_state:
            self.restore_state(state)
            self.unstamped, self.is_doubtful = IntervalSet(), False


def intersection(intervals: IntervalSet, first: int, last: int) -> Iterator[Range]:
    """Yields the parts of `first` to `last` that are in a set."""
    for gap_first, gap_last in [*intervals.gaps(first, last), (last + 1, last + 1)]:
        if first < gap_first:
            yield first, gap_first - 1
        first = gap_last + 1


def taken_ranges(takes: Iterable[pb.Take]) -> Iterator[Range]:
    """Yields the ranges of sequences that TAKE records take."""
    for take in takes:
        for first, count in zip(take.first_sequences, take.counts, strict=True):
            yield first, first + count - 1


def shown_ranges(ranges: Sequence[Range]) -> str:
    """Returns ranges of sequences as text."""
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges)
