"""The committed events of a channel that are not taken, in the order of their sequences."""

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

from millrace.columns import HEADER_CELLS_MAX
from millrace_server.channels.batches import Form, StoredBatch, StoredColumns, Window
from millrace_server.errors import MillraceError

_READ_AHEAD = 4_096

RUN_EVENTS_MAX = 1_000
"""Events of a run: a take of some of them reads all. Many takes are of this many, and get a whole run."""

RUN_BYTES_MAX = 512 << 10
"""Bytes of a run in its segment, with what lies between its records."""

# Merging repeats a value that holds for all events of its request, so such requests have few events.
_REQUEST_EVENTS_MAX = 32
_REQUEST_BYTES_MAX = 4 << 10

OFFSET_MAX = (1 << 32) - 1
"""Microseconds from the first commit of a run to the last: a response has 32 bits for them."""

_HEADER_BYTES_MIN = 9
"""Bytes of a header whose key has two characters, and whose value is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLimits:
    """The limits of one response."""

    events_max: int  # At least 1.
    body_bytes_max: int  # A first event that is larger is returned alone.
    response_bytes_max: int  # Bytes of the encoded events, a hard limit.
    form: Form


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLimits:
    """The limits that the caller of a take or a delivery sets, 0 for none; the channel's own limits apply too."""

    events_max: int = 0
    body_bytes_max: int = 0
    form: Form = Form.COLUMNS


class EventQueue:
    """Batches by sequence, ascending and without overlap.

    There are gaps where events were taken: a rollback puts them back into their place, so that the order of events is
    always the order of their commits.

    Small batches that lie one after the other in the log are one run: an entry for each of a million single events
    would cost more memory than the events take on the disk, and reading them back a million reads. Only the last run
    grows, until something reads it: a holder of a batch of the queue relies on it to stay as it is.
    """

    def __init__(self) -> None:
        self._batches: deque[StoredBatch] = deque()
        self._growing: StoredBatch | None = None
        self.event_count = 0

    @property
    def first(self) -> StoredBatch | None:
        return self._batches[0] if self._batches else None

    @property
    def first_sequence(self) -> int | None:
        return self._batches[0].first_sequence if self._batches else None

    def first_since(self, time: int) -> StoredBatch | None:
        """Returns the batch that has the first event committed at or after a time; None if no event was."""
        index = bisect_left(self._batches, time, key=_last_time)
        return self._batches[index] if index < len(self._batches) else None

    def append(self, batch: StoredBatch) -> None:
        window = batch.window
        self.event_count += window.stop - window.start
        if not window.is_whole:
            self._append_part(batch)
            return
        is_growing = _may_join_run(window.stored)
        run = _run_of(self._growing, batch) if is_growing and self._growing is not None else None
        if run is not None:
            self._batches[-1] = self._growing = run
            return
        self._batches.append(batch)
        self._growing = batch if is_growing else None

    def _append_part(self, part: StoredBatch) -> None:
        """Appends a part of a record that several commits share, behind its other parts; once whole, it may be run."""
        joined = self._batches[-1].joined(part) if self._batches else None
        if joined is None:
            # The run before it can still grow: by the whole record, and by nothing else, as its sequences tell.
            self._batches.append(part)
        elif joined.window.is_whole:
            self._batches.pop()
            self.event_count -= joined.count
            self.append(joined)
        else:
            self._batches[-1] = joined

    def end_run(self) -> None:
        """Begins a new run with the next batch: between both, the log has or may get PUT records of no batch."""
        self._growing = None

    def _end_run_in(self, batch: StoredBatch) -> None:
        if batch is self._growing:
            self._growing = None

    def take(self, limits: ResponseLimits) -> list[StoredBatch]:
        """Removes and returns the oldest events within the limits; after an error all are still queued."""
        taken: list[StoredBatch] = []
        meter = ResponseBudget(limits)
        try:
            while self._batches:
                self._end_run_in(self._batches[0])
                if not (count := meter.admit(self._batches[0])):
                    break
                taken.append(self._take_first(count))
        except MillraceError:
            self.put_back(taken)
            raise
        return taken

    def _take_first(self, count: int) -> StoredBatch:
        batch = self._batches[0]
        self._end_run_in(batch)
        # Splitting a batch may read it from the disk, and fail: so that comes first.
        rest = batch.part(count, batch.count) if count < batch.count else None
        first = batch.part(0, count)
        self._batches.popleft()
        if rest is not None:
            self._batches.appendleft(rest)
        self.event_count -= count
        return first

    def put_back(self, batches: Iterable[StoredBatch]) -> None:
        """Returns batches into their places; their number counts, not that of the others in the queue."""
        self._growing = None
        back = sorted(batches, key=_first_sequence)
        if not back:
            return
        queue, index = self._batches, self._index_after(back[0].first_sequence)
        # At its ends, a deque is quick: what precedes it is at the other end in the meantime.
        queue.rotate(-index)
        later_count = len(queue) - index
        for batch in back:
            while later_count and queue[0].first_sequence < batch.first_sequence:
                self._rejoin(queue.popleft())
                later_count -= 1
            self._rejoin(batch)
            self.event_count += batch.count
        if later_count:
            self._rejoin(queue.popleft())
            later_count -= 1
        queue.rotate(-later_count)

    def _rejoin(self, batch: StoredBatch) -> None:
        if self._batches and (joined := self._batches[-1].joined(batch)):
            self._batches[-1] = joined
        else:
            self._batches.append(batch)

    def remove_through(self, sequence: int, batches_max: int = sys.maxsize) -> list[StoredBatch]:
        """Removes and returns the events up to a sequence, included, of the first batches."""
        removed: list[StoredBatch] = []
        try:
            while (
                len(removed) < batches_max and self._batches and (first := self._batches[0].first_sequence) <= sequence
            ):
                removed.append(self._take_first(min(self._batches[0].end_sequence, sequence + 1) - first))
        except MillraceError:
            self.put_back(removed)
            raise
        return removed

    def remove_range(self, first_sequence: int, count: int, body_bytes: int) -> int:
        """Removes `count` events that a replayed commit took; returns how many of them were still there.

        The `body_bytes` of the range are given, so that in most cases nothing need be read. The runs may not be those
        that the events were taken from, since replay does not know what ended them.
        """
        index = self._index_of(first_sequence)
        removed = 0
        while removed < count and index < len(self._batches):
            batch, first = self._batches[index], first_sequence + removed
            if batch.first_sequence > first:
                break
            # The range may continue in the next batch.
            part_count = min(batch.end_sequence - first, count - removed)
            part_bytes = body_bytes
            if removed + part_count < count:
                share = body_bytes * part_count // (count - removed)
                start = first - batch.first_sequence
                part_bytes = batch.measured_bytes(start, start + part_count, share)
            self._remove_from(index, first, part_count, part_bytes)
            index += first > batch.first_sequence
            removed, body_bytes = removed + part_count, body_bytes - part_bytes
        return removed

    def _remove_from(self, index: int, first_sequence: int, count: int, body_bytes: int) -> None:
        batch = self._batches[index]
        self._end_run_in(batch)
        del self._batches[index]
        for part in reversed(batch.without(first_sequence - batch.first_sequence, count, body_bytes)):
            self._batches.insert(index, part)
        self.event_count -= count

    def take_events(self, sequences: Iterable[int]) -> list[StoredBatch]:
        """Removes and returns single events, those that are queued; after an error all are still queued."""
        taken: list[StoredBatch] = []
        try:
            for sequence in sequences:
                if (batch := self.batch_of(sequence)) is not None:
                    event = batch.between(sequence, sequence + 1)
                    self._remove_from(self._index_of(sequence), sequence, 1, event.window.body_bytes)
                    taken.append(event)
        except MillraceError:
            self.put_back(taken)
            raise
        return taken

    def entries(self) -> list[StoredBatch]:
        """Returns all batches as they are now."""
        # Much faster than to iterate, which ends the last run only where it gets there.
        self._growing = None
        return list(self._batches)

    def read(self, from_sequence: int, to_sequence: int) -> list[StoredBatch]:
        """Returns up to some thousand batches from one sequence to another (excluded), without removing them."""
        if from_sequence >= to_sequence:
            return []
        self._growing = None
        index = self._index_of(from_sequence)
        # Much faster than to iterate up to there.
        self._batches.rotate(-index)
        ahead = list(islice(self._batches, min(_READ_AHEAD, len(self._batches) - index)))
        self._batches.rotate(index)
        return [batch.between(from_sequence, to_sequence) for batch in ahead if batch.first_sequence < to_sequence]

    def batch_of(self, sequence: int) -> StoredBatch | None:
        """Returns the batch that holds a sequence; None if none does."""
        index = self._index_of(sequence)
        if index == len(self._batches) or (batch := self._batches[index]).first_sequence > sequence:
            return None
        self._end_run_in(batch)
        return batch

    def _index_of(self, sequence: int) -> int:
        """Returns the index of the batch that holds a sequence; of the first one after it if none does."""
        index = self._index_after(sequence)
        return index - 1 if index and self._batches[index - 1].end_sequence > sequence else index

    def _index_after(self, sequence: int) -> int:
        low, high = 0, len(self._batches)
        # Most rollbacks concern the head; there the deque is quick, and a search by halves would not be.
        if not self._batches or self._batches[0].first_sequence > sequence:
            return 0
        while low < high:
            middle = (low + high) // 2
            if self._batches[middle].first_sequence > sequence:
                high = middle
            else:
                low = middle + 1
        return low

    def __iter__(self) -> Iterator[StoredBatch]:
        for batch in self._batches:
            self._end_run_in(batch)
            yield batch


_first_sequence = attrgetter("first_sequence")
_last_time = attrgetter("last_time")


class ResponseBudget:
    """Counts down the limits of a response, batch by batch."""

    def __init__(self, limits: ResponseLimits) -> None:
        self._form = limits.form
        self._events_left = limits.events_max
        self._body_bytes_left = limits.body_bytes_max
        self._response_bytes_left = limits.response_bytes_max
        self._is_empty = True

    def first_of(self, batches: Iterable[StoredBatch]) -> Iterator[StoredBatch]:
        """Yields the first of these events that fit the limits, without a gap."""
        for batch in batches:
            count = self.admit(batch)
            if count:
                yield batch.part(0, count)
            if count < batch.count:
                return

    def admit(self, batch: StoredBatch) -> int:
        """Counts the batch's first events that still fit, and returns their number."""
        if not self._events_left:
            return 0
        fit = batch.window.fit(self._body_bytes_left, self._response_bytes_left, self._form)
        if not fit.count and self._is_empty:
            # A first event that is larger than the caller wants comes alone. It does fit a response: that was checked
            # when it was stored.
            self._events_left = 0
            return 1
        count = min(fit.count, self._events_left)
        self._is_empty = False
        self._events_left -= count
        self._body_bytes_left -= fit.body_bytes
        self._response_bytes_left -= fit.response_bytes
        return count


def _may_join_run(stored: StoredColumns) -> bool:
    """Whether columns may become part of a run."""
    return stored.location is not None and stored.record_count == 1 and is_small(stored)


def is_small(stored: StoredColumns) -> bool:
    """Whether columns of one request may be merged with others."""
    return stored.raw_bytes <= _REQUEST_BYTES_MAX and stored.count <= _REQUEST_EVENTS_MAX


def may_merge(event_count: int, raw_bytes: int, body_bytes: int, place_bytes: int) -> bool:
    """Whether columns with this many events and bytes in all, in a place of this many bytes, may be merged."""
    # Merged, each key has a size for each event: should all keys differ, reading them would take seconds.
    keys_max = (raw_bytes - body_bytes) // _HEADER_BYTES_MIN
    return event_count <= RUN_EVENTS_MAX and place_bytes <= RUN_BYTES_MAX and keys_max * event_count <= HEADER_CELLS_MAX


def _run_of(last: StoredBatch, batch: StoredBatch) -> StoredBatch | None:
    """Returns a small batch or a run with a small batch after it, or None if they do not fit together.

    The run grows in place; a batch that is no run yet is left as it is.
    """
    mine, theirs = last.window.stored, batch.window.stored
    start, end = mine.location, theirs.location
    assert start is not None, "small batches are in a log"
    assert end is not None, "small batches are in a log"
    payload_length = end.position + end.payload_length - start.position
    raw_bytes, body_bytes = mine.raw_bytes + theirs.raw_bytes, mine.body_bytes + theirs.body_bytes
    offset = batch.commit_time - last.commit_time
    last_offset = offset + theirs.offsets[-1] if theirs.offsets else offset
    if (
        last.first_sequence + mine.count != batch.first_sequence
        or start.segment_id != end.segment_id
        or not may_merge(mine.count + theirs.count, raw_bytes, body_bytes, payload_length)
        or not 0 <= offset <= last_offset <= OFFSET_MAX
    ):
        return None
    if mine.record_count == 1:
        # Others hold the batch: a subscriber, or the cache of what was just written.
        last = StoredBatch(last.first_sequence, Window.whole(mine.as_run()), last.commit_time)
    window = last.window
    window.stored.grow(theirs, payload_length, offset)
    window.stop, window.body_bytes = window.stored.count, window.stored.body_bytes
    return last
