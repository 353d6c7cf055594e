"""The thread that writes a log's records and syncs them, a group at a time.

While one group is synced the next one gathers: commits that wait at the same time share one sync. Those who were
answered together mostly come again together, so where there were several, the next group waits a moment for them. A
lone one waits for nobody.
"""

import errno
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Never

from zlib_ng.zlib_ng import crc32

from millrace_server.wal.disk import Piece
from millrace_server.wal.format import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    Flags,
    Kind,
    SegmentHeader,
    encode_record_head,
)
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import Location, LogFailedError, LogFullError, LogPosition, Submission
from millrace_server.wal.segments import NameUnsyncedError, Segment, SegmentFiles

RESERVE_BYTES_MIN = 1 << 20
"""Space set aside ahead of the writing: a sync need not note the file's growth then, and takes half the time."""

RESERVE_BYTES_MAX = 32 << 20
"""The same in a segment that has grown: as much as it has already, between these two."""

GROUP_BYTES_MAX = 16 << 20
"""Bytes that one write and sync takes together, unless a single submission has more."""

GATHER_SECONDS = 0.004
"""How long after one group's answer the next waits for those who had it: about as long as they take to come again."""

GATHER_BYTES_MAX = 1 << 20
"""A group of more bytes is followed at once: there the writing takes the time, not what comes with each group."""

MARK_DELAY_SECONDS = 0.05
"""How long after the last sync a mark is written, where nothing else is; see FORMAT.md, "Rot and torn tails"."""

_PLAIN = Flags(0)
_NONE_AWAITED = sys.maxsize
_FOREVER = -1

# What passes once somebody has freed something: space, or descriptors.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}


class LogWriter:
    """Writes at the end of the log, from a thread of its own.

    Who submits builds on what was submitted before and is not answered yet. So where a group is refused, all of its
    generation that comes behind it is refused too, and so are earlier generations; later ones are written.

    Args:
        files: Where new segments go.
        segments: All segments by their numbers. The writer's thread adds those that it makes, before anybody is told
            of a location there.
        end: Where the log ends.
        codec: How payloads are sealed.
        answer: Called on the writer's thread with a group that was written, refused or failed, and with its error. It
            calls what is to be called.
    """

    def __init__(
        self,
        files: SegmentFiles,
        segments: dict[int, Segment],
        end: LogPosition,
        codec: PayloadCodec,
        answer: Callable[[Sequence[Submission], Exception | None], None],
    ) -> None:
        self._files = files
        self._segments = segments
        self._segment = segments.get(end.segment_id)
        self.codec = codec
        self._answer = answer
        self._end = end
        self._synced_position = end.position
        self._marked_position = 0
        self._reserved_position = end.position
        self._pending: deque[Submission] = deque()
        # Guards `_pending`, `_awaited_count` and `_is_closing`; all else belongs to the thread. It can be taken again
        # by who has it: so tests hold it, and have the thread find all that they submit together.
        self._lock = threading.RLock()
        self._awaited_count = _NONE_AWAITED
        # Held, but for the moment between who wakes the thread and its waking. A condition would do the same, in
        # Python and several times as slowly.
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self._expected_count = 0
        self._is_closing = False
        self._failure: LogFailedError | None = None
        self._refusal: LogFullError | None = None
        self._refused_generation = -1
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, submission: Submission) -> None:
        """Puts records behind all that were submitted before. Once the log is closing, it refuses them."""
        with self._lock:
            if not self._is_closing:
                self._pending.append(submission)
                if len(self._pending) >= self._awaited_count:
                    self._wake()
                return
        self._answer([submission], LogFailedError("the log is closed"))

    def close(self) -> None:
        """Writes what is pending, syncs and marks the end, and ends the thread."""
        with self._lock:
            self._is_closing = True
            if self._awaited_count != _NONE_AWAITED:
                self._wake()
        self._thread.join()

    def _run(self) -> None:
        while True:
            group = self._next_group()
            if group is None:
                return
            if group:
                error = self._write_or_refuse(group)
                # Before they are answered: from then on who has come again waits already, and would count twice.
                self._expected_count = len(self._pending) + _count_to_come_again(group)
                self._answer(group, error)
            else:
                self._mark()

    def _next_group(self) -> list[Submission] | None:
        """What to write next; an empty group where it is time for a mark; None at the end."""
        gathers_until = time.monotonic() + GATHER_SECONDS
        expected_count, self._expected_count = self._expected_count, 0
        while not self._pending:
            to_mark = self._end.position if self._is_closing else self._synced_position
            is_marked = self._failure is not None or self._marked_position >= to_mark
            if self._is_closing:
                return None if is_marked else []
            if not self._wait_for(1, None if is_marked else MARK_DELAY_SECONDS):
                return []
        if len(self._pending) < expected_count:
            self._wait_for(expected_count, gathers_until - time.monotonic())
        with self._lock:
            group = [self._pending.popleft()]
            generation, byte_count = group[0].generation, group[0].byte_count
            while self._pending and not (following := self._pending[0]).begins_segment:
                byte_count += following.byte_count
                if byte_count > GROUP_BYTES_MAX or following.generation != generation:
                    break
                group.append(self._pending.popleft())
            return group

    def _wait_for(self, count: int, seconds: float | None) -> bool:
        """Waits until so many are pending, or the log is closing; False where the time passed before."""
        with self._lock:
            if len(self._pending) >= count or self._is_closing:
                return True
            self._awaited_count = count
        if self._sleep.acquire(timeout=_FOREVER if seconds is None else max(seconds, 0)):
            return True
        with self._lock:
            is_too_late = self._awaited_count == count
            self._awaited_count = _NONE_AWAITED
        # Somebody was about to wake it.
        return not is_too_late and self._sleep.acquire()

    def _wake(self) -> None:
        """Has the thread, which waits, go on; the lock is held."""
        self._awaited_count = _NONE_AWAITED
        self._sleep.release()

    def _mark(self) -> None:
        self._try_to_write([Submission([(Kind.MARK, [])], True, False, 0, _ignore)])
        # Whether it was written or there was no room for it: the next one follows the next sync.
        self._marked_position = self._synced_position

    def _write_or_refuse(self, group: list[Submission]) -> LogFullError | LogFailedError | None:
        # A new error for each group: raising one makes its traceback longer.
        if self._failure is not None:
            return LogFailedError(*self._failure.args)
        if self._refusal is not None and group[0].generation <= self._refused_generation:
            return LogFullError(*self._refusal.args)
        error = self._try_to_write(group)
        if isinstance(error, LogFullError):
            self._refusal, self._refused_generation = error, group[0].generation
        return error

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
            if any(map(_needs_sync, group)):
                self._sync()

    def _append(self, group: list[Submission]) -> None:
        assert self._segment is not None, "a log's first records begin a segment"
        encoded, end = self._encode(group, self._segment.header, self._end, self._synced_position)
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
        ahead = min(RESERVE_BYTES_MAX, max(RESERVE_BYTES_MIN, position))
        length = position - self._reserved_position + ahead
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
        encoded, end = self._encode(group, header, start, 0)
        assert encoded, "a segment begins with a record"
        try:
            segment = self._files.create(header, encoded)
        except OSError as error:
            raise _refusal("a new segment could not be made", error) from error
        except NameUnsyncedError as error:
            # Records must go neither under a name that may be lost nor into a segment that may have a successor.
            raise LogFailedError(f"the sync of a new segment's name failed: {error}") from error
        self._segments[segment.segment_id] = segment
        self._segment, self._end = segment, end
        self._synced_position = self._reserved_position = end.position
        self._marked_position = 0

    def _encode(
        self, group: Sequence[Submission], header: SegmentHeader, start: LogPosition, synced_position: int
    ) -> tuple[list[Piece], LogPosition]:
        """The bytes of a group's records in a segment, and where they end; tells each submission where its own lie."""
        segment_id, position, write_number = start
        seals = self.codec.seals
        encoded: list[Piece] = []
        for submission in group:
            locations: list[Location] = []
            for kind, payload in submission.records:
                place = header.place(position)
                flags, pieces = _PLAIN, payload
                if seals:
                    flags, pieces = self.codec.seal(kind, payload, place)
                length = checksum = 0
                for piece in pieces:
                    length += len(piece)
                    checksum = crc32(piece, checksum)
                seed = crc32(place)
                encoded.append(encode_record_head(seed, checksum, length, kind, flags, write_number, synced_position))
                encoded += pieces
                locations.append(Location(segment_id, position, length))
                position += RECORD_HEAD_BYTES + length
                write_number += 1
            submission.locations, submission.end = locations, LogPosition(segment_id, position, write_number)
        return encoded, LogPosition(segment_id, position, write_number)


_needs_sync = attrgetter("needs_sync")


def _count_to_come_again(group: Sequence[Submission]) -> int:
    """How many of those who were answered are worth waiting for."""
    if len(group) == 1:
        return 0
    byte_count = sum([submission.byte_count for submission in group])
    is_worth_it = byte_count <= GATHER_BYTES_MAX and any(map(_needs_sync, group))
    return len(group) if is_worth_it else 0


def _refusal(what: str, error: OSError) -> LogFullError | LogFailedError:
    kind = LogFullError if error.errno in _NO_ROOM else LogFailedError
    return kind(f"{what}: {error.strerror}")


def _ignore(_submission: Submission, _error: Exception | None) -> None:
    """A mark has nobody who waits for it."""
