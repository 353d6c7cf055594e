"""Replays a damaged log, which lacks records, into an index of the channel's events.

Records are matched by their LSNs. A COMMIT states how many of the PUT and TAKE records right before it belong to it,
and the sequences of its events, so a lost PUT costs only its own events. If the COMMIT itself is lost, its neighbours
usually show which sequences its events had, because without a reserve sequences have no gaps. The COMMIT records of a
repair state the gaps that it left.
"""

from contextlib import suppress

from google.protobuf.message import Message

from millrace_server.channels.memory_tier import RESERVED_AHEAD
from millrace_server.channels.replay import ContradictionError, decode_message
from millrace_server.channels.stamps import IntervalSet
from millrace_server.log_tools.contents_check import columns_of
from millrace_server.log_tools.event_index import LOST, EventIndex, Piece, taken_ranges
from millrace_server.log_tools.placement import Group, Step, are_commits_alone, event_count, placed
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.format import RECORD_HEAD_BYTES, Flags, Kind
from millrace_server.wal.log import LogRecord
from millrace_server.wal.segments import LogCorruptError

_EVENTS_A_BYTE_MAX = 1 << 15
"""Maximum number of events per byte of a compressed record. Uncompressed, each event takes at least one byte."""

_PAIR = 2
"""A PUT and its COMMIT."""

_RECORDS_MIN = 3
"""The number of missing records that is assumed where nothing states it: a STATE, a PUT and its COMMIT."""


class DamagedReplay:
    """Replays the valid records of a log in order, and accounts for the records that are missing between them.

    Args:
        checkpoint: The newest valid checkpoint.
        has_reserves: Whether sequences may have gaps because some events were in memory only.

    Attributes:
        index: The channel's state and events.
        lsn: LSN of the next record; 0 if unknown.
        gap_bytes: Bytes since the last record that belong to no valid record.
        knows_lengths: Whether the full length of each segment so far is known.
        is_damaged: Whether records are missing.
        bound_from: The first sequence lost at the log's end, if only the maximum number of these is known; else 0.
        has_reserves: As passed; also true after a MEMORY_STATE, or after a reserve that is not of a repair.
    """

    def __init__(self, checkpoint: Checkpoint | None, *, has_reserves: bool) -> None:
        self.index = EventIndex()
        self.is_damaged = False
        self.bound_from = 0
        self.has_reserves = has_reserves
        self._checkpoint = checkpoint
        self.lsn = 0
        self.gap_bytes = 0
        self.knows_lengths = True
        self._state_lsn = 0
        self._segment_id = 0
        self._is_segment_lost = False  # Whether the segment has had no valid record so far.
        # Since the last record that states the next sequence:
        self._pending: dict[int, LogRecord] = {}
        self._missing: list[range] = []
        self._missing_bytes = 0
        self._knows_sequence = False
        self._has_beginning = False  # Whether the log still has its first record; no sequence is older.
        self._lacks_reserve = False  # Whether a lost record may have stated a higher reserve than is known.
        # Reserved sequences that no record has mentioned so far: those of events that were in memory only.
        self._skipped = IntervalSet()
        self._is_compressed = False

    def begin_segment(self, segment_id: int, first_lsn: int) -> None:
        """Begins a segment; `first_lsn` is 0 if its header is damaged."""
        if not self.lsn and segment_id == 1:
            first_lsn = 1
        if not self.lsn and not self.gap_bytes:
            self.lsn = first_lsn
            self._has_beginning = first_lsn == 1
        elif first_lsn >= self.lsn:
            # If the first segment has lost its header too, the number of its records is unknown.
            self.lsn = self.lsn or max(first_lsn - _RECORDS_MIN, 1)
            self._note_missing_before(first_lsn)
        # The first record of a segment is a STATE: if only that is lost, no event is.
        self._state_lsn = first_lsn or (0 if self.gap_bytes else self.lsn)
        self._segment_id, self._is_segment_lost = segment_id, True

    def add(self, lsn: int, record: LogRecord) -> None:
        """Adds the next valid record. One with an LSN that has passed is not part of this log, and is ignored."""
        self._is_segment_lost = False
        if lsn < self.lsn:
            return
        if 0 < self.lsn == self._state_lsn < lsn:
            self.index.is_doubtful |= not self.index.has_state
            self._lacks_reserve = True
            self.lsn += 1
        if not self.lsn:
            # With the header damaged too, nothing states how many records are missing at the log's beginning.
            self.lsn = max(lsn - 2, 1) if self.gap_bytes else lsn
            self._has_beginning = self.lsn == 1
        self._note_missing_before(lsn)
        if self._checkpoint is not None and lsn >= self._checkpoint.position.lsn:
            self._pass_checkpoint(self._checkpoint)
        self.lsn = lsn + 1
        self._is_compressed |= Flags.COMPRESSED in record.flags
        if record.kind in {Kind.PUT, Kind.TAKE}:
            self._pending[lsn] = record
        elif record.kind is not Kind.SYNC_POINT:
            self._apply(lsn, record)
        index = self.index
        is_reserve_of_memory = index.reserved_sequence > index.next_sequence and not index.kept_sequence
        self.has_reserves |= record.kind is Kind.MEMORY_STATE or is_reserve_of_memory

    @property
    def is_without_sequences(self) -> bool:
        """Whether the log lacks its beginning, and no record states a sequence."""
        # A lost STATE costs no event, but may have been the only record with a sequence.
        is_known = self._knows_sequence or self._has_beginning
        return not is_known and (self.is_damaged or self.index.is_doubtful)

    def finish(self, written_bytes: int) -> None:
        """Ends the log, whose last segment was written up to `written_bytes`."""
        lost_bytes = self.gap_bytes if self._is_segment_lost else 0
        record_count = _RECORDS_MIN
        if self._checkpoint is not None:
            position = self._checkpoint.position
            if position.lsn > self.lsn and position.segment_id >= self._segment_id:
                # The checkpoint states how many records preceded its position.
                lost_bytes = written_bytes - position.position if position.segment_id == self._segment_id else 0
                record_count = _PAIR
            self._note_missing_before(max(self.lsn, position.lsn))
            self._pass_checkpoint(self._checkpoint)
        if lost_bytes > RECORD_HEAD_BYTES:
            self._note_missing_end(lost_bytes, record_count)
        self._settle(self.lsn, None)
        index = self.index
        if self.has_reserves and self._lacks_reserve:
            # Readers may have seen events in memory with sequences up to the reserve that is lost.
            index.reserved_sequence = max(index.reserved_sequence, index.next_sequence) + RESERVED_AHEAD

    def _note_missing_end(self, byte_count: int, record_count: int) -> None:
        """Notes that records are missing at the log's end: at least `record_count`, at most what the bytes can hold."""
        # This is not a torn tail: a segment gets its name after its first record was synced, and a checkpoint is
        # written after everything before its position.
        end = self.lsn + record_count
        self.is_damaged = True
        self._missing.append(range(self.lsn, end))
        self._missing_bytes += byte_count
        self.lsn = end

    def _note_missing_before(self, lsn: int) -> None:
        # Only SYNC_POINTs are this short, and they carry nothing that is missed.
        if self.lsn < lsn and self.gap_bytes != (lsn - self.lsn) * RECORD_HEAD_BYTES:
            self.is_damaged = True
            self._missing.append(range(self.lsn, lsn))
            self._missing_bytes += self.gap_bytes
        self.lsn, self.gap_bytes = lsn, 0

    def _pass_checkpoint(self, checkpoint: Checkpoint) -> None:
        message = pb.Checkpoint.FromString(checkpoint.state)
        self._settle(checkpoint.position.lsn, message.state.next_sequence)
        self.index.restore_checkpoint(message)
        self._lacks_reserve = False
        self._checkpoint = None

    def _apply(self, lsn: int, record: LogRecord) -> None:
        index, next_sequence = self.index, self.index.next_sequence
        try:
            message = decode_message(record)
            self._settle_before(lsn, message)
            next_sequence = index.next_sequence
            index.apply(record)
            if isinstance(message, pb.Commit) and message.empty_to:
                index.next_sequence = message.empty_to
            self._lacks_reserve &= record.kind not in {Kind.STATE, Kind.MEMORY_STATE}
            has_no_reserve = index.reserved_sequence <= index.next_sequence
            if record.kind in {Kind.STATE, Kind.MEMORY_STATE} and (has_no_reserve or index.kept_sequence):
                # A MEMORY_STATE that ends a reserve holds all events that were in memory only; a repair leaves none.
                self._skipped = IntervalSet()
        except (ContradictionError, LogCorruptError):
            # A record that contradicts the others counts as lost.
            index.next_sequence = max(next_sequence, index.next_sequence)
            self._missing.append(range(lsn, lsn + 1))

    def _settle_before(self, lsn: int, message: Message) -> None:
        match message:
            case pb.Commit():
                first_lsn = lsn - len(message.put_counts) - message.take_records
                self._settle(
                    first_lsn, message.empty_from or message.first_sequence, is_of_repair=message.empty_from > 0
                )
                if message.empty_from:
                    self._pass_gap(message)
                self._apply_own(range(first_lsn, lsn), len(message.put_counts))
            case pb.MemoryState():
                self._settle(lsn - len(message.put_counts), message.state.next_sequence)
                self._apply_own(range(lsn - len(message.put_counts), lsn), len(message.put_counts))
            case pb.State():
                self._settle(lsn, message.next_sequence)
            case _:
                # The others state no sequence.
                pass

    def _pass_gap(self, commit: pb.Commit) -> None:
        """Continues at a COMMIT that a repair has written, whose stamps are in the STATE."""
        index = self.index
        index.next_sequence = commit.first_sequence
        if not index.has_state:
            index.is_doubtful = True
            index.mark_unstamped(1, commit.empty_to)

    def _apply_own(self, lsns: range, put_count: int) -> None:
        """Applies the PUT and TAKE records of a COMMIT, with empty records in place of lost ones."""
        for index, lsn in enumerate(lsns):
            kind = Kind.PUT if index < put_count else Kind.TAKE
            record = self._pending.get(lsn)
            if record is None or record.kind is not kind:
                record = LogRecord(kind, Flags(0), LOST, lambda: b"")
                if kind is Kind.TAKE:
                    self.index.mark_doubtful(list(self.index.present))
            self.index.apply(record)
        self._pending, self._missing, self._missing_bytes = {}, [], 0

    def _settle(self, lsn: int, next_sequence: int | None, *, is_of_repair: bool = False) -> None:
        """Accounts for the missing records before an LSN.

        Args:
            lsn: LSN of a record that was found.
            next_sequence: The next sequence before that record; None if unknown.
            is_of_repair: Whether a repair wrote that record, and therefore all before it.
        """
        groups = [self._group(range(one.start, min(one.stop, lsn))) for one in self._missing if one.start < lsn]
        self._missing = [range(max(one.start, lsn), one.stop) for one in self._missing if one.stop > lsn]
        self._pending = {key: record for key, record in self._pending.items() if key >= lsn}
        index = self.index
        is_front_known = self._knows_sequence or self._has_beginning or next_sequence is None
        if not self._knows_sequence and next_sequence is not None:
            self._begin(self._first_missing(groups, next_sequence))
        if groups and (is_of_repair or self._are_last_of_repair(groups)):
            self._settle_groups(groups, next_sequence, is_front_known=is_front_known, is_of_repair=True)
        elif groups:
            index.is_doubtful = self._lacks_reserve = True
            # One of them may have been a MEMORY_STATE, the only record with the stamps of events in memory.
            for skipped in self._skipped:
                index.unstamped.add(*skipped)
            if self._may_skip_sequences(groups, next_sequence):
                self._give_up_groups(groups, next_sequence)
            else:
                self._settle_groups(groups, next_sequence, is_front_known=is_front_known, is_of_repair=False)
        elif next_sequence is not None and next_sequence > index.next_sequence:
            # No record is missing here, so the gap is that of a reserve, perhaps one that a lost record stated.
            self._skip(index.next_sequence, next_sequence)
            if next_sequence > index.reserved_sequence:
                self.has_reserves = True
                index.add_lost(index.next_sequence, next_sequence)
            index.next_sequence = next_sequence

    def _first_missing(self, groups: list[Group], next_sequence: int) -> int:
        """Returns the lowest sequence that records lost at the log's beginning can have had."""
        if not groups:
            return next_sequence
        is_bounded = self.knows_lengths and not (self._has_beginning or self.has_reserves)
        return max(next_sequence - self._most_missing(groups), 1) if is_bounded else 1

    def _begin(self, next_sequence: int) -> None:
        """Notes the next sequence at the log's beginning; the records before it have been removed."""
        index = self.index
        self._knows_sequence = True
        index.next_sequence = next_sequence
        if next_sequence > 1 and index.is_doubtful:
            # The log's first STATE is lost, and with it the stamps of all events from before the log's beginning.
            index.unstamped.add(1, next_sequence - 1)
        if next_sequence > 1 and self.has_reserves:
            # Events in memory may be older than the log's first record.
            self._skip(1, next_sequence)

    def _skip(self, first: int, end: int) -> None:
        """Notes that sequences may be those of events in memory, unless they are in the gap of a repair."""
        if self.index.kept_sequence:
            first = max(first, self.index.reserved_sequence)
        if first < end:
            self._skipped.add(first, end - 1)

    def _group(self, missing: range) -> Group:
        group = Group(missing)
        lsn = missing.start - 1
        while (record := self._pending.get(lsn)) is not None:
            if record.kind is Kind.TAKE:
                group.takes.append(pb.Take.FromString(bytes(record.payload)))
            else:
                with suppress(ContradictionError, LogCorruptError):
                    group.puts.insert(0, (record, columns_of(record.payload).count))
            lsn -= 1
        return group

    def _may_skip_sequences(self, groups: list[Group], next_sequence: int | None) -> bool:
        """Whether sequences between the groups may belong to events that were in memory only."""
        index, count = self.index, event_count(groups)
        if not self.has_reserves and (index.kept_sequence or index.reserved_sequence <= index.next_sequence):
            return False
        is_step_explained = next_sequence == index.next_sequence + count or not count
        return not (is_step_explained and are_commits_alone(groups))

    def _give_up_groups(self, groups: list[Group], next_sequence: int | None) -> None:
        """Counts all sequences that the groups may have as lost, since they cannot be assigned to single groups.

        A group may also have held the events of a MEMORY_STATE, whose sequences were assigned long before.
        """
        index, first = self.index, self.index.next_sequence
        end = first + self._most_missing(groups) if next_sequence is None else max(first, next_sequence)
        if next_sequence is None:
            end = max(end, index.reserved_sequence)
            self.bound_from = first if first < end else 0
        for skipped_first, skipped_last in self._skipped:
            index.add_lost(skipped_first, skipped_last + 1)
        index.add_lost(first, end)
        index.next_sequence = end
        if first < end:
            index.mark_unstamped(first, end)
            self._skip(first, end)
        index.mark_doubtful(list(index.present))

    def _settle_groups(
        self, groups: list[Group], next_sequence: int | None, *, is_front_known: bool, is_of_repair: bool
    ) -> None:
        index = self.index
        begin, first = index.next_sequence, index.dense(index.next_sequence)
        end = self._highest_end(groups, first) if next_sequence is None else max(first, index.dense(next_sequence))
        may_have_gaps = is_of_repair or first < index.kept_sequence
        placement = placed(groups, Step(first, end, is_front_known, next_sequence is not None, may_have_gaps))
        for group, dense in placement.sequences:
            self._place(group, dense)
            if self.has_reserves and group.puts and not is_of_repair:
                # A stop may have written them, and some may have been consumed while they were in memory.
                index.mark_doubtful([(index.sparse(dense), index.sparse(dense + group.event_count - 1))])
        index.next_sequence = index.sparse(end)
        lost_first, lost_end = index.sparse(placement.open_first), index.sparse(placement.open_end)
        if next_sequence is None and lost_first < lost_end and end != index.kept_sequence:
            self.bound_from = lost_first
        if is_of_repair:
            # A repair writes only PUT records and their COMMITs, without stamps.
            index.add_lost(lost_first, lost_end)
            return
        # Sequences that no record has are those of a reserve, unless a missing record may have put events.
        is_reserve_alone = is_front_known and are_commits_alone(groups)
        self.has_reserves |= is_reserve_alone and lost_first < lost_end
        if not is_reserve_alone or index.next_sequence > index.reserved_sequence:
            index.add_lost(lost_first, lost_end)
        if self.has_reserves and lost_first < lost_end:
            self._skip(lost_first, lost_end)
        index.mark_unstamped(begin, index.next_sequence)
        # If only a PUT and its COMMIT are missing, no TAKE is.
        missing_count = sum(len(group.missing) for group in groups if not group.is_commit_alone)
        has_no_take = next_sequence is not None and lost_first < lost_end and missing_count == _PAIR
        for group in groups:
            is_small = group.is_commit_alone or has_no_take
            index.mark_doubtful(taken_ranges(group.takes) if is_small else list(index.present))

    def _highest_end(self, groups: list[Group], first: int) -> int:
        """Returns the highest end that the sequences of groups at the log's end can have, beginning with `first`."""
        if self._are_last_of_repair(groups):
            return self.index.kept_sequence
        return first + (event_count(groups) if are_commits_alone(groups) else self._most_missing(groups))

    def _are_last_of_repair(self, groups: list[Group]) -> bool:
        """Whether all that is missing is a PUT, its COMMIT, or both, of the last events that a repair has kept."""
        record_count = sum(len(group.missing) + len(group.puts) for group in groups)
        return self.index.next_sequence < self.index.kept_sequence and record_count <= _PAIR

    def _most_missing(self, groups: list[Group]) -> int:
        """Returns the maximum number of events that the log's end can have lost."""
        events_a_byte = _EVENTS_A_BYTE_MAX if self._is_compressed else 1
        payload_bytes = self._missing_bytes - sum(len(group.missing) for group in groups) * RECORD_HEAD_BYTES
        return event_count(groups) + max(payload_bytes, 0) * events_a_byte

    def _place(self, group: Group, dense: int) -> None:
        for record, count in group.puts:
            self.index.add_piece(Piece(self.index.sparse(dense), count, record.location, 0))
            dense += count
