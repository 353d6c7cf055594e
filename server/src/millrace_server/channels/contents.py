"""The contents of a channel: its committed events, its capacity in use, and what its producers have stored."""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from time import time_ns

from millrace_server.channels.admission import Capacity, WaitQueue
from millrace_server.channels.batches import StoredBatch, Window
from millrace_server.channels.commit import Commit, CommitState, Receipt
from millrace_server.channels.log_columns import LogColumns
from millrace_server.channels.queue import EventQueue, ResponseLimits
from millrace_server.channels.queue_times import QueueTimes
from millrace_server.channels.stamps import Stamp, StampLedger
from millrace_server.errors import (
    ChannelNotFoundError,
    MillraceError,
    NotOwnerError,
    SequenceGoneError,
    TxnCapacityError,
)

_AHEAD_BYTES = 4 << 20
"""Bytes of columns that are read from a log at once, ahead of their use."""

_UNLIMITED_EVENTS = 1 << 62
_UNCERTAIN_SECONDS = 0.5
_SUBSCRIBER_BATCHES_MAX = 1_000
_SUBSCRIBER_BODY_BYTES_MAX = 64 << 20


@dataclass(slots=True)
class ChannelCounters:
    """Flume's channel counters with Flume's meanings, and a few more. They only grow."""

    put_attempts: int = 0  # Events offered, refused ones included (Flume: EventPutAttemptCount).
    put_successes: int = 0  # Events stored by commits (EventPutSuccessCount).
    take_attempts: int = 0  # Events taken, and one per empty or refused take (EventTakeAttemptCount).
    take_successes: int = 0  # Events removed by commits and acknowledgements (EventTakeSuccessCount).
    commits: int = 0
    rollbacks: int = 0  # Transactions rolled back, for any reason.
    leases_expired: int = 0  # Transactions rolled back because their lease ran out.
    deduplicated: int = 0  # Events dropped as repeats.
    expired: int = 0  # Events removed because they were older than the retention.
    refused: Counter[str] = field(default_factory=Counter)  # Calls of clients that were refused, by their reason.


class Subscriber:
    """Receives the batches that a channel commits from now on, without taking them.

    Its buffer is bounded: a subscriber that is slower than the channel misses the oldest batches, and gets their number
    of events.
    """

    def __init__(self) -> None:
        self._batches: deque[StoredBatch] = deque()
        self._body_bytes = 0
        self._skipped = 0
        self._news = asyncio.Event()
        self.is_ended = False

    def publish(self, batch: StoredBatch) -> None:
        self._batches.append(batch)
        self._body_bytes += batch.window.body_bytes
        while len(self._batches) > _SUBSCRIBER_BATCHES_MAX or (
            self._body_bytes > _SUBSCRIBER_BODY_BYTES_MAX and len(self._batches) > 1
        ):
            missed = self._batches.popleft()
            self._body_bytes -= missed.window.body_bytes
            self._skipped += missed.count
        self._news.set()

    @property
    def has_news(self) -> bool:
        """Whether `next_batch` returns a batch at once."""
        return bool(self._batches)

    def end(self) -> None:
        """Ends the subscription; the batches received so far can still be fetched."""
        self.is_ended = True
        self._news.set()

    async def next_batch(self) -> tuple[int, StoredBatch] | None:
        """Returns the next batch and the number of events missed before it; None at the end."""
        while not self._batches:
            if self.is_ended:
                return None
            self._news.clear()
            await self._news.wait()
        batch = self._batches.popleft()
        self._body_bytes -= batch.window.body_bytes
        skipped, self._skipped = self._skipped, 0
        return skipped, batch


class Contents:
    """The committed events of one channel, queued or taken.

    A commit is planned, waits until it is admitted, is planned again, and is prepared: between its last plan and its
    preparation nothing else happens. A prepared commit holds its sequences and its space. It is applied once it is
    durable, or aborted. Commits are applied in the order in which they were prepared, and aborted from the last one on.

    `may_be_read` says whether no other server can own the channel, so that nothing is taken that may be gone there.

    `clock` is the wall clock, in nanoseconds. Where it steps back, commits have the time of the last one until it has
    caught up. `on_return` is called whenever events have returned to the queue, before anybody can take them again.
    """

    def __init__(
        self,
        name: str,
        capacity: Capacity,
        next_sequence: int = 1,
        columns: LogColumns | None = None,
        queue_times: QueueTimes | None = None,
    ) -> None:
        self._name = name
        self._columns = columns
        self._queue_times = queue_times
        self._closing_error: Callable[[], MillraceError] | None = None
        self.may_be_read: Callable[[], bool] = lambda: True
        if columns is not None:
            columns.refuse_reading = self.refuse_reading
        self._subscribers: set[Subscriber] = set()
        self._taken: dict[int, StoredBatch] = {}
        self._assigned_sequence = next_sequence
        self.clock: Callable[[], int] = time_ns
        self.on_return: Callable[[], None] = lambda: None
        self._opened_at = self.now
        self.last_commit_time = self.last_put_time = self.last_take_time = 0
        self.queue = EventQueue()
        self.capacity = capacity
        self.ledger = StampLedger()
        self.takers = WaitQueue()
        self.disk_waiters = WaitQueue()  # Commits that the disk had no space for.
        self.readers = WaitQueue()
        self.counters = ChannelCounters()
        self.next_sequence = next_sequence
        self.taken_count = 0

    @property
    def first_sequence(self) -> int:
        return self.queue.first_sequence or self.next_sequence

    @property
    def oldest_sequence(self) -> int:
        """The oldest sequence, queued or taken; all before it are removed. Takes O(taken batches)."""
        return min([self.first_sequence, *self._taken])

    @property
    def assigned_sequence(self) -> int:
        """The sequence that the next commit gets; `next_sequence` where none is in flight."""
        return self._assigned_sequence

    @property
    def oldest_commit_time(self) -> int:
        """When the oldest event, queued or taken, was committed; 0 if there is none. Takes O(taken batches)."""
        if not self._taken:
            # Most of thousands of channels, at each scrape.
            return first.first_time if (first := self.queue.first) else 0
        held = [*self._taken.values(), *filter(None, [self.queue.first])]
        return min(held, key=_first_sequence).first_time

    def first_since(self, time: int) -> tuple[int, int]:
        """Returns the sequence and the time of the first event, queued or taken, committed at or after a time.

        The next sequence and 0 if there is none. Takes O(taken batches) and O(log n) of those in the queue.
        """
        found = [batch for batch in self._taken.values() if batch.last_time >= time]
        if (queued := self.queue.first_since(time)) is not None:
            found.append(queued)
        if not found:
            return self.next_sequence, 0
        first = min(found, key=_first_sequence)
        index = first.index_since(time)
        return first.first_sequence + index, first.time_at(index)

    def expired_end(self, time: int) -> int:
        """Returns the sequence after the last event committed before a time; 0 if the oldest in the queue was not.

        Events without a time were committed before the channel was opened, and before all that have one.
        """
        end = self._queued_since(time)
        return end if self._opened_at < time or self._queued_since(1) < end else 0

    def _queued_since(self, time: int) -> int:
        batch = self.queue.first_since(time)
        return self.next_sequence if batch is None else batch.first_sequence + batch.index_since(time)

    @property
    def now(self) -> int:
        """The wall clock in microseconds."""
        return self.clock() // 1000

    def note_take(self) -> None:
        """Remembers that events were returned now."""
        self.last_take_time = self.now

    def held_batches(self) -> Iterator[StoredBatch]:
        """Returns all committed events of now, queued or taken, by sequence; another thread may iterate."""
        return merge(self.queue.entries(), sorted(self._taken.values(), key=_first_sequence), key=_first_sequence)

    def oldest_batches(self) -> list[StoredBatch]:
        """Returns the first queued batch that is in a log, and all taken ones."""
        queued = next((batch for batch in self.queue if batch.is_in_log), None)
        return [*([queued] if queued else []), *self._taken.values()]

    def restore(self, queue: EventQueue, ledger: StampLedger, last_commit_time: int) -> None:
        self.queue = queue
        self.ledger = ledger
        self.last_commit_time = last_commit_time
        self.capacity.change(queue.event_count, sum(batch.window.body_bytes for batch in queue))

    def refuse_if_closed(self) -> None:
        if self._closing_error is not None:
            raise self._closing_error()

    def _deleted_error(self) -> MillraceError:
        return ChannelNotFoundError(f"channel {self._name!r} was deleted", channel=self._name)

    def refuse_reading(self) -> None:
        """Raises where nothing may be read now: the channel is closed, or another server may own it."""
        self.refuse_if_closed()
        if not self.may_be_read():
            raise NotOwnerError(
                f"channel {self._name!r} may be owned by another server now, since the engine does not respond",
                retry_delay_seconds=_UNCERTAIN_SECONDS,
                channel=self._name,
                address="",
            )

    def close(self, error: Callable[[], MillraceError] | None = None) -> None:
        """Ends all waiting calls; they and all later ones raise an error, by default that the channel was deleted."""
        self._closing_error = error or self._deleted_error
        self.takers.wake_all()
        self.readers.wake_all()
        self.capacity.waiters.wake_all()
        self.disk_waiters.wake_all()
        for subscriber in self._subscribers:
            subscriber.end()

    # Commits.

    def plan(self, puts: Sequence[Window], takes: Sequence[StoredBatch], stamp: Stamp | None) -> Commit:
        """Plans a commit; raises TxnCapacityError where its puts would not fit even an empty channel."""
        self.refuse_if_closed()
        if stamp is not None:
            event_count = sum(put.count for put in puts)
            ranges = self.ledger.new_ranges(stamp, event_count)
            commit = Commit(_select(puts, ranges), takes, stamp)
            commit.dropped_count = event_count - sum(stop - start for start, stop in ranges)
            commit.has_new_numbers = bool(ranges)
        else:
            commit = Commit(puts, takes)
        if commit.put_count > self.capacity.events_max or commit.put_body_bytes > self.capacity.body_bytes_max:
            raise TxnCapacityError(
                f"the commit puts {commit.put_count} events with {commit.put_body_bytes} body bytes; the whole channel "
                f"holds {self.capacity.events_max} and {self.capacity.body_bytes_max}; commit less at a time"
            )
        return commit

    def admits(self, commit: Commit) -> bool:
        """Whether a planned commit can be prepared now: there is space, and no earlier one waits for it."""
        if not commit.needs_space:
            return True
        return not self.capacity.waiters and self.capacity.admits(commit.event_count, commit.body_bytes)

    async def wait_for_space(self, plan: Callable[[], Commit], keep_alive_seconds: float) -> Commit:
        """Waits in the queue for space.

        Args:
            plan: Plans the commit again, each time there may be space. An error, or a commit that another call has
                submitted in the meantime, ends the wait.
            keep_alive_seconds: How long to wait.

        Raises:
            ChannelFullError, BytesFullError: There was no space in time.
        """
        clock = asyncio.get_running_loop().time
        give_up = clock() + keep_alive_seconds
        try:
            with self.capacity.waiters.join() as waiter:
                while True:
                    is_woken = await waiter.wait(give_up - clock())
                    commit = plan()
                    if commit.state is not CommitState.PLANNED or not commit.needs_space:
                        return commit
                    # A waiter that was woken out of turn must not overtake; one whose time is up takes what space there
                    # is.
                    is_turn = self.capacity.waiters.is_first(waiter) or not is_woken
                    if is_turn and self.capacity.admits(commit.event_count, commit.body_bytes):
                        return commit
                    if not is_woken:
                        raise self.capacity.full_error(commit.event_count, commit.body_bytes, keep_alive_seconds)
        finally:
            # There may be space for the next one too, or it needs less than this one did.
            self.capacity.waiters.wake_next()

    async def wait_for_disk(self, seconds: float) -> bool:
        """Waits until the disk may have space for a commit that it had none for; returns False where it has not."""
        with self.disk_waiters.join() as waiter:
            return await waiter.wait(seconds)

    def prepare(self, commit: Commit) -> None:
        """Assigns a planned commit its time and its sequences, accepts its stamp, and reserves its space."""
        commit.move(CommitState.PREPARED)
        commit_time = self.last_commit_time = commit.commit_time = max(self.clock() // 1000, self.last_commit_time)
        first_sequence = next_sequence = self._assigned_sequence
        batches = []
        for window in commit.puts:
            batches.append(StoredBatch(next_sequence, window, commit_time))
            next_sequence += window.stop - window.start
        commit.first_sequence, commit.batches = first_sequence, batches
        if commit.stamp is not None:
            commit.acceptance = self.ledger.accept(commit.stamp, commit_time)
        else:
            commit.acceptance = self.ledger.forget(commit.forgotten_producer) if commit.forgotten_producer else None
        if commit.needs_space:
            self.capacity.change(max(commit.event_count, 0), max(commit.body_bytes, 0))
        self._assigned_sequence = next_sequence
        commit.receipt = Receipt.of(
            first_sequence, commit.put_count, commit_time, is_deduplicated=commit.dropped_count > 0
        )

    def apply(self, commit: Commit) -> None:
        """Makes a prepared commit visible: removes its takes, queues its puts, wakes the takers."""
        assert commit.first_sequence == self.next_sequence, "commits are applied in their order"
        commit.move(CommitState.DURABLE)
        for batch in commit.batches:
            self.queue.append(commit.merged or batch)
            # Not the merged columns: they would have to be cut.
            for subscriber in self._subscribers:
                subscriber.publish(batch)
        if commit.batches:
            self.next_sequence += commit.put_count
            self.last_put_time = commit.commit_time
            self.readers.wake_all()
        if commit.takes:
            self._remove_taken(commit.takes)
            # What a commit needs is charged when it is prepared; what it frees is free only now.
            self.capacity.change(min(commit.event_count, 0), min(commit.body_bytes, 0))
        counters = self.counters
        counters.put_successes += commit.put_count
        if commit.takes and not commit.is_purge:
            counters.take_successes += commit.take_count
            if self._queue_times is not None:
                self._queue_times.observe(commit.takes, self.now)
        counters.deduplicated += commit.dropped_count
        counters.commits += commit.txn_count
        self.wake_taker()

    def abort(self, commit: Commit) -> None:
        """Reverses the preparation of a commit. Its takes stay with the transaction that took them."""
        commit.move(CommitState.ABORTED)
        self._assigned_sequence = commit.first_sequence
        if commit.acceptance is not None:
            self.ledger.undo(commit.acceptance)
        self.capacity.change(-max(commit.event_count, 0), -max(commit.body_bytes, 0))

    async def resize(self, events_max: int, body_bytes_max: int, keep_alive_seconds: float) -> bool:
        """Sets new limits once the contents fit them; returns False, and changes nothing, if that takes too long."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + keep_alive_seconds
        is_woken = True
        try:
            # First in the line: commits that wait for space would take what this waits for.
            with self.capacity.waiters.join(at_front=True) as waiter:
                while self.capacity.event_count > events_max or self.capacity.body_bytes > body_bytes_max:
                    if not is_woken:
                        return False
                    is_woken = await waiter.wait(give_up - clock())
                    self.refuse_if_closed()
                self.capacity.resize(events_max, body_bytes_max)
        finally:
            self.capacity.waiters.wake_next()
        return True

    # Takes.

    async def prefetch(self, limits: ResponseLimits) -> None:
        """Reads the events for a take with these limits into memory, without blocking the event loop."""
        while self._columns is not None:
            first = _first_of(self.queue, limits.events_max)
            try:
                await self._columns.load(first)
            except SequenceGoneError:
                # Another take was faster, and what it has consumed is gone from the log: there are other events now.
                if _ends_of(first) == _ends_of(_first_of(self.queue, limits.events_max)):
                    raise
            else:
                return

    async def prefetch_end(self, sequence: int) -> None:
        """Reads the batch that ends at a sequence if it is cut there, without blocking the event loop."""
        batch = self.queue.batch_of(sequence)
        if self._columns is not None and batch is not None and batch.end_sequence > sequence + 1:
            await self._columns.load([batch])

    async def load(self, batches: Iterable[StoredBatch]) -> AsyncGenerator[StoredBatch]:
        """Yields the same batches, each once it is in memory."""
        left = list(batches)
        while left:
            group = _first_of(left, _UNLIMITED_EVENTS)
            if self._columns is not None:
                await self._columns.load(group)
            for batch in group:
                yield batch
            left = left[len(group) :]

    def take(self, limits: ResponseLimits) -> list[StoredBatch]:
        """Takes the oldest events; they keep their space until they are removed or put back."""
        return self._mark_taken(self.queue.take(limits))

    async def take_events(self, sequences: Sequence[int]) -> list[StoredBatch]:
        """Takes single events, those that are queued."""
        found = {id(batch): batch for sequence in sequences if (batch := self.queue.batch_of(sequence)) is not None}
        async for _ in self.load(found.values()):
            # What is in memory is cut without blocking the event loop.
            pass
        return self._mark_taken(self.queue.take_events(sequences))

    def take_through(self, sequence: int, batches_max: int = sys.maxsize) -> list[StoredBatch]:
        return self._mark_taken(self.queue.remove_through(sequence, batches_max))

    def put_back(self, batches: Sequence[StoredBatch]) -> None:
        self._remove_taken(batches)
        self.queue.put_back(batches)
        self.on_return()
        self.wake_taker()

    def _mark_taken(self, batches: list[StoredBatch]) -> list[StoredBatch]:
        for batch in batches:
            self._taken[batch.first_sequence] = batch
            self.taken_count += batch.count
        return batches

    def _remove_taken(self, batches: Sequence[StoredBatch]) -> None:
        for batch in batches:
            del self._taken[batch.first_sequence]
            self.taken_count -= batch.count

    def wake_taker(self) -> None:
        if self.queue.event_count:
            self.takers.wake_next()

    def subscribe(self) -> Subscriber:
        subscriber = Subscriber()
        self._subscribers.add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)


_first_sequence = attrgetter("first_sequence")


def _ends_of(batches: Iterable[StoredBatch]) -> list[tuple[int, int]]:
    return [(batch.end_sequence, batch.count) for batch in batches]


def _first_of(batches: Iterable[StoredBatch], events_max: int) -> list[StoredBatch]:
    """Returns the first batches, up to a number of events or bytes, and at least one if there is any."""
    first = []
    event_count = 0
    raw_bytes = 0
    for batch in batches:
        first.append(batch)
        event_count += batch.count
        raw_bytes += batch.window.stored.raw_bytes
        if event_count >= events_max or raw_bytes >= _AHEAD_BYTES:
            break
    return first


def _select(windows: Sequence[Window], ranges: Sequence[tuple[int, int]]) -> list[Window]:
    """Returns the parts of windows, taken as one run of events, that the ranges name."""
    selected = []
    offset = 0
    for window in windows:
        for start, stop in ranges:
            low, high = max(start - offset, 0), min(stop - offset, window.count)
            if low < high:
                selected.append(window.part(low, high))
        offset += window.count
    return selected
