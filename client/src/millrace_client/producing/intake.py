"""The intake: where threads hand events over, and where the engine takes them out in batches."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping
from zlib import crc32

from millrace.columns import HEADER_CELLS_MAX, HEADER_KEYS_MAX
from millrace_client.errors import (
    BadArgumentError,
    BufferFullError,
    EventDroppedError,
    EventTooLargeError,
    MillraceError,
    ProducerClosedError,
)
from millrace_client.producing.bulk import Bulk
from millrace_client.producing.config import Overflow, ProducerConfig, Routing
from millrace_client.producing.lanes import LANES, Gathering, Lane
from millrace_client.producing.metrics import Tally
from millrace_client.producing.pages import EVENT_BYTES, HEAD_BYTES, HEADER_BYTES, SIZE_BYTES, Page, pad
from millrace_client.producing.results import Callback, Outcome

PRODUCER_HEADER = "millrace-producer"
"""Names the producer of an event, where context is wanted."""
PLACE_HEADER = "millrace-place"
"""Counts a producer's events of a channel, from 1 and in the order of `send`."""

CALLBACK_BYTES = 200
"""What a callback takes of the buffer until it has run, beside its event."""

_CONTEXT_HEADERS = 2

_STEPS_ASIDE_MAX = 100


class Intake:
    """Holds what was sent and is in no batch yet, and accounts for the memory of all that is not settled.

    Args:
        config: The limits.
        producer_id: What context headers name.
        tally: Where drops and waits are counted.
    """

    def __init__(
        self, config: ProducerConfig, producer_id: str, tally: Tally, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lock = threading.Lock()
        self._config = config
        self._producer_id = producer_id
        self._tally = tally
        self._clock = clock
        self._has_room = threading.Condition(self.lock)
        self._changed = threading.Condition(self.lock)
        # Room is left for the two headers of the context.
        self._keys_max = max(1, min(HEADER_KEYS_MAX - _CONTEXT_HEADERS, HEADER_CELLS_MAX // config.batch_events_max))
        # A larger event may be one that goes alone, or one that is refused.
        self._joining_bytes_max = min(config.batch_bytes_max, config.event_bytes_limit)
        self._has_context = config.context_headers
        self._places: dict[str, int] = {}
        self._room_waiters: list[asyncio.Future[None]] = []
        self._is_woken = False
        self._is_timed = False
        self.wake: Callable[[], None] = _nothing
        """Has the engine look soon; called with the lock held."""
        self.run_callbacks: Callable[[list[tuple[Callback, int]], Outcome], None] = _no_callbacks
        """Takes the callbacks of events that were dropped; called with the lock held."""
        self.note_drops: Callable[[str, int], None] = _no_drops
        """Is told of drops likewise."""
        self.refusal: MillraceError | None = None
        """Why nothing is taken any more."""
        self._hash: Callable[[str | bytes], int] = _stable_hash if config.routing is Routing.BY_KEY else hash
        self.gatherings: dict[str, Gathering] = {}
        self.open_pages: set[Page] = set()
        """Pages with events that are not settled."""
        self.bytes_max = config.buffer_bytes_max
        self.held_bytes = 0
        """What all events that are not settled take of the buffer."""

    # For those who send.

    def gathering(self, channel: str) -> Gathering:
        """Where events of a channel gather."""
        with self.lock:
            known = self.gatherings.get(channel)
            if known is None:
                known = self.gatherings[channel] = Gathering(
                    channel,
                    self._config.batch_events_max,
                    self._config.batch_bytes_max,
                    is_ordered=self._config.is_resumable,
                )
            return known

    def put(  # noqa: C901, PLR0913, PLR0917 - each event goes this way: more calls would double what it costs
        self,
        gathering: Gathering,
        key: str | bytes | None,
        body: bytes,
        headers: Mapping[str, str],
        callback: Callback | None,
        may_wait: bool,  # noqa: FBT001 - by position, likewise
    ) -> tuple[Page, int]:
        """Takes an event; returns its page and its index there.

        Raises:
            BadArgumentError, TypeError: It is no event.
            EventTooLargeError: It is larger than events may be.
            BufferFullError: There is no room for it.
        """
        lane = gathering.keyless if key is None else gathering.lanes[self._hash(key) % LANES]
        size = len(body) + SIZE_BYTES
        if not self.lock.acquire(False):
            self._acquire_patiently()
        try:
            # Values of headers are not counted here: that would take one more look at each. So an event's may be above.
            if self.held_bytes + size + EVENT_BYTES > self.bytes_max or self.refusal is not None:
                self._make_room(size + EVENT_BYTES, may_wait=may_wait)
            page = lane.page or self._open_page(gathering, lane)
            bodies = page.bodies
            position = len(bodies)
            if headers:
                columns = page.columns
                for name, value in headers.items():
                    column = columns.get(name)
                    if column is None or len(column) != position or value.__class__ is not str or not value.isascii():
                        page, size = self._add_headers(gathering, lane, page, body, headers)
                        break
                    column.append(value)
                    size += len(value) + SIZE_BYTES
            if page.encoded_bytes + size > gathering.bytes_max or size > self._joining_bytes_max:
                page = self._fit(gathering, lane, page, body, headers, size)
            if page.bodies is not bodies:
                bodies = page.bodies
                position = len(bodies)
            if self._has_context:
                self._add_context(gathering, page)
            bodies.append(body)
            index = position + page.dropped_count
            held = size + EVENT_BYTES + HEADER_BYTES * len(headers)
            if callback is not None:
                held += CALLBACK_BYTES
                page.add_callback(index, callback)
            page.encoded_bytes += size
            page.held_bytes += held
            self.held_bytes += held
            if position + 1 >= gathering.events_max:
                self._close_page(lane)
            elif not position and not (self._is_timed or lane.is_held):
                self._wake_once()
        finally:
            self.lock.release()
        return page, index

    @staticmethod
    def run_events(gathering: Gathering, bulk: Bulk) -> int:
        """How many events like these take a quarter of a page: more together would leave much of its room unused."""
        return gathering.bytes_max * len(bulk.bodies) // (4 * bulk.encoded_bytes)

    def put_bulk(self, gathering: Gathering, key: str | bytes | None, bulk: Bulk) -> tuple[Page, int] | None:
        """Takes events that are alike, side by side in one page.

        Returns:
            The page, and the first one's index there; None where they are to be put one by one: they do not go together
            with what is there, or there is no room for all.
        """
        lane = gathering.keyless if key is None else gathering.lanes[self._hash(key) % LANES]
        is_too_much = len(bulk.bodies) > gathering.events_max or bulk.bytes_on_new_page > gathering.bytes_max
        if self._has_context or len(bulk.columns) > self._keys_max or is_too_much:
            return None
        if self._joining_bytes_max < gathering.bytes_max and bulk.event_bytes_bound > self._joining_bytes_max:
            return None
        if not self.lock.acquire(False):
            self._acquire_patiently()
        try:
            if self.refusal is not None or self.held_bytes + bulk.held_bytes > self.bytes_max:
                return None
            page = lane.page or self._open_page(gathering, lane)
            is_full = len(page.bodies) + len(bulk.bodies) > gathering.events_max
            is_full = is_full or page.encoded_bytes + bulk.bytes_on_new_page > gathering.bytes_max
            # Never an empty one: that would be a batch of no events.
            if is_full and page.bodies:
                page = self._turn_page(gathering, lane)
            position = len(page.bodies)
            if not page.add_alike(bulk.bodies, bulk.columns):
                return None
            page.encoded_bytes = page.encoded_bytes + bulk.encoded_bytes if position else bulk.bytes_on_new_page
            page.held_bytes += bulk.held_bytes
            self.held_bytes += bulk.held_bytes
            if len(page.bodies) >= gathering.events_max:
                self._close_page(lane)
            elif not position and not (self._is_timed or lane.is_held):
                self._wake_once()
        finally:
            self.lock.release()
        return page, position + page.dropped_count

    def _acquire_patiently(self) -> None:
        """Takes the lock, which another thread holds.

        Whoever waits inside a lock is handed it while somebody else runs, who then waits for it in turn: with several
        senders each event would cost a change of threads. So this steps aside instead, and whoever runs goes on.
        """
        for _ in range(_STEPS_ASIDE_MAX):
            time.sleep(0)
            if self.lock.acquire(blocking=False):
                return
        self.lock.acquire()

    def _fit(  # noqa: PLR0913, PLR0917 - the event in its parts, likewise
        self,
        gathering: Gathering,
        lane: Lane,
        page: Page,
        body: bytes,
        headers: Mapping[str, str],
        size: int,
    ) -> Page:
        """The page for an event that would make its page too large, with the event's headers."""
        position = len(page.bodies)
        _cut(page, position)
        if size > self._joining_bytes_max:
            try:
                self._refuse_what_never_fits(body, headers, size)
            except MillraceError:
                if not position:
                    self._forget_empty_page(gathering, lane, page)
                raise
        if position:
            page = self._turn_page(gathering, lane)
        if headers:
            page, _ = self._add_headers(gathering, lane, page, body, headers)
        return page

    def _refuse_what_never_fits(self, body: bytes, headers: Mapping[str, str], size: int) -> None:
        if len(headers) > HEADER_KEYS_MAX:
            raise BadArgumentError(f"event: has {len(headers)} headers; at most {HEADER_KEYS_MAX} are allowed")
        size += HEAD_BYTES + sum(len(name.encode()) + HEAD_BYTES for name in headers)
        if size > self._config.event_bytes_limit:
            raise EventTooLargeError(
                f"event: has about {size} bytes, {len(body)} of them in its body; this producer takes events of up to "
                f"{self._config.event_bytes_limit} bytes, see `batch_bytes_max` and `event_bytes_max`"
            )

    def _open_page(self, gathering: Gathering, lane: Lane) -> Page:
        page = lane.page = Page(self.lock, self._clock())
        page.encoded_bytes = HEAD_BYTES
        gathering.waiting.setdefault(lane, page)
        self.open_pages.add(page)
        return page

    def _turn_page(self, gathering: Gathering, lane: Lane) -> Page:
        """Closes a lane's page and opens the next one."""
        self._close_page(lane)
        return self._open_page(gathering, lane)

    def _forget_empty_page(self, gathering: Gathering, lane: Lane, page: Page) -> None:
        lane.page = None
        self.open_pages.discard(page)
        if gathering.waiting[lane] is page:
            del gathering.waiting[lane]

    def _close_page(self, lane: Lane) -> None:
        assert lane.page is not None, "the lane has a page"
        lane.closed.append(lane.page)
        lane.page = None
        if not lane.is_held:
            self._wake_once()

    def _wake_once(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self.wake()

    def _add_headers(
        self, gathering: Gathering, lane: Lane, page: Page, body: bytes, headers: Mapping[str, str]
    ) -> tuple[Page, int]:
        """Adds an event's headers to its page, whatever is there of them already.

        Returns:
            The page, or another one where this has no room for more keys; and what the event takes on the wire.
        """
        position = len(page.bodies)
        _cut(page, position)
        new_names = [name for name in headers if name not in page.columns]
        try:
            size = len(body) + sum(_checked_bytes(name, value) + SIZE_BYTES for name, value in headers.items())
            if len(headers) >= self._keys_max:
                self._refuse_what_never_fits(body, headers, size)
            if position and new_names and len(page.columns) + len(new_names) > self._keys_max:
                return self._add_headers(gathering, lane, self._turn_page(gathering, lane), body, headers)
            for name in new_names:
                page.columns[name] = []
                page.encoded_bytes += len(name.encode()) + HEAD_BYTES
        except (MillraceError, TypeError):
            if not position:
                self._forget_empty_page(gathering, lane, page)
            raise
        for name, value in headers.items():
            pad(page.columns[name], position)
            page.columns[name].append(value)
        return page, size + SIZE_BYTES

    def _add_context(self, gathering: Gathering, page: Page) -> None:
        place = self._places.get(gathering.channel, self._config.first_number) + 1
        for name, value in ((PRODUCER_HEADER, self._producer_id), (PLACE_HEADER, str(place))):
            column = page.columns.get(name)
            if column is None:
                column = page.columns[name] = []
                page.encoded_bytes += len(name) + HEAD_BYTES
            pad(column, len(page.bodies))
            column.append(value)
        self._places[gathering.channel] = place

    # Room.

    def _make_room(self, held: int, *, may_wait: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        bytes_max = self._config.buffer_bytes_max
        if held > bytes_max:
            raise EventTooLargeError(f"event: takes {held} bytes of memory; the buffer holds at most {bytes_max}")
        match self._config.overflow:
            case Overflow.DROP_OLDEST:
                self._drop_oldest(self.held_bytes + held - bytes_max)
            case Overflow.BLOCK if may_wait:
                self._wait_for_room(held)
                if self.refusal is not None:
                    raise self.refusal
        if self.held_bytes + held > bytes_max:
            raise BufferFullError(
                f"the producer holds {self.held_bytes} bytes of events of at most {bytes_max}; send less at once, or "
                "raise buffer_bytes_max"
            )

    def wait_for_room(self, held: int) -> bool:
        """Waits until events that take so much have room together, where sends wait for room.

        Returns:
            Whether whoever sends them one by one may wait for each: not where the time for that has passed.
        """
        if self._config.overflow is not Overflow.BLOCK or not self.bytes_max - self.held_bytes < held <= self.bytes_max:
            return True
        with self.lock:
            return self._wait_for_room(held)

    def _wait_for_room(self, held: int) -> bool:
        """Waits as long as a send may; returns whether there is room, or nothing is taken any more."""
        began = self._clock()
        has_ended = self._has_room.wait_for(
            lambda: self.refusal is not None or self.held_bytes + held <= self.bytes_max,
            self._config.max_block_seconds,
        )
        self._tally.blocked_seconds += self._clock() - began
        return has_ended

    def room_freed(self) -> "asyncio.Future[None]":
        """Ends when memory was given back, for a task of the engine's own loop."""
        waiter = asyncio.get_running_loop().create_future()
        self._room_waiters.append(waiter)
        return waiter

    def _drop_oldest(self, needed_bytes: int) -> None:
        while needed_bytes > 0:
            heads = [
                (page.born, gathering.channel, lane.index)
                for gathering in self.gatherings.values()
                for lane, page in gathering.waiting.items()
            ]
            if not heads:
                return
            _, channel, index = min(heads)
            gathering = self.gatherings[channel]
            lane = gathering.keyless if index < 0 else gathering.lanes[index]
            needed_bytes -= self._drop_from(gathering, lane, needed_bytes)

    def _drop_from(self, gathering: Gathering, lane: Lane, needed_bytes: int) -> int:
        """Drops events of a lane's oldest page until so much is free, or the page is empty; returns what is free."""
        page = gathering.waiting[lane]
        count, freed = 0, 0
        while freed < needed_bytes and count < len(page.bodies):
            freed += page.event_bytes(count)
            count += 1
        if count == len(page.bodies):
            freed = page.held_bytes
            self._pop_page(gathering, lane)
        start = page.dropped_count
        page.drop_first(count)
        page.held_bytes -= freed
        self.held_bytes -= freed
        self._tally.events_dropped += count
        error = EventDroppedError(
            "the event was dropped to make room for newer ones; the producer's buffer is full",
            channel=gathering.channel,
        )
        outcome = Outcome(gathering.channel, error=error)
        self.run_callbacks(self._settle(page, start, start + count, 0, outcome), outcome)
        self.note_drops(gathering.channel, count)
        return freed

    # For the engine.

    def begin_turn(self) -> None:
        """Has whoever sends wake the engine anew from now on."""
        with self.lock:
            self._is_woken = False

    def take(self, gathering: Gathering, now: float, accepts: Callable[[Lane], bool]) -> tuple[list[Page], list[Lane]]:
        """Takes the pages of the next batch, where one is due.

        Args:
            gathering: Where to take from.
            now: The time.
            accepts: Says whether a lane may go into this batch.

        Returns:
            Pages that fit into one batch, oldest first, and the keyed lanes that they hold from now on. None where
            nothing is due: no free lane has a full page, or one whose first event has lingered.
        """
        with self.lock:
            due_before = now - self._config.linger_seconds
            free = [
                (page.born, lane.index, lane, page)
                for lane, page in gathering.waiting.items()
                if not lane.is_held and accepts(lane)
            ]
            free.sort()
            first = next((entry for entry in free if entry[2].closed or entry[0] <= due_before), None)
            if first is None:
                return [], []
            free.remove(first)
            chosen = [first[2:]]
            self._fill(gathering, chosen, [entry[2:] for entry in free])
            held = [lane for lane, _ in chosen if lane.index >= 0]
            for lane in held:
                lane.is_held = True
            for lane, _page in chosen:
                self._pop_page(gathering, lane)
            return [page for _, page in chosen], held

    def _fill(self, gathering: Gathering, chosen: list[tuple[Lane, Page]], others: list[tuple[Lane, Page]]) -> None:
        """Adds what else fits, due or not: it would be the next batch, and its lane is free now."""
        [(_, first)] = chosen
        names = set(first.columns)
        count_left = gathering.events_max - len(first.bodies)
        bytes_left = gathering.bytes_max - first.encoded_bytes
        for lane, page in others:
            if count_left <= 0:
                return
            fits = len(page.bodies) <= count_left and page.encoded_bytes <= bytes_left
            if fits and len(names | page.columns.keys()) <= self._keys_max + _CONTEXT_HEADERS:
                chosen.append((lane, page))
                names |= page.columns.keys()
                count_left -= len(page.bodies)
                bytes_left -= page.encoded_bytes

    @staticmethod
    def _pop_page(gathering: Gathering, lane: Lane) -> None:
        if lane.closed:
            lane.closed.popleft()
        else:
            lane.page = None
        # Set anew, not changed: so lanes stay in the order of what they wait for.
        del gathering.waiting[lane]
        if (head := lane.head) is not None:
            gathering.waiting[lane] = head

    def next_due(self) -> float | None:
        """When the next page will have lingered that could be sent then; None where there is none.

        Who asks sets a timer; so nobody wakes the engine for pages that are due later.
        """
        with self.lock:
            born = [
                page.born
                for gathering in self.gatherings.values()
                for lane, page in gathering.waiting.items()
                if not lane.is_held
            ]
            self._is_timed = bool(born)
            return min(born) + self._config.linger_seconds if born else None

    def waiting_since(self) -> float | None:
        """From when the delivery time of the oldest event counts that is in no batch; None where it does of none."""
        with self.lock:
            waiting = [entry for gathering in self.gatherings.values() for entry in gathering.waiting.items()]
            oldest = min((lane.waits_since(page) for lane, page in waiting), default=math.inf)
            return None if oldest == math.inf else oldest

    def take_older(self, born_before: float) -> list[tuple[Gathering, Page]]:
        """Takes out all pages that are in no batch and whose delivery time began so long ago."""
        taken = []
        with self.lock:
            for gathering in self.gatherings.values():
                for lane in list(gathering.waiting):
                    while (page := lane.head) is not None and lane.waits_since(page) <= born_before:
                        self._pop_page(gathering, lane)
                        taken.append((gathering, page))
        return taken

    def close_pages(self) -> set[Page]:
        """Makes all that waits due; returns the pages with events that are not settled."""
        with self.lock:
            for gathering in self.gatherings.values():
                for lane in gathering.waiting:
                    if lane.page is not None:
                        self._close_page(lane)
            self._wake_once()
            return set(self.open_pages)

    def free(self, lanes: list[Lane]) -> None:
        """Lets go of lanes that a batch held."""
        now = self._clock()
        with self.lock:
            for lane in lanes:
                lane.is_held = False
                lane.free_since = now

    def settle(self, page: Page, start: int, stop: int, offset: int, outcome: Outcome) -> list[tuple[Callback, int]]:
        """Settles a range of a page's events; returns the callbacks to run, with their events' places in the batch."""
        with self.lock:
            return self._settle(page, start, stop, offset, outcome)

    def _settle(self, page: Page, start: int, stop: int, offset: int, outcome: Outcome) -> list[tuple[Callback, int]]:
        callbacks = page.settle(start, stop, offset, outcome)
        if not page.open_count:
            self.open_pages.discard(page)
            self._changed.notify_all()
        return callbacks

    def release(self, held_bytes: int) -> None:
        """Gives memory back."""
        with self.lock:
            self.held_bytes -= held_bytes
            self._tell_room()

    def _tell_room(self) -> None:
        self._has_room.notify_all()
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._room_waiters.clear()

    # For those who wait.

    def wait_settled(self, pages: set[Page], timeout_seconds: float | None) -> int:
        """Waits until all events of these pages are settled; returns how many are not, where time has run out."""
        with self.lock:
            self._changed.wait_for(lambda: pages.isdisjoint(self.open_pages), timeout_seconds)
            return sum(page.open_count for page in pages)

    def open_event_count(self) -> int:
        """Events that are not settled."""
        with self.lock:
            return sum(page.open_count for page in self.open_pages)

    def refuse_behind(self, error: MillraceError) -> None:
        """Takes nothing any more where an event has failed and the producer is one that leaves no gap."""
        if self._config.is_resumable and self.refusal is None:
            self.refuse(stopped_error(error))

    def refuse(self, refusal: MillraceError) -> None:
        """Takes nothing any more; tells whoever waits for room."""
        with self.lock:
            self.refusal = refusal
            self._tell_room()


def stopped_error(error: MillraceError) -> ProducerClosedError:
    """Why nothing is stored behind an event that failed."""
    return ProducerClosedError(f"the producer has stopped at an event before this one: {error.message}")


def _checked_bytes(name: object, value: object) -> int:
    """Bytes of a header's value."""
    if not (isinstance(name, str) and isinstance(value, str)):
        raise TypeError(f"headers: holds {name!r}: {value!r}; keys and values must be str")
    try:
        name.encode()
        return len(value.encode())
    except UnicodeEncodeError as error:
        raise BadArgumentError(f"headers: hold {error.object!r}; they must be UTF-8") from None


def _cut(page: Page, position: int) -> None:
    """Forgets the headers of an event that was not added after all."""
    for column in page.columns.values():
        del column[position:]


def _nothing() -> None:
    """Nobody is to be woken."""


def _stable_hash(key: str | bytes) -> int:
    return crc32(key.encode() if isinstance(key, str) else key)


def _no_drops(_channel: str, _event_count: int) -> None:
    """Nobody is to be told."""


def _no_callbacks(_callbacks: list[tuple[Callback, int]], _outcome: Outcome) -> None:
    """Nobody is to be told."""
