"""The committed events of a channel that are not taken, in the order of their sequences."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from millrace_server.channels.batches import Form, StoredBatch
from millrace_server.errors import ChannelCorruptError

_READ_AHEAD = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """The limits of one answer."""

    events_max: int  # At least 1.
    body_bytes_max: int  # A first event that is larger is returned alone.
    answer_bytes_max: int  # Bytes of the encoded events, a hard limit.
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
    """

    def __init__(self) -> None:
        self._batches: deque[StoredBatch] = deque()
        self.event_count = 0

    @property
    def first_sequence(self) -> int | None:
        return self._batches[0].first_sequence if self._batches else None

    def append(self, batch: StoredBatch) -> None:
        self._batches.append(batch)
        self.event_count += batch.count

    def take(self, limits: AnswerLimits) -> list[StoredBatch]:
        """Removes and returns the oldest events within the limits; after a ChannelCorruptError all are still queued."""
        taken: list[StoredBatch] = []
        meter = AnswerBudget(limits)
        try:
            while self._batches and (count := meter.admit(self._batches[0])):
                taken.append(self._take_first(count))
        except ChannelCorruptError:
            self.put_back(taken)
            raise
        return taken

    def _take_first(self, count: int) -> StoredBatch:
        batch = self._batches[0]
        # Splitting a batch may read it from the disk, and fail: so that comes first.
        rest = batch.part(count, batch.count) if count < batch.count else None
        first = batch.part(0, count)
        self._batches.popleft()
        if rest is not None:
            self._batches.appendleft(rest)
        self.event_count -= count
        return first

    def put_back(self, batches: Sequence[StoredBatch]) -> None:
        for batch in batches:
            index = self._index_after(batch.first_sequence)
            following = self._batches[index] if index < len(self._batches) else None
            if following is not None and (joined := batch.joined(following)):
                del self._batches[index]
                batch_back = joined
            else:
                batch_back = batch
            preceding = self._batches[index - 1] if index else None
            if preceding is not None and (joined := preceding.joined(batch_back)):
                self._batches[index - 1] = joined
            else:
                self._batches.insert(index, batch_back)
            self.event_count += batch.count

    def remove_through(self, sequence: int) -> list[StoredBatch]:
        """Removes and returns all events up to a sequence, included."""
        removed: list[StoredBatch] = []
        try:
            while self._batches and (first := self._batches[0].first_sequence) <= sequence:
                removed.append(self._take_first(min(self._batches[0].end_sequence, sequence + 1) - first))
        except ChannelCorruptError:
            self.put_back(removed)
            raise
        return removed

    def remove_range(self, first_sequence: int, count: int, body_bytes: int) -> int:
        """Removes `count` events of one batch that a replayed commit took; returns 0 where they were removed before.

        The `body_bytes` of the range are given, so that nothing need be read.
        """
        index = self._index_of(first_sequence)
        if index == len(self._batches) or self._batches[index].first_sequence > first_sequence:
            return 0
        batch = self._batches[index]
        del self._batches[index]
        for part in reversed(batch.without(first_sequence - batch.first_sequence, count, body_bytes)):
            self._batches.insert(index, part)
        self.event_count -= count
        return count

    def clear(self) -> list[StoredBatch]:
        removed = list(self._batches)
        self._batches.clear()
        self.event_count = 0
        return removed

    def read(self, from_sequence: int, to_sequence: int) -> list[StoredBatch]:
        """Returns up to some thousand batches from one sequence to another (excluded), without removing them."""
        if from_sequence >= to_sequence:
            return []
        index = self._index_of(from_sequence)
        return [
            batch.between(from_sequence, to_sequence)
            for batch in islice(self._batches, index, index + _READ_AHEAD)
            if batch.first_sequence < to_sequence
        ]

    def _index_of(self, sequence: int) -> int:
        """Returns the index of the batch that holds a sequence; of the first one behind it if none does."""
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
        return iter(self._batches)


class AnswerBudget:
    """Counts down the limits of an answer, batch by batch."""

    def __init__(self, limits: AnswerLimits) -> None:
        self._form = limits.form
        self._events_left = limits.events_max
        self._body_bytes_left = limits.body_bytes_max
        self._answer_bytes_left = limits.answer_bytes_max
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
        fit = batch.window.fit(self._body_bytes_left, self._answer_bytes_left, self._form)
        if not fit.count and self._is_empty:
            # A first event that is larger than the caller wants comes alone. It does fit an answer: that was checked
            # when it was stored.
            self._events_left = 0
            return 1
        count = min(fit.count, self._events_left)
        self._is_empty = False
        self._events_left -= count
        self._body_bytes_left -= fit.body_bytes
        self._answer_bytes_left -= fit.answer_bytes
        return count
