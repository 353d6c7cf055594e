"""Runs of plain commits, which a replay decodes at once: most records of many small appends are theirs.

A plain commit puts the events of one PUT record, stores at most one range of a producer's numbers, and does nothing
else. Its PUT and its COMMIT are neighbours in the log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from google.protobuf.message import DecodeError

from millrace_server.channels.batches import ColumnsSource, StoredBatch, StoredColumns, Window
from millrace_server.channels.stamps import Stamp
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Kind
from millrace_server.wal.log import LogRecord

_PAIR = 2
"""A PUT and its COMMIT."""

_COMMITS_MIN = 4
"""Fewer are decoded one by one in less time."""


def pairs_end(records: Sequence[LogRecord], start: int) -> int:
    """Returns the index after the pairs of PUT and COMMIT records that begin at an index."""
    stop = start
    while stop + 1 < len(records) and records[stop].kind is Kind.PUT and records[stop + 1].kind is Kind.COMMIT:
        stop += _PAIR
    return stop


def _are_plain(message: pb.JoinedCommits, count: int) -> bool:
    """Whether a message joins so many commits that only put events, and may store numbers of producers."""
    puts = message.first_sequences, message.put_counts, message.put_body_bytes, message.put_raw_bytes
    is_more = message.txn_ids or message.take_records or message.forgotten_producer_id
    return (
        all(len(values) == count for values in (*puts, message.commit_times))
        and 0 not in message.put_counts
        and len(message.stamps) in {0, count}
        and not (is_more or message.more_stamps or message.commit_offsets)
    )


@dataclass(frozen=True, slots=True)
class CommitRun:
    """Plain commits, each behind the one before: parallel lists."""

    records: Sequence[LogRecord]
    """Their pairs of PUT and COMMIT."""
    message: pb.JoinedCommits
    end_sequence: int
    """One past the last event's sequence."""

    @classmethod
    def of(cls, records: Sequence[LogRecord], next_sequence: int) -> Self | None:
        """Returns the commits of pairs of PUT and COMMIT records.

        Returns None where one of them is not plain, or continues elsewhere than behind the one before, the first at
        `next_sequence`; so a contradiction is found when each is applied by itself.
        """
        if len(records) < _PAIR * _COMMITS_MIN:
            return None
        try:
            message = pb.JoinedCommits.FromString(b"".join([record.payload for record in records[1::_PAIR]]))
        except DecodeError:
            return None
        # Lists of a commit with two puts, and of one without any, would be as long in all; their sequences differ.
        *first_sequences, end = accumulate(message.put_counts, initial=next_sequence)
        if not _are_plain(message, len(records) // _PAIR) or first_sequences != message.first_sequences[:]:
            return None
        return cls(records, message, end)

    def batches(self, source: ColumnsSource) -> Iterator[StoredBatch]:
        """Yields the events that each has put."""
        message = self.message
        each = zip(
            self.records[::_PAIR],
            message.first_sequences,
            message.put_counts,
            message.put_body_bytes,
            message.put_raw_bytes,
            message.commit_times,
            strict=True,
        )
        for put, first_sequence, count, body_bytes, raw_bytes, commit_time in each:
            stored = StoredColumns.in_log(put.location, source, count, body_bytes, raw_bytes)
            yield StoredBatch(first_sequence, Window(stored, 0, count, body_bytes), commit_time)

    def stamps(self) -> Iterator[tuple[Stamp, int]]:
        """Yields the producers' numbers that they store, each with the time of its commit."""
        for stamp, commit_time in zip(self.message.stamps, self.message.commit_times, strict=False):
            yield Stamp(stamp.producer_id, stamp.first, stamp.last, owner=stamp.owner), commit_time

    @property
    def last_time(self) -> int:
        """The newest time of a commit."""
        return max(self.message.commit_times)
