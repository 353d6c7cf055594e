"""What is in a channel: committed events, the room they take, and what their producers have stored."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from millrace_server.channels.batches import StoredBatch, Window
from millrace_server.channels.counters import ChannelCounters
from millrace_server.channels.followers import Follower
from millrace_server.channels.queue import EventQueue, Portion
from millrace_server.channels.room import Room
from millrace_server.channels.stamps import Stamp, StampLedger
from millrace_server.channels.waiting import WaitingLine
from millrace_server.errors import ChannelNotFoundError, TxnCapacityError

MadeT = TypeVar("MadeT")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a commit stored; both sequences are 0 where it stored nothing."""

    first_sequence: int = 0
    last_sequence: int = 0
    is_deduplicated: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does to the contents."""

    puts: Sequence[Window]
    takes: Sequence[StoredBatch]
    stamp: Stamp | None
    dropped_count: int
    """Events that the stamp showed to be stored already."""

    @property
    def put_count(self) -> int:
        """Events that are put."""
        return sum(put.count for put in self.puts)

    @property
    def put_body_bytes(self) -> int:
        """Bytes of their bodies."""
        return sum(put.body_bytes for put in self.puts)

    @property
    def event_count(self) -> int:
        """Events that the channel gains; negative where it loses some."""
        return self.put_count - sum(take.count for take in self.takes)

    @property
    def body_bytes(self) -> int:
        """Bytes of bodies that the channel gains; negative where it loses some."""
        return self.put_body_bytes - sum(take.window.body_bytes for take in self.takes)

    @property
    def needs_room(self) -> bool:
        """Whether the channel gains anything."""
        return self.event_count > 0 or self.body_bytes > 0


class Contents:
    """The committed events of one channel, queued or taken.

    Commits plan a change, wait until there is room for it, plan it anew, and apply it: between the last plan and its
    application nothing else happens.
    """

    def __init__(self, name: str, events_max: int, body_bytes_max: int) -> None:
        self._name = name
        self._is_closed = False
        self._followers: set[Follower] = set()
        self.queue = EventQueue()
        self.room = Room(events_max, body_bytes_max)
        self.ledger = StampLedger()
        self.takers = WaitingLine()
        self.counters = ChannelCounters()
        self.next_sequence = 1

    @property
    def first_sequence(self) -> int:
        """The oldest queued sequence; the next one to come where the queue is empty."""
        return self.queue.first_sequence or self.next_sequence

    @property
    def taken_count(self) -> int:
        """Events that transactions have taken."""
        return self.room.event_count - self.queue.event_count

    def refuse_if_closed(self) -> None:
        """Raises ChannelNotFoundError once the channel is deleted."""
        if self._is_closed:
            raise ChannelNotFoundError(f"channel {self._name!r} was deleted", channel=self._name)

    def close(self) -> None:
        """Tells whoever waits, and whoever comes later, that the channel is deleted."""
        self._is_closed = True
        self.takers.wake_all()
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
        event_count = sum(put.count for put in puts)
        if stamp is not None:
            ranges = self.ledger.new_ranges(stamp, event_count)
            kept_count = sum(stop - start for start, stop in ranges)
            change = Change(_select(puts, ranges), takes, stamp, event_count - kept_count)
        else:
            change = Change(puts, takes, None, 0)
        self._refuse_what_never_fits(change)
        return change

    def _refuse_what_never_fits(self, change: Change) -> None:
        if change.put_count > self.room.events_max or change.put_body_bytes > self.room.body_bytes_max:
            raise TxnCapacityError(
                f"the commit puts {change.put_count} events with {change.put_body_bytes} body bytes; the whole channel "
                f"holds {self.room.events_max} and {self.room.body_bytes_max}; commit less at once"
            )

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

    def apply(self, change: Change) -> Receipt:
        """Makes a planned change: removes what was taken, queues what was put, wakes who waits."""
        first_sequence = self.next_sequence
        for window in change.puts:
            batch = StoredBatch(self.next_sequence, window)
            self.queue.append(batch)
            self.next_sequence = batch.end_sequence
            for follower in self._followers:
                follower.offer(batch)
        if change.stamp is not None:
            self.ledger.accept(change.stamp)
        self.room.change(change.event_count, change.body_bytes)
        self.counters.put_successes += self.next_sequence - first_sequence
        self.counters.take_successes += sum(take.count for take in change.takes)
        self.counters.deduplicated += change.dropped_count
        self.wake_taker()
        if self.next_sequence == first_sequence:
            return Receipt(is_deduplicated=change.dropped_count > 0)
        return Receipt(first_sequence, self.next_sequence - 1, change.dropped_count > 0)

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

    def take(self, portion: Portion) -> list[StoredBatch]:
        """Takes the oldest events; they keep their room until they are removed or put back."""
        return self.queue.take(portion)

    def put_back(self, batches: Sequence[StoredBatch]) -> None:
        """Returns taken events to their places."""
        self.queue.put_back(batches)
        self.wake_taker()

    def remove_through(self, sequence: int) -> None:
        """Removes all queued events up to a sequence, included."""
        self.apply(Change([], self.queue.remove_through(sequence), None, 0))

    def clear(self) -> int:
        """Removes all queued events without anybody having had them; returns how many."""
        removed = self.queue.clear()
        removed_count = sum(batch.count for batch in removed)
        self.room.change(-removed_count, -sum(batch.window.body_bytes for batch in removed))
        return removed_count

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
