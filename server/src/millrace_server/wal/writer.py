"""The thread that writes a log's records and syncs them, a group at a time.

While one group is synced the next one gathers: commits that wait at the same time share one sync, and a lone one waits
for nobody.
"""

import errno
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Never

from millrace_server.wal.format import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    Flags,
    Kind,
    RecordHead,
    SegmentHeader,
    payload_checksum,
)
from millrace_server.wal.segments import NameUnsyncedError, Segment, SegmentFiles

RESERVE_BYTES = 32 << 20
"""Space set aside ahead of the writing: a sync need not note the file's growth then, and takes half the time."""

GROUP_BYTES_MAX = 16 << 20
"""Bytes that one write and sync takes together, unless a single submission has more."""

MARK_DELAY_SECONDS = 0.05
"""How long after the last sync a mark is written, where nothing else is; see FORMAT.md, "Rot and torn tails"."""

# What passes once somebody has freed something: space, or descriptors.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}


class LogFailedError(Exception):
    """Returned when a write or sync failed, now or before: the log takes nothing more until it is opened anew."""


class LogFullError(Exception):
    """Returned when there was no room for the records: none of them is in the log, and the log goes on."""


class Location(NamedTuple):
    """Where a record lies."""

    segment_id: int
    position: int
    """Byte offset of its head in the segment."""
    payload_length: int


class LogPosition(NamedTuple):
    """A place between two records."""

    segment_id: int
    position: int
    """Byte offset in the segment."""
    write_number: int
    """That of the record that comes next."""


Done = Callable[["Submission", Exception | None], None]


@dataclass(slots=True)
class Submission:
    """Records that go in together, side by side: all of them, or none where the submission is refused.

    A crash may leave the first of them without the others.
    """

    records: Sequence[tuple[Kind, Flags, Sequence[bytes]]]
    """For each its kind, how it is sealed, and its payload in pieces."""
    needs_sync: bool
    begins_segment: bool
    done: Done
    """Called on the writer's thread when the records are written, and synced where that was asked for."""
    locations: list[Location] = field(default_factory=list)
    end: LogPosition | None = None
    """Where the log ended behind these records."""

    @property
    def byte_count(self) -> int:
        """Bytes that the records take in a segment."""
        return sum(RECORD_HEAD_BYTES + sum(map(len, pieces)) for _, _, pieces in self.records)


class LogWriter:
    """Writes at the end of the log, from a thread of its own.

    Args:
        files: Where new segments go.
        segment: The segment that ends the log; None where there is none yet.
        end: Where it ends.
        on_new_segment: Called on the writer's thread with each segment it makes, before anybody is told of a location
            there.
    """

    def __init__(
        self,
        files: SegmentFiles,
        segment: Segment | None,
        end: LogPosition,
        on_new_segment: Callable[[Segment], None],
    ) -> None:
        self._files = files
        self._segment = segment
        self._on_new_segment = on_new_segment
        self._end = end
        self._synced_position = end.position
        self._marked_position = 0
        self._reserved_position = end.position
        self._pending: deque[Submission] = deque()
        # Guards `_pending` and `_is_closing`; all else belongs to the thread.
        self._condition = threading.Condition()
        self._is_closing = False
        self._failure: LogFailedError | None = None
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, submission: Submission) -> None:
        """Puts records behind all that were submitted before. Once the log is closing, it refuses them."""
        with self._condition:
            if not self._is_closing:
                self._pending.append(submission)
                self._condition.notify()
                return
        submission.done(submission, LogFailedError("the log is closed"))

    def close(self) -> None:
        """Writes what is pending, syncs and marks the end, and ends the thread."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            group = self._next_group()
            if group is None:
                return
            if group:
                self._write_or_refuse(group)
            else:
                self._mark()

    def _next_group(self) -> list[Submission] | None:
        """What to write next; an empty group where it is time for a mark; None at the end."""
        with self._condition:
            while not self._pending:
                to_mark = self._end.position if self._is_closing else self._synced_position
                is_marked = self._failure is not None or self._marked_position >= to_mark
                if self._is_closing:
                    return None if is_marked else []
                if not self._condition.wait(None if is_marked else MARK_DELAY_SECONDS) and not self._pending:
                    return []
            group = [self._pending.popleft()]
            byte_count = group[0].byte_count
            while self._pending and not self._pending[0].begins_segment:
                byte_count += self._pending[0].byte_count
                if byte_count > GROUP_BYTES_MAX:
                    break
                group.append(self._pending.popleft())
            return group

    def _mark(self) -> None:
        submission = Submission([(Kind.MARK, Flags(0), [])], True, False, _ignore)
        self._write_or_refuse([submission])
        # Whether it was written or there was no room for it: the next one follows the next sync.
        self._marked_position = self._synced_position

    def _write_or_refuse(self, group: list[Submission]) -> None:
        # A new one for each group: raising an exception makes its traceback longer.
        error = LogFailedError(*self._failure.args) if self._failure else self._try_to_write(group)
        for submission in group:
            submission.done(submission, error)

    def _try_to_write(self, group: list[Submission]) -> LogFullError | LogFailedError | None:
        try:
            self._write(group)
        except LogFullError as refusal:
            return refusal
        except Exception as failure:  # noqa: BLE001 - ours or the disk's: who waits must hear of it
            self._failure = (
                failure if isinstance(failure, LogFailedError) else LogFailedError(f"the log failed: {failure!r}")
            )
            return self._failure
        return None

    def _write(self, group: list[Submission]) -> None:
        if group[0].begins_segment:
            self._finish_segment()
            self._begin_segment(group)
        else:
            self._append(group)
            if any(submission.needs_sync for submission in group):
                self._sync()

    def _append(self, group: list[Submission]) -> None:
        assert self._segment is not None, "a log's first records begin a segment"
        encoded, end = _encode(group, self._segment.header, self._end, self._synced_position)
        if not encoded:
            return
        try:
            self._reserve(end.position)
            self._segment.file.write(encoded, self._end.position)
        except OSError as error:
            self._take_back(error)
        self._end = end

    def _reserve(self, position: int) -> None:
        """Sees to it that the disk has space set aside up to a position."""
        assert self._segment is not None
        if position <= self._reserved_position:
            return
        length = position - self._reserved_position + RESERVE_BYTES
        # A full disk, or a file system that cannot: then the file grows as it is written.
        with suppress(OSError):
            self._segment.file.reserve(self._reserved_position, length)
            self._reserved_position += length

    def _take_back(self, error: OSError) -> Never:
        """Removes what a failed write has left, so that a refused commit is not found by a later replay."""
        assert self._segment is not None
        refusal = _refusal("a write to the log failed", error)
        if isinstance(refusal, LogFullError):
            try:
                self._segment.file.truncate(self._end.position)
            except OSError as second:
                raise LogFailedError(f"the log could not be cut behind a failed write: {second.strerror}") from second
            self._reserved_position = self._end.position
            self._sync()
        raise refusal from error

    def _sync(self) -> None:
        assert self._segment is not None
        try:
            self._segment.file.sync()
        except OSError as error:
            # The kernel may have dropped the pages that it could not write and call the next sync a success: what is
            # on the disk is known again only after a replay. A full disk is no exception.
            raise LogFailedError(f"a sync of the log failed: {error.strerror}") from error
        self._synced_position = self._end.position

    def _finish_segment(self) -> None:
        """Cuts the segment behind its last record and syncs it whole; should the next one fail, this one goes on."""
        if self._segment is None:
            return
        try:
            self._segment.file.truncate(self._end.position)
        except OSError as error:
            raise _refusal("a full segment could not be cut", error) from error
        self._reserved_position = self._end.position
        self._sync()

    def _begin_segment(self, group: list[Submission]) -> None:
        start = LogPosition(self._end.segment_id + 1, SEGMENT_HEADER_BYTES, self._end.write_number)
        header = SegmentHeader(self._files.channel_id, start.segment_id, start.write_number, self._end.position)
        encoded, end = _encode(group, header, start, 0)
        assert encoded, "a segment begins with a record"
        try:
            segment = self._files.create(header, encoded)
        except OSError as error:
            raise _refusal("a new segment could not be made", error) from error
        except NameUnsyncedError as error:
            # Records must go neither under a name that may be lost nor into a segment that may have a successor.
            raise LogFailedError(f"the sync of a new segment's name failed: {error}") from error
        self._on_new_segment(segment)
        self._segment, self._end = segment, end
        self._synced_position = self._reserved_position = end.position
        self._marked_position = 0


def _refusal(what: str, error: OSError) -> LogFullError | LogFailedError:
    kind = LogFullError if error.errno in _NO_ROOM else LogFailedError
    return kind(f"{what}: {error.strerror}")


def _encode(
    group: Sequence[Submission], header: SegmentHeader, start: LogPosition, synced_position: int
) -> tuple[list[bytes], LogPosition]:
    """The bytes of a group's records in a segment, and where they end; tells each submission where its own lie."""
    segment_id, position, write_number = start
    encoded: list[bytes] = []
    for submission in group:
        submission.locations = []
        for kind, flags, pieces in submission.records:
            length = sum(map(len, pieces))
            head = RecordHead(payload_checksum(pieces), length, kind, flags, write_number, synced_position)
            encoded += [head.encode(header.seed(position)), *pieces]
            submission.locations.append(Location(segment_id, position, length))
            position += RECORD_HEAD_BYTES + length
            write_number += 1
        submission.end = LogPosition(segment_id, position, write_number)
    return encoded, LogPosition(segment_id, position, write_number)


def _ignore(_submission: Submission, _error: Exception | None) -> None:
    """A mark has nobody who waits for it."""
