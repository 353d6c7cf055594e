"""The accumulator: threads add events, and the engine takes them out in batches."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from zlib import crc32

from millrace.columns import HEADER_CELLS_MAX, HEADER_KEYS_MAX
from millrace.tracing import TRACING
from millrace_client.errors import (
    BadArgumentError,
    BufferFullError,
    EventDroppedError,
    EventTooLargeError,
    MillraceError,
)
from millrace_client.events import check_headers
from millrace_client.producing.buffer_memory import BufferMemory
from millrace_client.producing.channel_buffer import BUCKETS, ChannelBuffer, OrderingBucket
from millrace_client.producing.config import Overflow, ProducerConfig, Routing
from millrace_client.producing.metrics import ProducerCounters
from millrace_client.producing.pages import EVENT_BYTES, HEAD_BYTES, HEADER_BYTES, SIZE_BYTES, Page, pad
from millrace_client.producing.results import Callback, Outcome
from millrace_client.producing.sending import Bulk, header_value_bytes

PRODUCER_HEADER = "millrace-producer"
"""Header with the producer's id, if context headers are configured."""
PLACE_HEADER = "millrace-place"
"""Header with the event's number among the producer's events of its channel, from 1, in the order of `send`."""

CALLBACK_BYTES = 200
"""Bytes of the buffer that a callback takes until it has run, besides its event."""

_CONTEXT_HEADERS = 3
"""Header keys that the events of a batch may have besides the senders': the two above and `traceparent`."""
_HELD_HEADER_BYTES = HEADER_BYTES + SIZE_BYTES

_YIELDS_MAX = 100


class Accumulator(BufferMemory):
    """Buffers events that are in no batch yet, and accounts for the memory of all events that are not settled."""

    def __init__(
        self,
        config: ProducerConfig,
        producer_id: str,
        counters: ProducerCounters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(config, counters, clock)
        self._producer_id = producer_id
        self._changed = threading.Condition(self.lock)
        # Leaves space for the context headers.
        self._keys_max = max(1, min(HEADER_KEYS_MAX - _CONTEXT_HEADERS, HEADER_CELLS_MAX // config.batch_events_max))
        # A larger event goes alone, or is refused.
        self._joining_bytes_max = min(config.batch_bytes_max, config.event_bytes_limit)
        self._roomy_bytes = self.bytes_max - config.event_bytes_limit - EVENT_BYTES - CALLBACK_BYTES
        self._roomy_bytes -= HEADER_BYTES * HEADER_KEYS_MAX
        """While at most this many bytes are held, there is space for any event that is accepted."""
        self._has_context = config.context_headers
        self._places: dict[str, int] = {}
        self._is_woken = False
        self._is_timed = False
        self.wake: Callable[[], object] = lambda: None
        """Makes the engine run soon; called with the lock held."""
        self.run_callbacks: Callable[[list[tuple[Callback, int]], Outcome], None] = lambda _callbacks, _outcome: None
        """Runs the callbacks of dropped events; called with the lock held."""
        self.on_drop: Callable[[str, int], None] = lambda _channel, _event_count: None
        """Called with a channel and a number of dropped events, with the lock held."""
        self._hash: Callable[[str | bytes], int] = _stable_hash if config.routing is Routing.BY_KEY else hash
        self.buffers: dict[str, ChannelBuffer] = {}
        self.open_pages: set[Page] = set()
        """Pages with events that are not settled."""

    # For senders.

    def buffer(self, channel: str) -> ChannelBuffer:
        with self.lock:
            known = self.buffers.get(channel)
            if known is None:
                known = self.buffers[channel] = ChannelBuffer(
                    channel,
                    self._config.batch_events_max,
                    self._config.batch_bytes_max,
                    is_ordered=self._config.is_resumable,
                )
            return known

    def put(  # noqa: C901, PLR0912, PLR0913, PLR0917 - every event passes here: more calls would double the cost
        self,
        buffer: ChannelBuffer,
        key: str | bytes | None,
        body: bytes,
        headers: Mapping[str, str],
        callback: Callback | None,
        may_wait: bool,  # noqa: FBT001 - passed by position, which is faster
    ) -> tuple[Page, int]:
        """Adds an event; returns its page and its index in the page."""
        bucket = buffer.keyless if key is None else buffer.buckets[self._hash(key) % BUCKETS]
        size = len(body) + SIZE_BYTES
        if (spans := TRACING.spans) is not None:
            headers = spans.event_headers(headers)
        if (lock := self.lock).locked():
            self._yield_to_holder()
        with lock:
            try:
                if self._has_context:
                    headers = self._with_context(buffer, headers)
                # To count the header values takes another pass, which is needed only where the buffer is almost full.
                if self.held_bytes > self._roomy_bytes or self.refusal is not None:
                    self._make_space(size, headers, has_callback=callback is not None, may_wait=may_wait)
                page = bucket.page or self._open_page(buffer, bucket)
                bodies = page.bodies
                position = len(bodies)
                if headers:
                    columns = page.columns
                    for name, value in headers.items():
                        column = columns.get(name)
                        if (
                            column is None
                            or len(column) != position
                            or value.__class__ is not str
                            or not value.isascii()
                        ):
                            page, size = self._add_headers(buffer, bucket, page, body, headers)
                            break
                        column.append(value)
                        size += len(value) + SIZE_BYTES
                if page.encoded_bytes + size > buffer.bytes_max or size > self._joining_bytes_max:
                    page = self._fit(buffer, bucket, page, body, headers, size)
                if page.bodies is not bodies:
                    bodies = page.bodies
                    position = len(bodies)
                if self._has_context:
                    self._places[buffer.channel] = int(headers[PLACE_HEADER])
                bodies.append(body)
                index = position + page.dropped_count
                held = size + EVENT_BYTES + HEADER_BYTES * len(headers)
                if callback is not None:
                    held += CALLBACK_BYTES
                    page.add_callback(index, callback)
                page.encoded_bytes += size
                page.held_bytes += held
                self.held_bytes += held
                if not position or position + 1 >= buffer.events_max:
                    self._note_first_or_last(buffer, bucket, page)
            except BaseException as error:
                self._undo(buffer, bucket, error)
                # To check the headers before would slow down every event.
                check_headers(headers)
                raise
        return page, index

    @staticmethod
    def run_events(buffer: ChannelBuffer, bulk: Bulk) -> int:
        """Returns how many such events take a quarter of a page; more at once would leave much of a page unused."""
        return buffer.bytes_max * len(bulk.bodies) // (4 * bulk.encoded_bytes)

    def put_bulk(self, buffer: ChannelBuffer, key: str | bytes | None, bulk: Bulk) -> tuple[Page, int] | None:
        """Adds events with the same headers, adjacent in one page.

        Returns:
            The page and the index of the first event; None if the events must be added one by one, because they do not
            fit the page's headers or the buffer has no space for all of them.
        """
        bucket = buffer.keyless if key is None else buffer.buckets[self._hash(key) % BUCKETS]
        is_too_much = len(bulk.bodies) > buffer.events_max or bulk.bytes_on_new_page > buffer.bytes_max
        if self._has_context or len(bulk.columns) > self._keys_max or is_too_much:
            return None
        if self._joining_bytes_max < buffer.bytes_max and bulk.event_bytes_bound > self._joining_bytes_max:
            return None
        if (lock := self.lock).locked():
            self._yield_to_holder()
        with lock:
            try:
                if self.refusal is not None or self.held_bytes + bulk.held_bytes > self.bytes_max:
                    return None
                page = bucket.page or self._open_page(buffer, bucket)
                is_full = len(page.bodies) + len(bulk.bodies) > buffer.events_max
                is_full = is_full or page.encoded_bytes + bulk.bytes_on_new_page > buffer.bytes_max
                # An empty page is never closed: it would become a batch without events.
                if is_full and page.bodies:
                    page = self._turn_page(buffer, bucket)
                position = len(page.bodies)
                if not page.add_alike(bulk.bodies, bulk.columns):
                    return None
                page.encoded_bytes = page.encoded_bytes + bulk.encoded_bytes if position else bulk.bytes_on_new_page
                page.held_bytes += bulk.held_bytes
                self.held_bytes += bulk.held_bytes
                if not position or len(page.bodies) >= buffer.events_max:
                    self._note_first_or_last(buffer, bucket, page)
            except BaseException as error:
                self._undo(buffer, bucket, error)
                raise
        return page, position + page.dropped_count

    def _yield_to_holder(self) -> None:
        """Lets the thread that holds the lock continue.

        A thread that waits inside a lock gets it while another thread runs, which then waits in turn: with several
        senders each event would cost a thread switch.
        """
        for _ in range(_YIELDS_MAX):
            time.sleep(0)
            if not self.lock.locked():
                return

    def _undo(self, buffer: ChannelBuffer, bucket: OrderingBucket, error: BaseException) -> None:
        """Removes what is left of an event that was not added, since it was refused or a signal handler has raised."""
        page = bucket.page
        if page is not None and page.bodies:
            page.discard_headers(len(page.bodies))
        elif page is not None:
            bucket.page = None
            self.open_pages.discard(page)
            if buffer.waiting.get(bucket) is page:
                del buffer.waiting[bucket]
        if not isinstance(error, MillraceError):
            # A signal handler's, which may have come before the engine was woken for what is to be sent.
            self.wake()

    def _fit(  # noqa: PLR0913, PLR0917 - the event in its parts
        self,
        buffer: ChannelBuffer,
        bucket: OrderingBucket,
        page: Page,
        body: bytes,
        headers: Mapping[str, str],
        size: int,
    ) -> Page:
        """Returns the page for an event that does not fit its page, with the event's headers added."""
        position = len(page.bodies)
        page.discard_headers(position)
        if size > self._joining_bytes_max:
            self._refuse_what_never_fits(body, headers, size)
        if position:
            page = self._turn_page(buffer, bucket)
        if headers:
            page, _ = self._add_headers(buffer, bucket, page, body, headers)
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

    def _open_page(self, buffer: ChannelBuffer, bucket: OrderingBucket) -> Page:
        page = bucket.page = Page(self.lock, self._clock())
        page.encoded_bytes = HEAD_BYTES
        buffer.waiting.setdefault(bucket, page)
        self.open_pages.add(page)
        return page

    def _turn_page(self, buffer: ChannelBuffer, bucket: OrderingBucket) -> Page:
        """Closes a bucket's page and opens the next one."""
        self._close_page(bucket)
        return self._open_page(buffer, bucket)

    def _close_page(self, bucket: OrderingBucket) -> None:
        page, bucket.page = bucket.page, None
        assert page is not None, "the bucket has a page"
        # Last, since Ctrl-C may come when it returns.
        bucket.closed.append(page)
        if not bucket.is_held:
            self._wake_once()

    def _note_first_or_last(self, buffer: ChannelBuffer, bucket: OrderingBucket, page: Page) -> None:
        """Closes a page that is full now; otherwise wakes the engine for its first event."""
        if len(page.bodies) >= buffer.events_max:
            self._close_page(bucket)
        elif not (self._is_timed or bucket.is_held):
            self._wake_once()

    def _wake_once(self) -> None:
        if not self._is_woken:
            self.wake()
            self._is_woken = True

    def _add_headers(
        self, buffer: ChannelBuffer, bucket: OrderingBucket, page: Page, body: bytes, headers: Mapping[str, str]
    ) -> tuple[Page, int]:
        """Adds an event's headers to its page, or to the next if there are too many keys; returns its bytes, too."""
        position = len(page.bodies)
        page.discard_headers(position)
        new_names = [name for name in headers if name not in page.columns]
        size = len(body) + sum(header_value_bytes(name, value) + SIZE_BYTES for name, value in headers.items())
        if len(headers) >= self._keys_max:
            self._refuse_what_never_fits(body, headers, size)
        if position and new_names and len(page.columns) + len(new_names) > self._keys_max:
            return self._add_headers(buffer, bucket, self._turn_page(buffer, bucket), body, headers)
        for name in new_names:
            page.columns[name] = []
            page.encoded_bytes += len(name.encode()) + HEAD_BYTES
        for name, value in headers.items():
            pad(page.columns[name], position)
            page.columns[name].append(value)
        return page, size + SIZE_BYTES

    def _with_context(self, buffer: ChannelBuffer, headers: Mapping[str, str]) -> Mapping[str, str]:
        place = self._places.get(buffer.channel, self._config.first_number) + 1
        return {**headers, PRODUCER_HEADER: self._producer_id, PLACE_HEADER: str(place)}

    # Space.

    def _make_space(self, size: int, headers: Mapping[str, str], *, has_callback: bool, may_wait: bool) -> None:
        """Makes space for an event whose body takes `size` bytes."""
        if self.refusal is not None:
            raise self.refusal
        bytes_max = self._config.buffer_bytes_max
        values_bytes = sum(header_value_bytes(name, value) + _HELD_HEADER_BYTES for name, value in headers.items())
        held = size + EVENT_BYTES + values_bytes + CALLBACK_BYTES * has_callback
        if self.held_bytes + held <= bytes_max:
            return
        if held > bytes_max:
            raise EventTooLargeError(f"event: needs {held} bytes of memory; the buffer holds at most {bytes_max}")
        match self._config.overflow:
            case Overflow.DROP_OLDEST:
                self._drop_oldest(self.held_bytes + held - bytes_max)
            case Overflow.BLOCK if may_wait:
                self._wait_for_space(held)
                if self.refusal is not None:
                    raise self.refusal
        if self.held_bytes + held > bytes_max:
            raise BufferFullError(
                f"the producer holds {self.held_bytes} bytes of events of at most {bytes_max}; send less at a time, or "
                "raise buffer_bytes_max"
            )

    def _drop_oldest(self, needed_bytes: int) -> None:
        while needed_bytes > 0:
            heads = [
                (page.created_at, buffer.channel, bucket.index)
                for buffer in self.buffers.values()
                for bucket, page in buffer.waiting.items()
            ]
            if not heads:
                return
            _, channel, index = min(heads)
            buffer = self.buffers[channel]
            bucket = buffer.keyless if index < 0 else buffer.buckets[index]
            needed_bytes -= self._drop_from(buffer, bucket, needed_bytes)

    def _drop_from(self, buffer: ChannelBuffer, bucket: OrderingBucket, needed_bytes: int) -> int:
        """Drops events of a bucket's oldest page until this many bytes are free; returns the bytes freed."""
        page = buffer.waiting[bucket]
        count, freed = 0, 0
        while freed < needed_bytes and count < len(page.bodies):
            freed += page.event_bytes(count)
            count += 1
        if count == len(page.bodies):
            freed = page.held_bytes
            buffer.pop_page(bucket)
        start = page.dropped_count
        page.drop_first(count)
        page.held_bytes -= freed
        self.held_bytes -= freed
        self._counters.events_dropped += count
        error = EventDroppedError(
            "the event was dropped to make space for newer ones; the producer's buffer is full",
            channel=buffer.channel,
        )
        outcome = Outcome(buffer.channel, error=error)
        self.run_callbacks(self._settle(page, start, start + count, 0, outcome), outcome)
        self.on_drop(buffer.channel, count)
        return freed

    # For the engine.

    def rearm_wakeup(self) -> None:
        """Makes the next event that is due wake the engine again."""
        with self.lock:
            self._is_woken = False

    def take_batch(
        self, buffer: ChannelBuffer, now: float, accepts: Callable[[OrderingBucket], bool]
    ) -> tuple[list[Page], list[OrderingBucket]]:
        """Takes the pages of the next batch, if one is due.

        Returns:
            Pages that fit into one batch, oldest first, and the keyed buckets that the batch holds from now on. Both
            are empty if nothing is due: no free bucket has a full page, or a page whose first event has lingered.
        """
        with self.lock:
            keys_max = self._keys_max + _CONTEXT_HEADERS
            return buffer.take_batch(now - self._config.linger_seconds, keys_max, accepts)

    def next_due(self) -> float | None:
        """Returns when the next page that could be sent will have lingered; None if there is none.

        The caller sets a timer, so pages that are due later do not wake the engine.
        """
        with self.lock:
            created = [page.created_at for buffer in self.buffers.values() for page in buffer.free_pages()]
            self._is_timed = bool(created)
            return min(created) + self._config.linger_seconds if created else None

    def oldest_timed_from(self) -> float | None:
        """Returns when the delivery time of the oldest event that is in no batch began; None if it did for none."""
        with self.lock:
            waiting = [entry for buffer in self.buffers.values() for entry in buffer.waiting.items()]
            oldest = min((bucket.timed_from(page) for bucket, page in waiting), default=math.inf)
            return None if oldest == math.inf else oldest

    def take_expired(self, timed_before: float) -> list[tuple[ChannelBuffer, Page]]:
        """Takes all pages that are in no batch and whose delivery time began so long ago."""
        with self.lock:
            return [(buffer, page) for buffer in self.buffers.values() for page in buffer.take_expired(timed_before)]

    def close_pages(self) -> set[Page]:
        """Makes all buffered events due; returns the pages with events that are not settled."""
        with self.lock:
            for buffer in self.buffers.values():
                for bucket in buffer.waiting:
                    if bucket.page is not None:
                        self._close_page(bucket)
            self._wake_once()
            return set(self.open_pages)

    def release_buckets(self, buckets: list[OrderingBucket]) -> None:
        now = self._clock()
        with self.lock:
            for bucket in buckets:
                bucket.is_held = False
                bucket.released_at = now

    def settle(self, page: Page, start: int, stop: int, offset: int, outcome: Outcome) -> list[tuple[Callback, int]]:
        """Settles a range of a page's events; returns the callbacks to run, with their events' offsets in the batch."""
        with self.lock:
            return self._settle(page, start, stop, offset, outcome)

    def _settle(self, page: Page, start: int, stop: int, offset: int, outcome: Outcome) -> list[tuple[Callback, int]]:
        callbacks = page.settle(start, stop, offset, outcome)
        if not page.open_count:
            self.open_pages.discard(page)
            self._changed.notify_all()
        return callbacks

    # For waiters.

    def wait_settled(self, pages: set[Page], timeout_seconds: float | None) -> int:
        """Waits until all events of these pages are settled; returns how many are not after the timeout."""
        with self.lock:
            self._changed.wait_for(lambda: pages.isdisjoint(self.open_pages), timeout_seconds)
            return sum(page.open_count for page in pages)

    def open_event_count(self) -> int:
        """Returns the number of events that are not settled."""
        with self.lock:
            return sum(page.open_count for page in self.open_pages)


def _stable_hash(key: str | bytes) -> int:
    # Keys are not sent, so any text is one.
    return crc32(key.encode(errors="surrogatepass") if isinstance(key, str) else key)
