"""Accounts for what a channel holds: which of its sequences are in it, and where in the log their events lie."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Never

from google.protobuf.message import DecodeError

from millrace.columns import ColumnsError, check_columns
from millrace.v1 import event_pb2
from millrace_server.channels.batches import StoredBatch, StoredColumns
from millrace_server.channels.records import persisted_batches, restore_batches
from millrace_server.channels.recovery import StateRecovery
from millrace_server.channels.stamps import IntervalSet
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.log import LogRecord
from millrace_server.wal.payload_codec import Payload
from millrace_server.wal.records import Location
from millrace_server.wal.segments import LogCorruptError

LOST = Location(0, 0, 0)
"""Stands for the location of a record that cannot be read."""

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
    """When the record's first event was committed, in microseconds since 1970; 0: unknown."""
    offsets: Sequence[int] = ()
    """For each event of the record, how much later it was committed; empty: all were then."""

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
        """Returns a batch, unless it is a run: where each event of a run lies, only its records say."""
        window, stored = batch.window, batch.window.stored
        location = stored.location if stored.location is not None and stored.record_count == 1 else LOST
        offsets = stored.offsets or ()
        return cls(batch.first_sequence, batch.count, location, window.start, batch.commit_time, offsets)


class ChannelAccount(StateRecovery):
    """A channel's state, and its events by their sequences.

    Attributes:
        present: Sequences in the channel, whether or not their events can be read.
        doubtful: Sequences that a lost record may have removed from it.
        unstamped: Sequences whose stamps are lost.
        is_doubtful: Whether a record is lost of which no one knows what it said.
        kept_sequence: In a log that a repair or a migration has written, the sequence after the last event that it
            kept: from there up to the reserve there is none. 0: another log, or other states followed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.present = IntervalSet()
        self.doubtful = IntervalSet()
        self.unstamped = IntervalSet()
        self.is_doubtful = False
        self.kept_sequence = 0
        self._places: dict[int, Piece] = {}

    def pieces(self) -> Iterator[Piece]:
        """Yields, by their sequences, the events that are present and have a place."""
        end = 0
        for _, place in sorted(self._places.items()):
            # A checkpoint and a commit may name the same record.
            for first, last in common(self.present, max(place.first_sequence, end), place.last_sequence):
                start = place.start + first - place.first_sequence
                yield place._replace(first_sequence=first, event_count=last + 1 - first, start=start)
            end = max(end, place.last_sequence + 1)

    def commit_events(self, commit: pb.Commit, puts: Sequence[Location], takes: Sequence[pb.Take]) -> None:
        index = 0
        for put, count in zip(puts, commit.put_counts, strict=True):
            offsets = commit.commit_offsets[index : index + count]
            self.place(Piece(commit.first_sequence + index, count, put, 0, commit.commit_time, offsets))
            index += count
        for take in takes:
            for first, count in zip(take.first_sequences, take.counts, strict=True):
                self.present.remove(first, first + count - 1)

    def persist_events(self, message: pb.MemoryState, puts: Sequence[Location]) -> None:
        for batch in persisted_batches(message, puts, self):
            self.place(Piece.of(batch))

    def read(self, _stored: StoredColumns) -> Never:
        """Is not called: the events are read by their places."""
        raise AssertionError

    def place(self, piece: Piece) -> None:
        self.add_lost(piece.first_sequence, piece.first_sequence + piece.event_count)
        if piece.location != LOST:
            self._places[piece.first_sequence] = piece

    @property
    def _gap(self) -> range:
        """The sequences after the last event that a repair has kept, which no event has."""
        return range(self.kept_sequence, self.reserved_sequence if self.kept_sequence else 0)

    def dense(self, sequence: int) -> int:
        """Returns a sequence less the gap that a repair has left before it."""
        gap = self._gap
        return sequence - len(gap) if sequence >= gap.stop else min(sequence, gap.start)

    def sparse(self, dense: int) -> int:
        """Returns the sequence of which `dense` makes this."""
        gap = self._gap
        return dense + len(gap) if dense >= gap.start else dense

    def outside_gap(self, first: int, end: int) -> Iterator[Range]:
        """Yields the sequences from one up to another that events may have."""
        gap = self._gap
        for start, stop in ((first, min(end, gap.start)), (max(first, gap.stop), end)):
            if start < stop:
                yield start, stop - 1

    def add_lost(self, first: int, end: int) -> None:
        """Adds sequences to the channel whose events have no place."""
        for part in self.outside_gap(first, end):
            self.present.add(*part)

    def lose_stamps(self, first: int, end: int) -> None:
        """Notes that the stamps of some sequences are lost."""
        for part in self.outside_gap(first, end):
            self.unstamped.add(*part)

    def doubt(self, ranges: Iterable[Range]) -> None:
        """Notes that a lost record may have removed some sequences from the channel."""
        for first, last in ranges:
            for part in common(self.present, first, last):
                self.doubtful.add(*part)

    def on_state(self, state: pb.State) -> None:
        self._believe(state)

    def on_memory_state(self, message: pb.MemoryState, puts: Sequence[Location], problem: str) -> None:
        self._believe(message.state)
        super().on_memory_state(message, puts, problem)

    def restore_checkpoint(self, message: pb.Checkpoint) -> None:
        """Replaces the channel by that of a checkpoint."""
        self._believe(message.state)
        self.has_state = True
        self.next_sequence, self.reserved_sequence = message.state.next_sequence, message.state.reserved_sequence
        self.present, self.doubtful = IntervalSet(), IntervalSet()
        self.note_time(message.state.last_commit_time)
        for batch in restore_batches(message.batches, self):
            self.place(Piece.of(batch))

    def _believe(self, state: pb.State) -> None:
        """Takes over a state, which has all that lost records before it said of stamps, transactions and claims."""
        self.kept_sequence = state.kept_sequence
        if self.is_doubtful or not self.has_state:
            self.restore_state(state)
            self.unstamped, self.is_doubtful = IntervalSet(), False


def common(intervals: IntervalSet, first: int, last: int) -> Iterator[Range]:
    """Yields the parts of `first` to `last` that are in a set."""
    for gap_first, gap_last in [*intervals.gaps(first, last), (last + 1, last + 1)]:
        if first < gap_first:
            yield first, gap_first - 1
        first = gap_last + 1


def shown_ranges(ranges: Sequence[Range]) -> str:
    """Returns ranges of sequences as text."""
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges)


def readable_columns(record: LogRecord) -> event_pb2.EventColumns | None:
    """Returns the events of a PUT record; None if it does not hold any."""
    try:
        return columns_of(record.payload)
    except LogCorruptError:
        return None


def columns_of(payload: Payload) -> event_pb2.EventColumns | None:
    """Returns the events of a PUT record's payload; None if it does not hold any."""
    try:
        columns = event_pb2.EventColumns.FromString(bytes(payload))
        check_columns(columns)
    except (DecodeError, ColumnsError):
        return None
    return columns
