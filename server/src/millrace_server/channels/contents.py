"""What is in a channel: committed events, the room they take, and what their producers have stored."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from millrace_server.channels.batches import StoredBatch, Window
from millrace_server.channels.counters import ChannelCounters
from millrace_server.channels.followers import Follower
from millrace_server.channels.log_columns import LogColumns
from millrace_server.channels.queue import EventQueue, Portion
from millrace_server.channels.room import Room
from millrace_server.channels.stamps import Acceptance, Stamp, StampLedger
from millrace_server.channels.waiting import WaitingLine
from millrace_server.errors import ChannelNotFoundError, TxnCapacityError

MadeT = TypeVar("MadeT")

_AHEAD_BYTES = 4 << 20
"""Bytes of columns that are read from a log at once, ahead of their use."""
_UNLIMITED_EVENTS = 1 << 62


class Receipt(NamedTuple):
    """What a commit stored; both sequences are 0 where it stored nothing."""

    first_sequence: int = 0
    last_sequence: int = 0
    is_deduplicated: bool = False


@dataclass(slots=True)
class Change:
    """What a commit does to the contents. It does not change; its sums are asked for often, and made once."""

    puts: Sequence[Window]
    takes: Sequence[StoredBatch]
    stamp: Stamp | None
    dropped_count: int
    """Events that the stamp showed to be stored already."""
    is_purge: bool = False
    """Whether what it takes goes without anybody having had it."""
    has_new_numbers: bool = False
    """Whether the stamp names numbers that were not accepted before: they are to be remembered, also with no events."""

    put_count: int = field(init=False)
    """Events that are put."""
    put_body_bytes: int = field(init=False)
    """Bytes of their bodies."""
    put_raw_bytes: int = field(init=False)
    """Bytes of the columns that they are in."""
    puts_whole_columns: bool = field(init=False)
    """Whether nothing of these columns is left out."""
    take_count: int = field(init=False)
    """Events that are taken."""
    event_count: int = field(init=False)
    """Events that the channel gains; negative where it loses some."""
    body_bytes: int = field(init=False)
    """Bytes of bodies that the channel gains; negative where it loses some."""
    needs_room: bool = field(init=False)
    """Whether the channel gains anything."""

    def __post_init__(self) -> None:
        put_count = put_body_bytes = put_raw_bytes = columns_count = take_count = take_body_bytes = 0
        for put in self.puts:
            put_count += put.stop - put.start
            put_body_bytes += put.body_bytes
            put_raw_bytes += put.stored.raw_bytes
            columns_count += put.stored.count
        for take in self.takes:
            take_count += take.count
            take_body_bytes += take.window.body_bytes
        self.put_count, self.put_body_bytes, self.put_raw_bytes = put_count, put_body_bytes, put_raw_bytes
        self.puts_whole_columns = put_count == columns_count
        self.take_count = take_count
        self.event_count, self.body_bytes = put_count - take_count, put_body_bytes - take_body_bytes
        self.needs_room = self.event_count > 0 or self.body_bytes > 0


@dataclass(slots=True)
class BegunChange:
    """A change that has its place in the order of commits, and of which nobody sees anything yet. It stays as it is."""

    change: Change
    batches: Sequence[StoredBatch]
    """What it puts, with the sequences that it gets."""
    first_sequence: int
    """The first of these; the next one to come where nothing is put."""
    acceptance: Acceptance | None
    receipt: Receipt


class Contents:
    """The committed events of one channel, queued or taken.

    A commit plans a change, waits until there is room for it, plans it anew, and begins it: between the last plan and
    the beginning nothing else happens. What has begun holds its sequences and its room; it is finished once it is sure
    to last, or undone where it cannot be. Changes are finished in the order in which they began, and undone from the
    last one on.

    Args:
        name: The channel's.
        room: How much it may hold; empty.
        next_sequence: The first sequence that it gives.
        columns: Reads back what is not in memory; None where all is.
    """

    def __init__(self, name: str, room: Room, next_sequence: int = 1, columns: LogColumns | None = None) -> None:
        self._name = name
        self._columns = columns
        self._is_closed = False
        self._followers: set[Follower] = set()
        self._taken: dict[int, StoredBatch] = {}
        self._assigned_sequence = next_sequence
        self.queue = EventQueue()
        self.room = room
        self.ledger = StampLedger()
        self.takers = WaitingLine()
        self.readers = WaitingLine()
        self.counters = ChannelCounters()
        self.next_sequence = next_sequence
        self.taken_count = 0

    @property
    def first_sequence(self) -> int:
        """The oldest queued sequence; the next one to come where the queue is empty."""
        return self.queue.first_sequence or self.next_sequence

    @property
    def oldest_sequence(self) -> int:
        """The oldest sequence that is still in the channel, queued or taken; all before it are gone for good.

        Takes as long as there are batches taken.
        """
        return min([self.first_sequence, *self._taken])

    @property
    def assigned_sequence(self) -> int:
        """The sequence that the next change to begin gets; `next_sequence` where none is under way."""
        return self._assigned_sequence

    def held_batches(self) -> list[StoredBatch]:
        """All committed events, queued or taken, in no order."""
        return [*self.queue, *self._taken.values()]

    def restore(self, queue: EventQueue, ledger: StampLedger) -> None:
        """Fills the contents with what a log has told."""
        self.queue = queue
        self.ledger = ledger
        self.room.change(queue.event_count, sum(batch.window.body_bytes for batch in queue))

    def refuse_if_closed(self) -> None:
        """Raises ChannelNotFoundError once the channel is deleted."""
        if self._is_closed:
            raise ChannelNotFoundError(f"channel {self._name!r} was deleted", channel=self._name)

    def close(self) -> None:
        """Tells whoever waits, and whoever comes later, that the channel is deleted."""
        self._is_closed = True
        self.takers.wake_all()
        self.readers.wake_all()
        self.room.line.wake_all()
        for follower in self._followers:
            follower.end()

    # Commits.

    def plan(self, puts: Sequence[Window], takes: Sequence[StoredBatch], stamp: Stamp | None) -> Change:
        """What committing these would do now.

        Raises:
            BadArgumentError: The stamp overlaps in part what the producer has stored.
            TxnCapacityError: The puts would not fit the channel if it were empty.
        """
        self.refuse_if_closed()
        if stamp is not None:
            event_count = sum(put.count for put in puts)
            ranges = self.ledger.new_ranges(stamp, event_count)
            kept_count = sum(stop - start for start, stop in ranges)
            change = Change(_select(puts, ranges), takes, stamp, event_count - kept_count, has_new_numbers=bool(ranges))
        else:
            change = Change(puts, takes, None, 0)
        if change.put_count > self.room.events_max or change.put_body_bytes > self.room.body_bytes_max:
            raise TxnCapacityError(
                f"the commit puts {change.put_count} events with {change.put_body_bytes} body bytes; the whole channel "
                f"holds {self.room.events_max} and {self.room.body_bytes_max}; commit less at once"
            )
        return change

    def goes_at_once(self, change: Change) -> bool:
        """Whether there is room, and nobody who came before waits for it."""
        if not change.needs_room:
            return True
        return not self.room.line and self.room.admits(change.event_count, change.body_bytes)

    async def wait_for_room(self, plan: Callable[[], Change | MadeT], keep_alive_seconds: float) -> Change | MadeT:
        """Waits in the line for room.

        Args:
            plan: Plans the change anew, each time there may be room. Anything but a change, or an error, ends
                the waiting: the commit was made, or made impossible, by another call meanwhile.
            keep_alive_seconds: How long to wait.

        Raises:
            ChannelFullError, BytesFullError: There was no room in time.
        """
        clock = asyncio.get_running_loop().time
        give_up = clock() + keep_alive_seconds
        try:
            with self.room.line.place() as place:
                while True:
                    is_woken = await place.wait(give_up - clock())
                    planned = plan()
                    if not isinstance(planned, Change) or not planned.needs_room:
                        return planned
                    # Who was woken out of turn overtakes nobody; who has no more time takes what room there is.
                    is_turn = self.room.line.is_first(place) or not is_woken
                    if is_turn and self.room.admits(planned.event_count, planned.body_bytes):
                        return planned
                    if not is_woken:
                        raise self.room.full_error(planned.event_count, planned.body_bytes, keep_alive_seconds)
        finally:
            # There may be room for the next one too, or it needs less than this one did.
            self.room.line.wake_next()

    def begin(self, change: Change) -> BegunChange:
        """Gives a planned change its place: its sequences, its stamp, and the room that it needs."""
        first_sequence = self._assigned_sequence
        batches = []
        for window in change.puts:
            batches.append(StoredBatch(self._assigned_sequence, window))
            self._assigned_sequence += window.count
        acceptance = None if change.stamp is None else self.ledger.accept(change.stamp)
        if change.needs_room:
            self.room.change(max(change.event_count, 0), max(change.body_bytes, 0))
        is_deduplicated = change.dropped_count > 0
        if batches:
            receipt = Receipt(first_sequence, self._assigned_sequence - 1, is_deduplicated)
        else:
            receipt = Receipt(is_deduplicated=is_deduplicated)
        return BegunChange(change, batches, first_sequence, acceptance, receipt)

    def finish(self, begun: BegunChange) -> None:
        """Makes a change that has begun: removes what was taken, queues what was put, wakes who waits."""
        change = begun.change
        assert begun.first_sequence == self.next_sequence, "changes are finished in their order"
        for batch in begun.batches:
            self.queue.append(batch)
            for follower in self._followers:
                follower.offer(batch)
        if begun.batches:
            self.next_sequence = begun.batches[-1].end_sequence
            self.readers.wake_all()
        if change.takes:
            self._settle(change.takes)
            self.room.change(min(change.event_count, 0), min(change.body_bytes, 0))
        self.counters.put_successes += self.next_sequence - begun.first_sequence
        if not change.is_purge:
            self.counters.take_successes += change.take_count
        self.counters.deduplicated += change.dropped_count
        self.wake_taker()

    def undo(self, begun: BegunChange) -> None:
        """Has a change never have begun. What it takes stays with whoever took it."""
        self._assigned_sequence = begun.first_sequence
        if begun.acceptance is not None:
            self.ledger.undo(begun.acceptance)
        self.room.change(-max(begun.change.event_count, 0), -max(begun.change.body_bytes, 0))

    async def resize(self, events_max: int, body_bytes_max: int, keep_alive_seconds: float) -> bool:
        """Sets new limits, once what the channel holds fits them.

        Returns:
            False where it did not in time; then nothing has changed.
        """
        clock = asyncio.get_running_loop().time
        give_up = clock() + keep_alive_seconds
        is_woken = True
        try:
            # First in the line: commits that wait for room would take what this waits for.
            with self.room.line.place(at_front=True) as place:
                while self.room.event_count > events_max or self.room.body_bytes > body_bytes_max:
                    if not is_woken:
                        return False
                    is_woken = await place.wait(give_up - clock())
                    self.refuse_if_closed()
                self.room.resize(events_max, body_bytes_max)
        finally:
            self.room.line.wake_next()
        return True

    # Takes.

    async def load_ahead(self, portion: Portion) -> None:
        """Sees to it that a take of this portion finds its events in memory, without holding up anybody else.

        Raises:
            ChannelCorruptError: Some of them are not what was written.
        """
        if self._columns is not None:
            await self._columns.load(_first_of(self.queue, portion.events_max))

    async def load(self, batches: Iterable[StoredBatch]) -> AsyncGenerator[StoredBatch]:
        """The same batches, each when it is in memory.

        Raises:
            ChannelCorruptError: One of them is not what was written.
        """
        left = list(batches)
        while left:
            group = _first_of(left, _UNLIMITED_EVENTS)
            if self._columns is not None:
                await self._columns.load(group)
            for batch in group:
                yield batch
            left = left[len(group) :]

    def take(self, portion: Portion) -> list[StoredBatch]:
        """Takes the oldest events; they keep their room until they are removed or put back."""
        return self._handed_out(self.queue.take(portion))

    def take_through(self, sequence: int) -> list[StoredBatch]:
        """Takes all queued events up to a sequence, included."""
        return self._handed_out(self.queue.remove_through(sequence))

    def take_all(self) -> list[StoredBatch]:
        """Takes all queued events."""
        return self._handed_out(self.queue.clear())

    def put_back(self, batches: Sequence[StoredBatch]) -> None:
        """Returns taken events to their places."""
        self._settle(batches)
        self.queue.put_back(batches)
        self.wake_taker()

    def _handed_out(self, batches: list[StoredBatch]) -> list[StoredBatch]:
        for batch in batches:
            self._taken[batch.first_sequence] = batch
            self.taken_count += batch.count
        return batches

    def _settle(self, batches: Sequence[StoredBatch]) -> None:
        for batch in batches:
            del self._taken[batch.first_sequence]
            self.taken_count -= batch.count

    def wake_taker(self) -> None:
        """Wakes one who waits for events, where there are any."""
        if self.queue.event_count:
            self.takers.wake_next()

    # Onlookers.

    def follow(self) -> Follower:
        """An onlooker from now on; to be given to `unfollow` at last."""
        follower = Follower()
        self._followers.add(follower)
        return follower

    def unfollow(self, follower: Follower) -> None:
        """Dismisses an onlooker."""
        self._followers.discard(follower)


def _first_of(batches: Iterable[StoredBatch], events_max: int) -> list[StoredBatch]:
    """The first batches, up to a number of events or of bytes, and one at least where there is any."""
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
    """The parts of windows, taken as one run of events, that the ranges name."""
    selected = []
    offset = 0
    for window in windows:
        for start, stop in ranges:
            low, high = max(start - offset, 0), min(stop - offset, window.count)
            if low < high:
                selected.append(window.part(low, high))
        offset += window.count
    return selected
