"""Makes the records of a damaged log, which has gaps, into those of a log without any.

Records are matched by their LSNs. A COMMIT says how many PUT and TAKE records right before it are its own, and which
sequences their events have; so a lost PUT costs its own events, and no others. If the COMMIT itself is lost, those
around it tell in most cases which sequences its events have, because sequences have no gaps without a reserve. Where a
repair has left gaps, its COMMIT records tell them.
"""

from collections.abc import Iterable, Iterator

from google.protobuf.message import Message

from millrace_server.channels.memory_tier import RESERVED_AHEAD
from millrace_server.channels.replay import ContradictionError, decode_message
from millrace_server.channels.stamps import IntervalSet
from millrace_server.log_tools.account import LOST, ChannelAccount, Piece, Range, readable_columns
from millrace_server.log_tools.placing import Group, Step, are_commits_alone, event_count, placed
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.format import RECORD_HEAD_BYTES, Flags, Kind
from millrace_server.wal.log import LogRecord
from millrace_server.wal.segments import LogCorruptError

_EVENTS_A_BYTE_MAX = 1 << 15
"""How many events a byte of a compressed record may hold. Uncompressed, each event takes a byte or more."""

_PAIR = 2
"""A PUT and its COMMIT."""

_RECORDS_MIN = 3
"""How many records there were at least where it is not known: a STATE, a PUT and its COMMIT."""


class LogMender:
    """Feeds a channel's account with the records of a log that has gaps, in order.

    Args:
        account: The account of an empty channel.
        checkpoint: The newest valid checkpoint.
        has_reserves: Whether sequences may have gaps, because some events were in memory only.

    Attributes:
        account: The account that it feeds.
        lsn: LSN of the next record.
        gap_bytes: Bytes since the last record that are no valid record.
        knows_lengths: Whether none of the segments so far may have lost its end.
        is_damaged: Whether records are missing.
        bound_from: The sequence from which on those lost at the log's end are an upper bound; 0: there are none.
        has_reserves: As given, and true once a MEMORY_STATE was fed, or a reserve was in force that is not of a repair.
    """

    def __init__(self, account: ChannelAccount, checkpoint: Checkpoint | None, *, has_reserves: bool) -> None:
        self.account = account
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
        # Since the last record that says what the next sequence is:
        self._pending: dict[int, LogRecord] = {}
        self._missing: list[range] = []
        self._missing_bytes = 0
        self._knows_sequence = False
        self._has_beginning = False  # Whether the log has its very first record, before which no sequence was given.
        self._lacks_reserve = False  # Whether a record is lost that may have stated a later reserve than is known.
        # Sequences that a reserve explains and no record has had so far: those of events that were in memory only.
        self._skipped = IntervalSet()
        self._is_compressed = False

    def begin_segment(self, segment_id: int, first_lsn: int) -> None:
        """Begins a segment; `first_lsn` is 0 if its header does not tell."""
        if not self.lsn and segment_id == 1:
            first_lsn = 1
        if not self.lsn and not self.gap_bytes:
            self.lsn = first_lsn
            self._has_beginning = first_lsn == 1
        elif first_lsn >= self.lsn:
            # Of the records of a first segment that has lost its header, too, no one knows how many there were.
            self.lsn = self.lsn or max(first_lsn - _RECORDS_MIN, 1)
            self._miss_before(first_lsn)
        # The first record is a STATE: if that alone is lost, no event is.
        self._state_lsn = first_lsn or (0 if self.gap_bytes else self.lsn)
        self._segment_id, self._is_segment_lost = segment_id, True

    def feed(self, lsn: int, record: LogRecord) -> None:
        """Adds the next valid record. One whose LSN was there before has no effect: it is no part of this log."""
        self._is_segment_lost = False
        if lsn < self.lsn:
            return
        if 0 < self.lsn == self._state_lsn < lsn:
            self.account.is_doubtful |= not self.account.has_state
            self._lacks_reserve = True
            self.lsn += 1
        if not self.lsn:
            # If the header is damaged, too, nothing says how many records are missing at the log's beginning.
            self.lsn = max(lsn - 2, 1) if self.gap_bytes else lsn
            self._has_beginning = self.lsn == 1
        self._miss_before(lsn)
        if self._checkpoint is not None and lsn >= self._checkpoint.position.lsn:
            self._pass_checkpoint(self._checkpoint)
        self.lsn = lsn + 1
        self._is_compressed |= Flags.COMPRESSED in record.flags
        if record.kind in {Kind.PUT, Kind.TAKE}:
            self._pending[lsn] = record
        elif record.kind is not Kind.SYNC_POINT:
            self._apply(lsn, record)
        account = self.account
        is_reserve_of_memory = account.reserved_sequence > account.next_sequence and not account.kept_sequence
        self.has_reserves |= record.kind is Kind.MEMORY_STATE or is_reserve_of_memory

    @property
    def is_without_sequences(self) -> bool:
        """Whether no record said what the next sequence was, in a log without its beginning."""
        # A lost STATE alone costs no event, but may have been all that told.
        is_told = self._knows_sequence or self._has_beginning
        return not is_told and (self.is_damaged or self.account.is_doubtful)

    def finish(self, written_bytes: int) -> None:
        """Ends the log, whose last segment was written up to this position."""
        lost_bytes = self.gap_bytes if self._is_segment_lost else 0
        record_count = _RECORDS_MIN
        if self._checkpoint is not None:
            position = self._checkpoint.position
            if position.lsn > self.lsn and position.segment_id >= self._segment_id:
                # It says what there was before its position.
                lost_bytes = written_bytes - position.position if position.segment_id == self._segment_id else 0
                record_count = _PAIR
            self._miss_before(max(self.lsn, position.lsn))
            self._pass_checkpoint(self._checkpoint)
        if lost_bytes > RECORD_HEAD_BYTES:
            self._miss_end(lost_bytes, record_count)
        self._settle(self.lsn, None)
        account = self.account
        if self.has_reserves and self._lacks_reserve:
            # Readers may have seen events that were in memory, with sequences below the reserve that is lost.
            account.reserved_sequence = max(account.reserved_sequence, account.next_sequence) + RESERVED_AHEAD

    def _miss_end(self, byte_count: int, record_count: int) -> None:
        """Notes that records at the log's end are missing: so many at least, and as many as the bytes may have had."""
        # No torn tail, since a segment has its name only after its first record was synced, and a checkpoint is written
        # after all before it.
        end = self.lsn + record_count
        self.is_damaged = True
        self._missing.append(range(self.lsn, end))
        self._missing_bytes += byte_count
        self.lsn = end

    def _miss_before(self, lsn: int) -> None:
        # Only SYNC_POINTs are as short as this, and nothing that they say is missed.
        if self.lsn < lsn and self.gap_bytes != (lsn - self.lsn) * RECORD_HEAD_BYTES:
            self.is_damaged = True
            self._missing.append(range(self.lsn, lsn))
            self._missing_bytes += self.gap_bytes
        self.lsn, self.gap_bytes = lsn, 0

    def _pass_checkpoint(self, checkpoint: Checkpoint) -> None:
        message = pb.Checkpoint.FromString(checkpoint.state)
        self._settle(checkpoint.position.lsn, message.state.next_sequence)
        self.account.restore_checkpoint(message)
        self._lacks_reserve = False
        self._checkpoint = None

    def _apply(self, lsn: int, record: LogRecord) -> None:
        account, next_sequence = self.account, self.account.next_sequence
        try:
            message = decode_message(record)
            self._settle_before(lsn, message)
            next_sequence = account.next_sequence
            account.apply(record)
            if isinstance(message, pb.Commit) and message.empty_to:
                account.next_sequence = message.empty_to
            self._lacks_reserve &= record.kind not in {Kind.STATE, Kind.MEMORY_STATE}
            has_no_reserve = account.reserved_sequence <= account.next_sequence
            if record.kind in {Kind.STATE, Kind.MEMORY_STATE} and (has_no_reserve or account.kept_sequence):
                # A MEMORY_STATE that ends a reserve has all events that were in memory only; a repair leaves none.
                self._skipped = IntervalSet()
        except (ContradictionError, LogCorruptError):
            # What it says is as good as lost.
            account.next_sequence = max(next_sequence, account.next_sequence)
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
                # It says nothing of sequences.
                pass

    def _pass_gap(self, commit: pb.Commit) -> None:
        """Continues at a COMMIT that a repair has written. Its stamps are in the STATE."""
        account = self.account
        account.next_sequence = commit.first_sequence
        if not account.has_state:
            account.is_doubtful = True
            account.lose_stamps(1, commit.empty_to)

    def _apply_own(self, lsns: range, put_count: int) -> None:
        """Applies the PUT and TAKE records of a COMMIT, and empty ones in place of those that are lost."""
        for index, lsn in enumerate(lsns):
            kind = Kind.PUT if index < put_count else Kind.TAKE
            record = self._pending.get(lsn)
            if record is None or record.kind is not kind:
                record = LogRecord(kind, Flags(0), LOST, lambda: b"")
                if kind is Kind.TAKE:
                    self.account.doubt(list(self.account.present))
            self.account.apply(record)
        self._pending, self._missing, self._missing_bytes = {}, [], 0

    def _settle(self, lsn: int, next_sequence: int | None, *, is_of_repair: bool = False) -> None:
        """Accounts for the records before an LSN, where the next sequence is this one; None: no one knows.

        `is_of_repair`: the record there was written by a repair, and so were all before it.
        """
        groups = [self._group(range(one.start, min(one.stop, lsn))) for one in self._missing if one.start < lsn]
        self._missing = [range(max(one.start, lsn), one.stop) for one in self._missing if one.stop > lsn]
        self._pending = {key: record for key, record in self._pending.items() if key >= lsn}
        account = self.account
        is_front_known = self._knows_sequence or self._has_beginning or next_sequence is None
        if not self._knows_sequence and next_sequence is not None:
            self._begin(self._first_missing(groups, next_sequence))
        if groups and (is_of_repair or self._are_last_of_repair(groups)):
            self._settle_groups(groups, next_sequence, is_front_known=is_front_known, is_of_repair=True)
        elif groups:
            account.is_doubtful = self._lacks_reserve = True
            # Any may have been a MEMORY_STATE, which alone has the stamps of events that were in memory only.
            for skipped in self._skipped:
                account.unstamped.add(*skipped)
            if self._may_skip_sequences(groups, next_sequence):
                self._lose_groups(groups, next_sequence)
            else:
                self._settle_groups(groups, next_sequence, is_front_known=is_front_known, is_of_repair=False)
        elif next_sequence is not None and next_sequence > account.next_sequence:
            # Nothing is missing here, so only a reserve explains the step, if need be one that a lost record had.
            self._skip(account.next_sequence, next_sequence)
            if next_sequence > account.reserved_sequence:
                self.has_reserves = True
                account.add_lost(account.next_sequence, next_sequence)
            account.next_sequence = next_sequence

    def _first_missing(self, groups: list[Group], next_sequence: int) -> int:
        """Returns the lowest sequence that lost records at the log's beginning may have had."""
        if not groups:
            return next_sequence
        is_bounded = self.knows_lengths and not (self._has_beginning or self.has_reserves)
        return max(next_sequence - self._most_missing(groups), 1) if is_bounded else 1

    def _begin(self, next_sequence: int) -> None:
        """Notes the next sequence at the log's beginning. What its records before that said is in no file any more."""
        account = self.account
        self._knows_sequence = True
        account.next_sequence = next_sequence
        if next_sequence > 1 and account.is_doubtful:
            # The log's first STATE is lost, and with it the stamps of all events that it did not have any more.
            account.unstamped.add(1, next_sequence - 1)
        if next_sequence > 1 and self.has_reserves:
            # Events in memory may be older than all that the log still has.
            self._skip(1, next_sequence)

    def _skip(self, first: int, end: int) -> None:
        """Notes that sequences may be those of events in memory, unless a repair has left this gap."""
        if self.account.kept_sequence:
            first = max(first, self.account.reserved_sequence)
        if first < end:
            self._skipped.add(first, end - 1)

    def _group(self, missing: range) -> Group:
        group = Group(missing)
        lsn = missing.start - 1
        while (record := self._pending.get(lsn)) is not None:
            if record.kind is Kind.TAKE:
                group.takes.append(pb.Take.FromString(bytes(record.payload)))
            elif (columns := readable_columns(record)) is not None:
                group.puts.insert(0, (record, columns.count))
            lsn -= 1
        return group

    def _may_skip_sequences(self, groups: list[Group], next_sequence: int | None) -> bool:
        """Whether sequences between the groups may belong to events that were in memory only."""
        account, count = self.account, event_count(groups)
        if not self.has_reserves and (account.kept_sequence or account.reserved_sequence <= account.next_sequence):
            return False
        is_step_explained = next_sequence == account.next_sequence + count or not count
        return not (is_step_explained and are_commits_alone(groups))

    def _lose_groups(self, groups: list[Group], next_sequence: int | None) -> None:
        """Names all sequences that the groups may have: which of them are whose, no one can tell.

        A group may also have been the events of a MEMORY_STATE, which had their sequences long before.
        """
        account, first = self.account, self.account.next_sequence
        end = first + self._most_missing(groups) if next_sequence is None else max(first, next_sequence)
        if next_sequence is None:
            end = max(end, account.reserved_sequence)
            self.bound_from = first if first < end else 0
        for skipped_first, skipped_last in self._skipped:
            account.add_lost(skipped_first, skipped_last + 1)
        account.add_lost(first, end)
        account.next_sequence = end
        if first < end:
            account.lose_stamps(first, end)
            self._skip(first, end)
        account.doubt(list(account.present))

    def _settle_groups(
        self, groups: list[Group], next_sequence: int | None, *, is_front_known: bool, is_of_repair: bool
    ) -> None:
        account = self.account
        begin, first = account.next_sequence, account.dense(account.next_sequence)
        end = self._highest_end(groups, first) if next_sequence is None else max(first, account.dense(next_sequence))
        may_have_gaps = is_of_repair or first < account.kept_sequence
        placement = placed(groups, Step(first, end, is_front_known, next_sequence is not None, may_have_gaps))
        for group, dense in placement.places:
            self._place(group, dense)
            if self.has_reserves and group.puts and not is_of_repair:
                # They may be what a stop wrote, of which some events may have been consumed in memory.
                account.doubt([(account.sparse(dense), account.sparse(dense + group.event_count - 1))])
        account.next_sequence = account.sparse(end)
        lost_first, lost_end = account.sparse(placement.open_first), account.sparse(placement.open_end)
        if next_sequence is None and lost_first < lost_end and end != account.kept_sequence:
            self.bound_from = lost_first
        if is_of_repair:
            # It wrote nothing but PUT records and their COMMITs, without stamps.
            account.add_lost(lost_first, lost_end)
            return
        # A reserve explains a step that no record does, unless one that is missing may have put events.
        is_reserve_alone = is_front_known and are_commits_alone(groups)
        self.has_reserves |= is_reserve_alone and lost_first < lost_end
        if not is_reserve_alone or account.next_sequence > account.reserved_sequence:
            account.add_lost(lost_first, lost_end)
        if self.has_reserves and lost_first < lost_end:
            self._skip(lost_first, lost_end)
        account.lose_stamps(begin, account.next_sequence)
        # A PUT and its COMMIT leave no space for a TAKE.
        missing_count = sum(len(group.missing) for group in groups if not group.is_commit_alone)
        has_no_take = next_sequence is not None and lost_first < lost_end and missing_count == _PAIR
        for group in groups:
            is_small = group.is_commit_alone or has_no_take
            account.doubt(taken_ranges(group.takes) if is_small else list(account.present))

    def _highest_end(self, groups: list[Group], first: int) -> int:
        """Returns how far the sequences of groups at the log's end may have gone, the first of which is given."""
        if self._are_last_of_repair(groups):
            return self.account.kept_sequence
        return first + (event_count(groups) if are_commits_alone(groups) else self._most_missing(groups))

    def _are_last_of_repair(self, groups: list[Group]) -> bool:
        """Whether nothing is missing but a PUT or its COMMIT, or both, of the last events that a repair has kept."""
        record_count = sum(len(group.missing) + len(group.puts) for group in groups)
        return self.account.next_sequence < self.account.kept_sequence and record_count <= _PAIR

    def _most_missing(self, groups: list[Group]) -> int:
        """Returns how many events the log's end may have lost at most."""
        events_a_byte = _EVENTS_A_BYTE_MAX if self._is_compressed else 1
        payload_bytes = self._missing_bytes - sum(len(group.missing) for group in groups) * RECORD_HEAD_BYTES
        return event_count(groups) + max(payload_bytes, 0) * events_a_byte

    def _place(self, group: Group, dense: int) -> None:
        for record, count in group.puts:
            self.account.place(Piece(self.account.sparse(dense), count, record.location, 0))
            dense += count


def taken_ranges(takes: Iterable[pb.Take]) -> Iterator[Range]:
    """Yields the first and last sequences of what TAKE records take."""
    for take in takes:
        for first, count in zip(take.first_sequences, take.counts, strict=True):
            yield first, first + count - 1
